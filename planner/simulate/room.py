"""What of its memory an engine's requests hold, and whether more fits."""

from planner.simulate.growth import Growth
from planner.simulate.hashes import Hashes
from planner.simulate.pool import Pool
from planner.simulate.requests import Request
from planner.simulate.rules import Memory, Rules
from planner.simulate.run import Run
from planner.simulate.sharing import Sharing


class Room:
    """Units are counted as sums over all who decode, one by one for the few that do not."""

    def __init__(self, memory: Memory, rules: Rules, hashes: Hashes | None) -> None:
        self.memory, self.rules, self.hashes = memory, rules, hashes
        self.sharing = Sharing(memory, hashes) if rules.prefix_caching else None
        self.pool = self.sharing.pool if self.sharing else Pool(memory.units)
        self.growth = Growth(() if rules.reserves_answer else memory.growing)
        self.sure_tokens, self.margin = memory.sure_tokens()
        self.fixed = memory.whole if rules.reserves_answer else memory.fixed
        """Units that a request of so many tokens holds from its start to its end."""
        self.running: dict[Run, None] = {}
        """In the order in which they started."""
        self.partial: Run | None = None
        """The one whose prompt is not done."""
        self.ready: list[Run] = []
        """Those whose prompt ends in the step that is being scheduled."""
        self.leaving: list[Run] = []
        """Ended, but not known to have when the next step was scheduled."""
        self.promised = 0
        """Tokens of all running requests at their ends, each with the margin; while these surely fit nothing lacks."""
        self.still = 0
        """Units of running requests that do not grow, less those that their chunks count."""
        self.lack = 0
        """Units to be let go before the first one waiting can fit."""

    def units_now(self) -> int:
        """Units in use, for one who asks seldom."""
        used = self.used(self.growth.units(0)) + self.pool.shared
        if self.promised <= self.sure_tokens:
            self.growth.rest()
        return used

    def cached_tokens(self, request: Request) -> int:
        """Prompt tokens of a request that it would find here, to whole chunks."""
        return self.sharing.cached_tokens(request) if self.sharing is not None else 0

    def used(self, grown: int) -> int:
        """Units in use beside chunks.

        grown: of the decodes, as Growth.units has them at the time that is asked for
        """
        units = grown + self.still
        if not self.rules.reserves_answer:
            grown_of = self.memory.grown
            for run in self.ready:
                units += grown_of(run.prefilled)
            for run in self.leaving:
                units += grown_of(run.prefilled)
            if self.partial is not None:
                units += grown_of(self.partial.prefilled)
        return units

    def lacks(self, units: int, ahead: int) -> bool:
        """Whether so many more units do not fit beside all that requests hold.

        units: of running requests, which have been promised them
        ahead: steps that those who decode take until then
        """
        if self.promised <= self.sure_tokens:
            return False
        return self.used(self.growth.units(ahead)) + units > self.pool.units - self.pool.shared

    def _start(self, run: Run, room: int, ahead: int) -> bool:
        """Takes what is cached of a prompt, and what does not grow; False where it does not fit.

        ahead: as `lacks` takes it
        """
        sharing, fixed = self.sharing, self.fixed(run.tokens)
        promised = self.promised + run.tokens + self.margin
        if promised <= self.sure_tokens and run.parts is None and run.left is None:
            pass  # nothing to find, and it surely fits
        elif sharing is not None:
            used = self.used(self.growth.units(ahead))
            sharing.pool.settle(used)
            found = sharing.find(run)
            if not self._allows(run, room, found.tokens, fixed - found.shared + found.idle, used):
                return False
            sharing.take(run, found)
        elif not self._allows(run, room, 0, fixed, self.used(self.growth.units(ahead))):
            return False
        self.promised = promised
        self.still += fixed - run.shared
        run.fixed = fixed
        return True

    def _allows(self, run: Run, room: int, cached: int, units: int, used: int) -> bool:
        """Whether a prompt and so many units fit; otherwise `lack` is at most what must be let go before they may.

        Until something is let go neither the free units less what the prompt needs of them grow, nor the step's room
        shrinks, but for those that now begin to decode.
        """
        first = run.prompt if self.rules.reserves_prompt else min(run.prompt, cached + room)
        lack = units + self._grown(first) - (self.pool.units - self.pool.shared - used)
        if lack <= 0:
            return True
        if first < run.prompt:
            least = max(1, min(first, cached + self.rules.max_tokens - len(self.running)))
            lack -= self._grown(first) - self._grown(least)
        self.lack = lack
        return False

    def _grown(self, tokens: int) -> int:
        return 0 if self.rules.reserves_answer else self.memory.grown(tokens)

    def _steps_that_fit(self, steps: int) -> int:
        """The most of so many steps, which do not all fit, whose blocks there are."""
        low, high = 0, steps
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.lacks(0, middle) else (middle, high)
        return low

    def _release(self, runs: list[Run], again: bool = False) -> None:
        """What requests that run no longer held."""
        sharing, margin = self.sharing, self.margin
        for run in runs:
            self.promised -= run.tokens + margin
            if sharing is not None:
                own = self._grown(run.prefilled) + run.fixed - run.shared
                self.still -= run.fixed - run.shared
                self.lack -= sharing.release(run, own, again=again)
            else:
                self.still -= run.fixed
                if self.lack > 0:
                    self.lack -= self._grown(run.prefilled) + run.fixed
