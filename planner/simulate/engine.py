"""One data-parallel rank of a serving engine: continuous batching over a block pool, step by step.

Scheduling follows vLLM 0.33, v1/core/sched/scheduler.py: running requests first, then waiting ones in order of arrival;
prompts in chunks; blocks on demand; where they run out the request that started last is preempted and computed anew.
A step costs no more for a larger batch, and steps of decodes alone are done in closed form.
"""

from collections import deque
from heapq import heappop, heappush
from math import sqrt

from planner.simulate.growth import Growth
from planner.simulate.hashes import Hashes
from planner.simulate.pool import Chunk, Pool, PrefixPool
from planner.simulate.requests import Request
from planner.simulate.rules import Memory, Rules
from planner.simulate.run import Observer, Run
from planner.simulate.steps import StepTimes

LONGEST_STRIDE = 512
"""Steps done at once: over so many the time of a step grows linearly."""


class Engine:
    """Requests in, times out: `submit` in order of arrival, `advance` as far as time goes."""

    def __init__(
        self, memory: Memory, rules: Rules, times: StepTimes, observer: Observer, hashes: Hashes | None = None
    ) -> None:
        """hashes: how the load's hash ids name chunks; None: nothing is shared"""
        self.memory, self.rules, self.times, self.observer = memory, rules, times, observer
        self.hashes = hashes if rules.prefix_caching else None
        self.prefixes = PrefixPool(memory.units) if rules.prefix_caching else None
        self.pool = self.prefixes or Pool(memory.units)
        self.growth = Growth(() if rules.reserves_answer else memory.growing)
        self.most_running = min(rules.max_seqs, memory.most_requests or rules.max_seqs)
        self.longest = min(rules.context_tokens, memory.longest())
        """Tokens of the longest request that it takes, input and output together."""
        self.sure_tokens, self.margin = memory.sure_tokens()
        self.waiting: deque[Run] = deque()
        self.running: dict[Run, None] = {}
        """In the order in which they started."""
        self.partial: Run | None = None
        """The one whose prompt is not done."""
        self.ready: list[Run] = []
        """Those whose prompt ends in the step that is being scheduled."""
        self.leaving: list[Run] = []
        """Ended, but not known to have when the next step was scheduled."""
        self.ending: dict[int, list[Run]] = {}
        """Decoding ones by Growth.clock after their last step."""
        self.ends: list[int] = []
        """A heap of its keys."""
        self.ages: deque[Run] = deque()
        """In order of arrival, where they are cancelled after a time."""
        self.now = self.began = 0.0
        """When the next step starts, and when the last one did."""
        self.stalled_s = 0.0
        """Decodes have waited for prompts so long."""
        self.promised = 0
        """Tokens of all running requests at their ends, each with the margin: nothing lacks while they are sure to fit."""
        self.held = 0
        """Units of running requests that do not grow, less those that their chunks count."""
        self.blocked = False
        """The first one waiting does not fit until something is let go."""
        self.busy_s = 0.0

    def submit(self, request: Request, seen_s: float) -> Run | None:
        """A request that is in the queue from a time on, to which `advance` has come; None: the queue is full."""
        rules = self.rules
        if rules.max_queue is not None and self._queue_is_full(rules.max_queue):
            return None
        run = Run(request, seen_s, self.hashes.parts(request) if self.hashes and request.hash_ids else [])
        self.waiting.append(run)
        if rules.timeout_s is not None:
            self.ages.append(run)
        return run

    def _queue_is_full(self, most: int) -> bool:
        """A request that can start at the next step does not count as waiting."""
        free = 0 if self.blocked else self.most_running - len(self.running)
        return len(self.waiting) >= most + max(0, free)

    @property
    def requests(self) -> int:
        """Waiting and running."""
        return len(self.waiting) + len(self.running)

    @property
    def used_units(self) -> int:
        """Units in use."""
        return self._used(0) + self.pool.shared

    def advance(self, until: float) -> None:
        """Runs every step that starts before a time."""
        late, growth, waiting, leaving = self.rules.sees_late, self.growth, self.waiting, self.leaving
        while self.now < until:
            if self.ages:
                self._expire()
            due = waiting and not self.blocked
            if self.partial is not None or (due and waiting[0].seen_s <= (self.began if late else self.now)):
                self._step()
            elif growth.batch:
                self._stride(min(until, waiting[0].seen_s) if due else until, 1 if due and late else 0)
            elif leaving:
                self._let_go()
            elif waiting and waiting[0].seen_s < until:
                self.now = self.began = max(self.now, waiting[0].seen_s)
            else:
                return

    def fail(self) -> list[Run]:
        """Everything in it is lost, the cache too; returns the requests that had not ended."""
        lost = [run for run in (*self.running, *self.waiting) if not run.ended]
        fresh = Engine(self.memory, self.rules, self.times, self.observer, self.hashes)
        fresh.now, fresh.began, fresh.busy_s = self.now, self.began, self.busy_s
        self.__dict__.update(fresh.__dict__)
        return lost

    def cached_tokens(self, request: Request) -> int:
        """Prompt tokens of a request that it would find here."""
        if self.hashes is None or self.prefixes is None or not request.hash_ids:
            return 0
        tokens = 0
        for key, end, _ in self.hashes.parts(request):
            if key not in self.prefixes.cached:
                break
            tokens = end
        return tokens

    def _used(self, ahead: int) -> int:
        """Units in use beside chunks, after so many more steps of the decodes."""
        units = self.growth.units(ahead) + self.held
        if not self.rules.reserves_answer:
            units += sum(self.memory.grown(run.prefilled) for run in (*self.ready, *self.leaving))
            if self.partial is not None:
                units += self.memory.grown(self.partial.prefilled)
        return units

    def _fits(self, units: int, ahead: int) -> bool:
        """So many units more, after so many more steps of the decodes."""
        return self.pool.units - self.pool.shared - self._used(ahead) >= units

    def _step(self) -> None:
        """One step with prompts; of decodes alone where none can start."""
        ahead = 1 if self.rules.mixes and self.growth.batch else 0
        preempted = False
        while self.promised > self.sure_tokens and not self._fits(0, ahead):
            self._preempt(self._last())
            preempted = True
        batch = self.growth.batch if self.rules.mixes else 0
        room = self.rules.max_tokens - batch
        prompts: list[tuple[int, int]] = []
        partial = self.partial
        if partial is not None:
            room -= self._compute(partial, room, ahead, prompts)
            if not prompts:
                self._preempt(partial)
                preempted = True
        if not preempted and self.partial is None:
            self._start_waiting(room, ahead, prompts)
        if prompts:
            self._run_prompts(batch, prompts)
        else:
            self._let_go()
            if self.growth.batch:
                self._stride(self.now)

    def _start_waiting(self, room: int, ahead: int, prompts: list[tuple[int, int]]) -> None:
        """Requests that wait, in order, as long as slots, tokens and memory last."""
        waiting, running = self.waiting, self.running
        sees = self.began if self.rules.sees_late else self.now
        while waiting and room > 0 and waiting[0].seen_s <= sees:
            run = waiting[0]
            if len(running) >= self.most_running or not self._start(run, room, ahead):
                self.blocked = True
                return
            waiting.popleft()
            running[run] = None
            room -= self._compute(run, room, ahead, prompts)

    def _start(self, run: Run, room: int, ahead: int) -> bool:
        """Takes what is cached of a prompt, and what does not grow; False where it, or its first chunk, does not fit."""
        memory, rules, prefixes = self.memory, self.rules, self.prefixes
        fixed = memory.whole(run.tokens) if rules.reserves_answer else memory.fixed(run.tokens)
        promised = self.promised + run.tokens + self.margin
        if prefixes is None:
            if promised > self.sure_tokens:
                first = run.prompt if rules.reserves_prompt else min(run.prompt, room)
                if not self._fits(fixed + self._grown(first), ahead):
                    return False
        elif not self._start_found(run, room, ahead, fixed, prefixes):
            return False
        self.promised = promised
        self.held += fixed - run.shared
        run.fixed = fixed
        if run.started_s < 0:
            run.started_s, run.cached = self.now, run.prefilled
        return True

    def _start_found(self, run: Run, room: int, ahead: int, fixed: int, prefixes: PrefixPool) -> bool:
        """With a prefix cache."""
        used = self._used(ahead)
        prefixes.settle(used)
        found, cached, left = self._find(run, prefixes)
        shared = sum(chunk.units for chunk in found)
        idle = sum(chunk.units for chunk in found if not chunk.refs)
        first = run.prompt if self.rules.reserves_prompt else min(run.prompt, cached + room)
        if prefixes.units - prefixes.shared - used < fixed - shared + idle + self._grown(first):
            return False
        for chunk in found:
            prefixes.take(chunk)
        if left is not None:
            prefixes.reclaim(left)
        run.chunks, run.shared, run.left, run.prefilled = found, shared, None, cached
        return True

    def _find(self, run: Run, prefixes: PrefixPool) -> tuple[list[Chunk], int, Chunk | None]:
        """(chunks of a prompt in the cache, tokens that need not be computed, blocks of its own that are left)."""
        found, tokens, cached = [], 0, prefixes.cached
        for key, end, _ in run.parts:
            chunk = cached.get(key)
            if chunk is None:
                break
            found.append(chunk)
            tokens = end
        left = run.left if len(found) == len(run.parts) and run.left in prefixes.queue else None
        if left is not None:
            block, weight = self.memory.growing[0]
            tokens += left.units // weight * block
        if tokens >= run.prompt:
            block = max(block for block, _ in self.memory.growing)
            tokens = (run.prompt - 1) // block * block
        return found, tokens, left

    def _grown(self, tokens: int) -> int:
        return 0 if self.rules.reserves_answer else self.memory.grown(tokens)

    def _compute(self, run: Run, room: int, ahead: int, prompts: list[tuple[int, int]]) -> int:
        """Schedules as much of a prompt as fits in the step's tokens; returns how much, none where memory lacks."""
        prior, prompt = run.prefilled, run.prompt
        new = min(prompt - prior, room)
        if self.promised > self.sure_tokens and not self._fits(self._grown(prior + new) - self._grown(prior), ahead):
            return 0
        run.prefilled = prior + new
        prompts.append((new, prior))
        if run.parts:
            self._keep(run)
        if run.prefilled == prompt:
            self.partial = None
            self.ready.append(run)
        else:
            self.partial = run
        return new

    def _keep(self, run: Run) -> None:
        """Makes what is computed of its prompt findable, as the engine does when it schedules it."""
        prefixes, chunks, prefilled = self.prefixes, run.chunks, run.prefilled
        if prefixes is None:
            return
        units = 0
        for part in run.parts[len(chunks) :]:
            if part[1] > prefilled:
                break
            chunks.append(prefixes.hold(part[2], part[0]))
            units += part[2]
        run.shared += units
        self.held -= units

    def _run_prompts(self, batch: int, prompts: list[tuple[int, int]]) -> None:
        growth = self.growth
        seconds = self.times.mixed(batch, growth.tokens if batch else 0, prompts)
        self._let_go()
        self.began = self.now
        self.now += seconds
        self.busy_s += seconds
        if batch:
            self.observer.steps(seconds, batch)
            growth.clock += 1
            if self.ends[0] <= growth.clock:
                self._finish()
        elif growth.batch:
            self.stalled_s += seconds
        for run in self.ready:
            self._emit(run)
        self.ready.clear()
        if not self.rules.sees_late:
            self._let_go()

    def _emit(self, run: Run) -> None:
        """The token that a prompt's last chunk gives."""
        if run.first_s < 0:
            run.first_s = self.now
        left = run.request.output_tokens - run.emitted - 1
        if not left:
            self._end(run)
            return
        growth = self.growth
        run.own = growth.join(run.prompt)
        at = run.finish_at = growth.clock + left
        others = self.ending.get(at)
        if others is None:
            self.ending[at] = [run]
            heappush(self.ends, at)
        else:
            others.append(run)

    def _stride(self, until: float, more: int = 0) -> None:
        """Steps of decodes alone: to the one before the first that starts at a time or later, or that ends a request.

        more: after the time, where what comes then is seen by the step after the next
        """
        growth = self.growth
        batch = growth.batch
        steps = min(self.ends[0] - growth.clock, LONGEST_STRIDE)
        seconds, slope = self.times.decode(batch, growth.tokens)
        slope *= batch
        wanted = until - self.now
        if steps * seconds > wanted:
            steps = min(steps, (_steps_in(wanted, seconds, slope) + more) if wanted > 0 else 1)
        if self.promised > self.sure_tokens and not self._fits(0, steps):
            steps = self._steps_that_fit(steps)
            if not steps:
                self._preempt(self._last())
                return
        taken = steps * (seconds + slope * (steps - 1) / 2)
        self.began = self.now + taken - seconds - slope * (steps - 1)
        self.now += taken
        self.busy_s += taken
        growth.clock += steps
        if self.stalled_s:
            self.observer.steps(seconds + self.stalled_s, batch)
            self.stalled_s = 0.0
            taken, steps = taken - seconds, steps - 1
        if steps:
            self.observer.steps(taken / steps, steps * batch)
        if self.leaving:
            self._let_go()
        if self.ends[0] <= growth.clock:
            self._finish()

    def _steps_that_fit(self, steps: int) -> int:
        """The most of so many steps, which do not all fit, whose blocks there are."""
        low, high = 0, steps
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(0, middle) else (low, middle)
        return low

    def _finish(self) -> None:
        """Requests that got their last token in the step just done."""
        growth, ends = self.growth, self.ends
        while ends and ends[0] <= growth.clock:
            for run in self.ending.pop(heappop(ends)):
                growth.leave(run.own)
                run.prefilled = growth.clock + run.own
                self._end(run)
        if not self.rules.sees_late:
            self._let_go()

    def _end(self, run: Run) -> None:
        run.ended = True
        self.leaving.append(run)
        self.observer.done(run, self.now)

    def _let_go(self) -> None:
        """The blocks and slots of requests that have ended."""
        leaving = self.leaving
        if leaving:
            for run in leaving:
                del self.running[run]
                self._release(run)
            leaving.clear()

    def _release(self, run: Run) -> None:
        """What a request that runs no longer held."""
        self.promised -= run.tokens + self.margin
        prefixes = self.prefixes
        if prefixes is not None:
            run.left = prefixes.drop(self._grown(run.prefilled) + run.fixed - run.shared)
            for chunk in reversed(run.chunks):
                prefixes.free(chunk)
            run.chunks = []
        self.held -= run.fixed - run.shared
        run.shared = 0
        self.blocked = False

    def _preempt(self, run: Run) -> None:
        """Its blocks are let go, and it waits before all others to be computed again."""
        self._stop(run)
        run.preemptions += 1
        run.prompt = run.request.input_tokens + run.emitted
        run.prefilled = 0
        if len(self.memory.growing) != 1 or run.fixed:
            run.left = None  # what of it is left cannot be told from its blocks alone
        self.waiting.appendleft(run)

    def _stop(self, run: Run) -> None:
        """A request that runs no longer, before its end."""
        del self.running[run]
        if run is self.partial:
            self.partial = None
        else:
            growth = self.growth
            self.ending[run.finish_at].remove(run)
            run.emitted = run.request.output_tokens - (run.finish_at - growth.clock)
            run.prefilled = growth.clock + run.own
            growth.leave(run.own)
        self._release(run)

    def _last(self) -> Run:
        """The one that started last of those that have not ended."""
        return next(run for run in reversed(self.running) if not run.ended)

    def _expire(self) -> None:
        """Cancels requests whose time is over."""
        limit = self.now - (self.rules.timeout_s or 0.0)
        while self.ages and (self.ages[0].ended or self.ages[0].request.arrival_s <= limit):
            run = self.ages.popleft()
            if run.ended:
                continue
            if run in self.running:
                self._stop(run)
            else:
                self.waiting.remove(run)
            run.ended = True
            self.observer.cancelled(run, self.now)


def _steps_in(wanted_s: float, first_s: float, each_s: float) -> int:
    """The fewest steps, at least one, that take this long, each so much longer than the one before."""
    base = first_s - each_s / 2
    return max(1, -int(-2 * wanted_s / (base + sqrt(base * base + 2 * each_s * wanted_s)) // 1))
