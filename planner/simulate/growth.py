"""The requests that decode: when each ends, and their cached tokens and blocks as sums that no step visits them for.

Each step gives every request one more cached token, so a request's tokens are the steps done so far plus a number of
its own. Blocks at the clock's start, as if requests had been there with as many tokens as their number, and how many
requests begin a block in which of the steps since, then give the blocks at any time.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from planner.simulate.run import Run


class Growth:
    """The requests that decode."""

    __slots__ = ("_groups", "_growing", "batch", "clock", "ending", "ends", "offset")

    def __init__(self, growing: tuple[tuple[int, int], ...]) -> None:
        """growing: (tokens of a block, units of it) of each group"""
        self.batch = 0
        self.clock = 0
        """Decode steps done."""
        self.offset = 0
        """Sum over requests of cached tokens less clock."""
        self.ending: dict[int, list[Run]] = {}
        """By the clock after their last step."""
        self.ends: list[int] = []
        """A heap of its keys."""
        self._growing = growing
        self._groups: list[_Group] = []
        """Kept from when units are asked for until `rest`."""

    @property
    def tokens(self) -> int:
        """Cached tokens of all."""
        return self.batch * self.clock + self.offset

    def join(self, run: Run, steps: int) -> None:
        """A request whose prompt is done begins to decode, for so many steps."""
        clock, ending = self.clock, self.ending
        own = run.own = run.prompt - clock
        self.batch += 1
        self.offset += own
        at = run.finish_at = clock + steps
        if at in ending:
            ending[at].append(run)
        else:
            ending[at] = [run]
            heappush(self.ends, at)
        for group in self._groups:
            group.counts[own % group.block] += 1
            group.blocks -= -own // group.block

    def leave(self, run: Run) -> None:
        """It decodes no longer, before its last step."""
        self.ending[run.finish_at].remove(run)
        self._forget([run])

    def ended(self) -> list[Run]:
        """Those that just took the last step of the first to end, which decode no longer."""
        runs = self.ending.pop(heappop(self.ends))
        self._forget(runs)
        return runs

    def _forget(self, runs: list[Run]) -> None:
        clock, groups = self.clock, self._groups
        self.batch -= len(runs)
        for run in runs:
            own = run.own
            self.offset -= own
            run.prefilled = clock + own
            for group in groups:
                group.counts[own % group.block] -= 1
                group.blocks += -own // group.block

    def units(self, ahead: int) -> int:
        """Units of all after so many more steps."""
        if not self._groups:
            self._groups = [_Group(block, weight, self.ending.values()) for block, weight in self._growing]
        clock, total = self.clock + ahead, 0
        for group in self._groups:
            rounds, over = divmod(clock, group.block)
            blocks = group.blocks + rounds * self.batch
            if over:  # the step after i begins a block for those whose number plus i is a multiple of it
                blocks += group.counts[0] + sum(group.counts[group.block - over + 1 :])
            total += blocks * group.weight
        return total

    def rest(self) -> None:
        """Units are not asked for again soon: until then nothing is counted for them."""
        self._groups = []


class _Group:
    """Blocks of one group."""

    __slots__ = ("block", "blocks", "counts", "weight")

    def __init__(self, block: int, weight: int, decoding: Iterable[Iterable[Run]]) -> None:
        self.block = block
        """Tokens of one."""
        self.weight = weight
        """Units of one."""
        self.counts = [0] * block
        """Requests by their own number modulo the block."""
        self.blocks = 0
        """At the clock's start."""
        for runs in decoding:
            for run in runs:
                self.counts[run.own % block] += 1
                self.blocks -= -run.own // block
