"""What an engine's scheduler and memory obey, as the simulation needs it."""

from bisect import bisect
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from planner.units import ceil_div

MOST_TOKENS = 2**40
"""Longer than any context."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How one rank's scheduler decides."""

    max_seqs: int
    """Most requests that run at once."""
    max_tokens: int
    """Most tokens of one step."""
    context_tokens: int
    """Longest request, input and output together; longer ones are refused."""
    sees_late: bool = True
    """A step is scheduled while the one before it runs, so it knows nothing of what that one ends."""
    mixes: bool = True
    """Prompts share steps with decodes; otherwise decodes wait for them."""
    reserves_prompt: bool = False
    """A prompt starts only where all of it fits, not its first chunk alone."""
    reserves_answer: bool = False
    """A request starts only where its whole answer fits too; nothing is then preempted."""
    prefix_caching: bool = True
    max_queue: int | None = None
    """Requests that may wait, for the next step or longer; one more is turned away."""
    timeout_s: float | None = None
    """A request that has not ended so long after its arrival is cancelled."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A rank's pool as requests take it, in units: blocks where groups share a pool, else bytes."""

    units: int
    growing: tuple[tuple[int, int], ...]
    """(tokens of a block, units of it) of each group that grows with the context."""
    bounded: tuple[tuple[int, int, int], ...] = ()
    """(tokens of a block, units of it, most blocks) of each group that a window or chunk bounds."""
    state_units: int = 0
    """Of states and whatever else does not depend on a request's length."""
    most_requests: int | None = None
    """Where states have memory of their own."""

    def grown(self, tokens: int) -> int:
        """Units that the growing groups hold for so many cached tokens."""
        total = 0
        for block, weight in self.growing:
            total -= -tokens // block * weight
        return total

    def fixed(self, tokens: int) -> int:
        """Units that do not grow while a request of so many tokens runs: a bounded group counts at its fullest."""
        total = self.state_units
        if not self.bounded:
            return total
        for block, weight, most in self.bounded:
            total += min(ceil_div(tokens, block), most) * weight
        return total

    def whole(self, tokens: int) -> int:
        """Units of a request of this length."""
        return self.grown(tokens) + self.fixed(tokens)

    def longest(self) -> int:
        """Tokens of the longest request that the whole pool holds; unbounded where none grows."""
        if not self.growing:
            return MOST_TOKENS if self.whole(MOST_TOKENS) <= self.units else 0
        return bisect(range(1, MOST_TOKENS), self.units, key=self.whole)

    def longest_of(self, rules: Rules) -> int:
        """Tokens of the longest request that an engine of these rules takes."""
        return min(rules.context_tokens, self.longest())

    def sure_tokens(self) -> tuple[int, int]:
        """(tokens, margin): requests surely fit whose lengths, each with the margin, sum to no more tokens.

        N / r, ceil((sum of w (b - 1) / b + f) / r), with r = sum of w / b units per token and f the most fixed units
        """
        rate = sum((Fraction(weight, block) for block, weight in self.growing), Fraction(0))
        if not rate:
            return -1, 0
        rounding = sum((Fraction(weight * (block - 1), block) for block, weight in self.growing), Fraction(0))
        return int(self.units / rate), ceil((rounding + self.fixed(MOST_TOKENS)) / rate)
