"""Cached tokens and blocks of all decoding requests, as sums that no step has to visit a request for.

Each step gives every request one more cached token, so a request's tokens are the steps done so far plus a number of
its own. Blocks at the clock's start, as if requests had been there with as many tokens as their number, and how many
requests begin a block in which of the steps since, then give the blocks at any time.
"""


class Growth:
    """The requests that decode."""

    __slots__ = ("batch", "clock", "groups", "offset")

    def __init__(self, growing: tuple[tuple[int, int], ...]) -> None:
        """growing: (tokens of a block, units of it) of each group"""
        self.batch = 0
        self.clock = 0
        """Decode steps done."""
        self.offset = 0
        """Sum over requests of cached tokens less clock."""
        self.groups = [_Group(block, weight) for block, weight in growing]

    @property
    def tokens(self) -> int:
        """Cached tokens of all."""
        return self.batch * self.clock + self.offset

    def join(self, tokens: int) -> int:
        """A request with so many cached tokens begins to decode; returns its own number."""
        own = tokens - self.clock
        self.batch += 1
        self.offset += own
        for group in self.groups:
            group.counts[own % group.block] += 1
            group.blocks -= -own // group.block
        return own

    def leave(self, own: int) -> None:
        """It decodes no longer."""
        self.batch -= 1
        self.offset -= own
        for group in self.groups:
            group.counts[own % group.block] -= 1
            group.blocks += -own // group.block

    def units(self, ahead: int) -> int:
        """Units of all after so many more steps."""
        clock, total = self.clock + ahead, 0
        for group in self.groups:
            rounds, over = divmod(clock, group.block)
            blocks = group.blocks + rounds * self.batch
            if over:  # the step after i begins a block for those whose number plus i is a multiple of it
                blocks += group.counts[0] + sum(group.counts[group.block - over + 1 :])
            total += blocks * group.weight
        return total


class _Group:
    """Blocks of one group."""

    __slots__ = ("block", "blocks", "counts", "weight")

    def __init__(self, block: int, weight: int) -> None:
        self.block = block
        """Tokens of one."""
        self.weight = weight
        """Units of one."""
        self.counts = [0] * block
        """Requests by their own number modulo the block."""
        self.blocks = 0
        """At the clock's start."""
