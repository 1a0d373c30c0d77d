"""Cached tokens and blocks of all decoding requests, as sums that no step has to visit a request for.

Each step gives every request one more cached token, so a request's tokens are the steps done so far plus a number of its
own, and the sums need only how many there are, the sum of these numbers, and how they fall within a block.
"""

from operator import mul


class Growth:
    """The requests that decode."""

    __slots__ = ("batch", "clock", "offset", "pads", "rows", "weights")

    def __init__(self, growing: tuple[tuple[int, int], ...]) -> None:
        """growing: (tokens of a block, units of it) of each group"""
        self.batch = 0
        self.clock = 0
        """Decode steps done."""
        self.offset = 0
        """Sum over requests of cached tokens less clock."""
        self.rows = [([0] * block, block) for block, _ in growing]
        """Requests by their own number modulo the block, and the block."""
        self.weights = [weight for _, weight in growing]
        self.pads = [[[-(at + own) % block for own in range(block)] for at in range(block)] for block, _ in growing]
        """By clock and own number modulo the block: tokens that the last block still takes."""

    @property
    def tokens(self) -> int:
        """Cached tokens of all."""
        return self.batch * self.clock + self.offset

    def join(self, tokens: int) -> int:
        """A request with so many cached tokens begins to decode; returns its own number."""
        own = tokens - self.clock
        self.batch += 1
        self.offset += own
        for counts, block in self.rows:
            counts[own % block] += 1
        return own

    def leave(self, own: int) -> None:
        """It decodes no longer."""
        self.batch -= 1
        self.offset -= own
        for counts, block in self.rows:
            counts[own % block] -= 1

    def units(self, ahead: int) -> int:
        """Units of all after so many more steps."""
        tokens, total = self.tokens + self.batch * ahead, 0
        for (counts, block), weight, pads in zip(self.rows, self.weights, self.pads, strict=True):
            padded = sum(map(mul, counts, pads[(self.clock + ahead) % block]))
            total += (tokens + padded) // block * weight
        return total
