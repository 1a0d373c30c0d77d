"""One data-parallel rank of a serving engine: continuous batching over a block pool, step by step.

Scheduling follows vLLM 0.33, v1/core/sched/scheduler.py: running requests first, then waiting ones in order of arrival;
prompts in chunks; blocks on demand; where they run out the request that started last is preempted and computed anew.
A step costs no more for a larger batch, and steps of decodes alone are done in closed form.
"""

from collections import deque
from heapq import heappop, heappush
from math import sqrt
from typing import Protocol

from planner.simulate.growth import Growth
from planner.simulate.hashes import Hashes
from planner.simulate.pool import Chunk, Key, Pool, PrefixPool
from planner.simulate.requests import Request
from planner.simulate.rules import Memory, Rules
from planner.simulate.steps import StepTimes


LONGEST_STRIDE = 512
"""Steps done at once: over so many the time of a step grows linearly."""


class Run:
    """A request in an engine."""

    __slots__ = (
        "arrival_s", "cached", "chunks", "emitted", "ended", "finish_at", "first_s", "keys", "left", "own", "prefilled",
        "preemptions", "prompt", "request", "seen_s", "shared", "started_s",
    )  # fmt: skip

    def __init__(self, request: Request, seen_s: float, keys: list[tuple[Key, int, int]]) -> None:
        self.request = request
        self.seen_s = seen_s
        """When it is in the engine's queue."""
        self.prompt = request.input_tokens
        """Tokens to compute before it decodes: its input, and after a preemption what it had written too."""
        self.prefilled = 0
        self.emitted = 0
        self.started_s = self.first_s = -1.0
        self.finish_at = -1
        """Growth.clock after its last step."""
        self.own = 0
        self.cached = 0
        """Prompt tokens found in the cache when it first started."""
        self.keys = keys
        self.chunks: list[Chunk] = []
        self.shared = 0
        """Units of its chunks."""
        self.left: Chunk | None = None
        """Its own blocks that a preemption let go."""
        self.preemptions = 0
        self.ended = False


class Observer(Protocol):
    """What is told of an engine's doings."""

    def step(self, engine: "Engine", seconds: float, tokens: int, prompt_tokens: int) -> None:
        """Steps that took so long each and gave so many tokens to requests that had one already."""

    def done(self, run: Run, end_s: float) -> None:
        """A request got its last token."""

    def cancelled(self, run: Run, end_s: float) -> None:
        """A request did not end in time."""


class Engine:
    """Requests in, times out: `submit` in order of arrival, `advance` as far as time goes."""

    def __init__(self, memory: Memory, rules: Rules, times: StepTimes, observer: Observer, chunk_tokens: int = 0) -> None:
        """chunk_tokens: prompt tokens that a hash id of the load's requests stands for"""
        self.memory, self.rules, self.times, self.observer = memory, rules, times, observer
        self.prefixes = PrefixPool(memory.units) if rules.prefix_caching else None
        self.pool = self.prefixes or Pool(memory.units)
        self.hashes = Hashes(memory, chunk_tokens) if rules.prefix_caching and chunk_tokens else None
        self.growth = Growth(() if rules.reserves_answer else memory.growing)
        self.most_running = min(rules.max_seqs, memory.most_requests or rules.max_seqs)
        self.waiting: deque[Run] = deque()
        self.running: dict[Run, None] = {}
        """In the order in which they started."""
        self.partial: Run | None = None
        """The one whose prompt is not done."""
        self.ending: dict[int, list[Run]] = {}
        """By Growth.clock."""
        self.ends: list[int] = []
        """A heap of its keys."""
        self.leaving: list[Run] = []
        """Ended, but not known to have when the next step was scheduled."""
        self.ages: deque[Run] = deque()
        """In order of arrival, where they are cancelled after a time."""
        self.now = self.began = 0.0
        """When the next step starts, and when the last one did."""
        self.stalled_s = 0.0
        """Decodes have waited for prompts so long."""
        self.held = 0
        """Units beside growth and chunks that are in use."""
        self.blocked = False
        """The first one waiting does not fit until something is let go."""
        self.busy_s = 0.0

    def submit(self, request: Request, seen_s: float) -> Run | None:
        """A request that is in the engine's queue from a time on, at which `advance` has arrived; None: no room there."""
        most = self.rules.max_queue
        if most is not None and len(self.waiting) >= most and (self.blocked or len(self.waiting) > most):
            return None
        run = Run(request, seen_s, self.hashes.keys(request) if self.hashes and request.hash_ids else [])
        self.waiting.append(run)
        if self.rules.timeout_s is not None:
            self.ages.append(run)
        return run

    def refuses(self, request: Request) -> bool:
        """Longer than the context, or than the whole pool."""
        tokens = request.input_tokens + request.output_tokens
        return tokens > self.rules.context_tokens or self.memory.whole(tokens) > self.memory.units

    @property
    def requests(self) -> int:
        """Waiting and running."""
        return len(self.waiting) + len(self.running)

    @property
    def used_units(self) -> int:
        """Units in use."""
        return self.growth.units(0) + self.held + self.pool.shared

    def advance(self, until: float) -> None:
        """Runs every step that starts before a time."""
        late = self.rules.sees_late
        while self.now < until:
            if self.ages:
                self._expire()
            waiting = self.waiting
            due = bool(waiting) and not self.blocked
            if self.partial is not None or (due and waiting[0].seen_s <= (self.began if late else self.now)):
                self._step()
            elif self.growth.batch:
                self._stride(min(until, waiting[0].seen_s) if due else until)
            elif self.leaving:
                self._let_go()
            elif waiting and waiting[0].seen_s < until:
                self.now = self.began = max(self.now, waiting[0].seen_s)
            else:
                return

    def fail(self) -> list[Run]:
        """Everything in it is lost, the cache too; returns the requests that had not ended."""
        lost = [run for run in (*self.running, *self.waiting) if not run.ended]
        fresh = Engine(self.memory, self.rules, self.times, self.observer)
        fresh.hashes, fresh.now, fresh.began, fresh.busy_s = self.hashes, self.now, self.began, self.busy_s
        self.__dict__.update(fresh.__dict__)
        return lost

    def _fits(self, units: int, ahead: int) -> bool:
        """So many units more, after so many more steps of the decodes."""
        free = self.pool.spare(self.held) - units
        return free >= self.growth.most_units(ahead) or free >= self.growth.units(ahead)

    def _step(self) -> None:
        """One step with prompts; of decodes alone where none can start."""
        ahead = 1 if self.rules.mixes and self.growth.batch else 0
        preempted = False
        while not self._fits(0, ahead):
            self._preempt(self._last())
            preempted = True
        batch = self.growth.batch if self.rules.mixes else 0
        room = self.rules.max_tokens - batch
        prompts: list[tuple[int, int]] = []
        ready: list[Run] = []
        partial = self.partial
        if partial is not None:
            room -= self._compute(partial, room, ahead, prompts, ready)
            if not prompts:
                self._preempt(partial)
                preempted = True
        if not preempted and self.partial is None:
            self._start_waiting(room, ahead, prompts, ready)
        self._let_go()
        if prompts:
            self._run_prompts(batch, prompts, ready)
        elif self.growth.batch:
            self._stride(self.now)

    def _start_waiting(self, room: int, ahead: int, prompts: list[tuple[int, int]], ready: list[Run]) -> None:
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
            room -= self._compute(run, room, ahead, prompts, ready)

    def _start(self, run: Run, room: int, ahead: int) -> bool:
        """Takes what is cached of a prompt, and what does not grow; False where it, or its first chunk, does not fit."""
        memory, total = self.memory, run.request.input_tokens + run.request.output_tokens
        fixed = memory.whole(total) if self.rules.reserves_answer else memory.fixed(total)
        prefixes = self.prefixes
        if prefixes is None:
            cached, need = 0, fixed
        else:
            prefixes.settle(self.growth.units(ahead) + self.held)
            found, cached, left = self._find(run, prefixes)
            shared = sum(chunk.units for chunk in found)
            need = fixed - shared + sum(chunk.units for chunk in found if not chunk.refs)
        first = run.prompt if self.rules.reserves_prompt else min(run.prompt, cached + room)
        if not self._fits(need + self._grown(first), ahead):
            return False
        self.held += fixed + self._grown(cached)
        if prefixes is not None:
            for chunk in found:
                prefixes.take(chunk)
            run.chunks, run.shared, run.left = found, shared, None
            self.held -= shared
            if left is not None:
                prefixes.reclaim(left)
        run.prefilled = cached
        if run.started_s < 0:
            run.started_s, run.cached = self.now, cached
        return True

    def _find(self, run: Run, prefixes: PrefixPool) -> tuple[list[Chunk], int, Chunk | None]:
        """(chunks of a prompt in the cache, tokens that need not be computed, blocks of its own that are left)."""
        found, tokens, cached = [], 0, prefixes.cached
        for key, end, _ in run.keys:
            chunk = cached.get(key)
            if chunk is None:
                break
            found.append(chunk)
            tokens = end
        left = run.left if len(found) == len(run.keys) and run.left in prefixes.queue else None
        if left is not None:
            block, weight = self.memory.growing[0]
            tokens += left.units // weight * block
        if tokens >= run.prompt:
            block = max(block for block, _ in self.memory.growing)
            tokens = (run.prompt - 1) // block * block
        return found, tokens, left

    def _grown(self, tokens: int) -> int:
        return 0 if self.rules.reserves_answer else self.memory.grown(tokens)

    def _compute(self, run: Run, room: int, ahead: int, prompts: list[tuple[int, int]], ready: list[Run]) -> int:
        """Schedules as much of a prompt as fits in the step's tokens; returns how much, none where memory lacks."""
        prior = run.prefilled
        new = min(run.prompt - prior, room)
        units = self._grown(prior + new) - self._grown(prior)
        if new <= 0 or not self._fits(units, ahead):
            return 0
        self.held += units
        run.prefilled = prior + new
        prompts.append((new, prior))
        if run.keys:
            self._keep(run)
        if run.prefilled == run.prompt:
            self.partial = None
            ready.append(run)
        else:
            self.partial = run
        return new

    def _keep(self, run: Run) -> None:
        """Makes what is computed of its prompt findable, as the engine does when it schedules it."""
        prefixes = self.prefixes
        if prefixes is None:
            return
        for key, end, units in run.keys[len(run.chunks) :]:
            if end > run.prefilled:
                return
            run.chunks.append(prefixes.hold(units, key))
            run.shared += units
            self.held -= units

    def _run_prompts(self, batch: int, prompts: list[tuple[int, int]], ready: list[Run]) -> None:
        growth = self.growth
        seconds = self.times.mixed(batch, growth.tokens if batch else 0, prompts)
        self.began = self.now
        self.now += seconds
        self.busy_s += seconds
        if batch:
            growth.clock += 1
        elif growth.batch:
            self.stalled_s += seconds
        self.observer.step(self, seconds, batch, sum(new for new, _ in prompts))
        if batch:
            self._finish()
        for run in ready:
            self._emit(run)
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
        self.held -= self._grown(run.prompt)
        run.own = self.growth.join(run.prompt)
        at = run.finish_at = self.growth.clock + left
        if at in self.ending:
            self.ending[at].append(run)
        else:
            self.ending[at] = [run]
            heappush(self.ends, at)

    def _stride(self, until: float) -> None:
        """Steps of decodes alone: up to the first that starts at a time or later, at least one, or to one that ends a
        request."""
        growth = self.growth
        batch = growth.batch
        steps = self.ends[0] - growth.clock
        seconds, slope = self.times.decode(batch, growth.tokens)
        each = slope * batch
        wanted = until - self.now
        if steps * seconds > wanted:
            steps = min(steps, _steps_in(wanted, seconds, each))
        if not self._fits(0, steps):
            steps = self._steps_that_fit(steps)
            if not steps:
                self._preempt(self._last())
                return
        steps = min(steps, LONGEST_STRIDE)
        before = (steps - 1) * (seconds + each * (steps - 2) / 2)
        taken = steps * (seconds + each * (steps - 1) / 2)
        self.began = self.now + before
        self.now += taken
        self.busy_s += taken
        growth.clock += steps
        if self.stalled_s:
            self.observer.step(self, seconds + self.stalled_s, batch, 0)
            self.stalled_s = 0.0
            steps -= 1
        if steps:
            self.observer.step(self, taken / steps, steps * batch, 0)
        if self.leaving:
            self._let_go()
        if self.ends[0] <= growth.clock:
            self._finish()
            if not self.rules.sees_late:
                self._let_go()

    def _steps_that_fit(self, steps: int) -> int:
        """The most of so many steps whose blocks there are."""
        low, high = 0, steps
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(0, middle) else (low, middle)
        return low

    def _finish(self) -> None:
        """Requests that got their last token in the step just done."""
        growth = self.growth
        while self.ends and self.ends[0] <= growth.clock:
            for run in self.ending.pop(heappop(self.ends)):
                self.held += self._grown(growth.clock + run.own)
                growth.leave(run.own)
                self._end(run)

    def _end(self, run: Run) -> None:
        run.ended = True
        self.leaving.append(run)
        self.observer.done(run, self.now)

    def _let_go(self) -> None:
        """The blocks and slots of requests that have ended."""
        for run in self.leaving:
            tokens = run.request.input_tokens + run.request.output_tokens - 1
            del self.running[run]
            self._release(run, tokens)
        self.leaving.clear()

    def _release(self, run: Run, tokens: int) -> None:
        """A request's units, of so many cached tokens, that growth does not count."""
        total = run.request.input_tokens + run.request.output_tokens
        fixed = self.memory.whole(total) if self.rules.reserves_answer else self.memory.fixed(total)
        units = self._grown(tokens) + fixed - run.shared
        prefixes = self.prefixes
        if prefixes is not None:
            prefixes.settle(self.growth.units(0) + self.held)
            run.left = prefixes.drop(units)
            for chunk in reversed(run.chunks):
                prefixes.free(chunk)
            run.chunks, run.shared = [], 0
        self.held -= units
        self.blocked = False

    def _preempt(self, run: Run) -> None:
        """Its blocks are let go, and it waits before all others to be computed again."""
        run.emitted = self._written(run)
        self._stop(run)
        run.preemptions += 1
        run.prompt = run.request.input_tokens + run.emitted
        run.prefilled = 0
        run.finish_at = -1
        if len(self.memory.growing) != 1 or self.memory.bounded or self.memory.state_units:
            run.left = None  # what of it is left cannot be told from its blocks alone
        self.waiting.appendleft(run)

    def _last(self) -> Run:
        """The one that started last of those that have not ended."""
        return next(run for run in reversed(self.running) if not run.ended)

    def _written(self, run: Run) -> int:
        """Tokens that a request has given so far."""
        if run.finish_at < 0:
            return run.emitted
        return run.request.output_tokens - (run.finish_at - self.growth.clock)

    def _stop(self, run: Run) -> None:
        """A request that runs no longer, before its end."""
        del self.running[run]
        tokens = run.prefilled
        if run is self.partial:
            self.partial = None
        else:
            self.ending[run.finish_at].remove(run)
            tokens = self.growth.clock + run.own
            self.held += self._grown(tokens)
            self.growth.leave(run.own)
        self._release(run, tokens)

    def _expire(self) -> None:
        """Cancels requests whose time is over."""
        limit = self.now - (self.rules.timeout_s or 0.0)
        while self.ages and (self.ages[0].ended or self.ages[0].request.arrival_s <= limit):
            run = self.ages.popleft()
            if run.ended:
                continue
            run.emitted = self._written(run)
            if run in self.running:
                self._stop(run)
            else:
                self.waiting.remove(run)
            run.ended = True
            self.observer.cancelled(run, self.now)


def _steps_in(wanted_s: float, first_s: float, each_s: float) -> int:
    """The fewest steps, at least one, that take this long, each so much longer than the one before."""
    base = first_s - each_s / 2
    exact = 2 * wanted_s / (base + sqrt(base * base + 2 * each_s * wanted_s)) if wanted_s > 0 else 0.0
    return max(1, -int(-exact // 1))
