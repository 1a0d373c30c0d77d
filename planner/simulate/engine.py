"""One data-parallel rank of a serving engine: continuous batching over a block pool, step by step.

Scheduling follows vLLM 0.33, v1/core/sched/scheduler.py: running requests first, then waiting ones in order of arrival;
prompts in chunks; blocks on demand; where they run out the request that started last is preempted and computed anew.
A step costs no more for a larger batch, and steps of decodes alone are done in closed form.
"""

from collections import deque
from heapq import heappop, heappush
from math import ceil, sqrt

from planner.simulate.hashes import Hashes
from planner.simulate.requests import Request
from planner.simulate.room import Room
from planner.simulate.rules import MOST_TOKENS, Memory, Rules
from planner.simulate.run import Observer, Run
from planner.simulate.sprint import sprint
from planner.simulate.steps import StepTimes

LONGEST_STRIDE = 512
"""Steps done at once: over so many the time of a step grows linearly."""


class Engine(Room):
    """Requests in, times out: `submit` in order of arrival, `advance` as far as time goes."""

    def __init__(
        self, memory: Memory, rules: Rules, times: StepTimes, observer: Observer, hashes: Hashes | None = None
    ) -> None:
        """hashes: how the load's hash ids name chunks; None: nothing is shared"""
        super().__init__(memory, rules, hashes)
        self.times, self.observer = times, observer
        self.most_running = min(rules.max_seqs, rules.max_tokens, memory.most_requests or rules.max_seqs)
        self.longest = memory.longest_of(rules)
        """Tokens of the longest request that it takes, input and output together."""
        self.waiting: deque[Run] = deque()
        self.ending: dict[int, list[Run]] = {}
        """Decoding ones by Growth.clock after their last step."""
        self.ends: list[int] = []
        """A heap of its keys."""
        self.deadlines: list[tuple[float, int, Run]] = []
        """A heap, where requests are cancelled after a time."""
        self.submitted = 0
        self.now = self.began = 0.0
        """When the next step starts, and when it is scheduled: as it starts, or as the one before it does."""
        self.stalled: list[tuple[float, int]] = []
        """(since when, how many) of those whose decodes wait for prompts, in the order in which they began to."""
        self.busy_s = 0.0
        self.common = rules.sees_late and rules.mixes and rules.timeout_s is None and hashes is None
        """sprint may be tried."""

    def submit(self, request: Request, seen_s: float) -> Run | None:
        """A request that is in the queue from a time on, to which `advance` has come; None: the queue is full.

        raises: ValueError for one that is too long
        """
        rules = self.rules
        if rules.max_queue is not None and len(self.waiting) >= rules.max_queue:
            return None
        hashes = self.hashes
        parts = hashes.parts(request) if hashes is not None and request.hash_ids and rules.prefix_caching else None
        run = Run(request, seen_s, parts)
        if run.tokens > self.longest:
            raise ValueError(f"a request of {run.tokens:,} tokens, of at most {self.longest:,}")
        self.waiting.append(run)
        if rules.timeout_s is not None:
            self.submitted += 1
            heappush(self.deadlines, (request.arrival_s + rules.timeout_s, self.submitted, run))
        return run

    @property
    def requests(self) -> int:
        """Waiting and running."""
        return len(self.waiting) + len(self.running)

    def advance(self, until: float) -> None:
        """Runs every step that is scheduled before a time: what comes at that time or later cannot change them."""
        waiting, running, growth, most = self.waiting, self.running, self.growth, self.most_running
        while self.began < until:
            if self.common and self.partial is None and self.lack <= 0 and self.promised <= self.sure_tokens:
                sprint(self, until)
                if self.began >= until:
                    return
            target = self._expire(until) if self.deadlines else until
            if self.partial is not None:
                self._step()
                continue
            if not waiting:
                pass
            elif self.lack <= 0 and len(running) < most:
                seen_s = waiting[0].seen_s
                if seen_s <= self.began:
                    self._step()
                    continue
                if seen_s < target:
                    target = seen_s
            elif self.leaving:
                target = self.began  # one step: those that leave then make room
            if growth.batch:
                self.stride(target)
            elif self.began < self.now:
                self._pause()
            elif target < until:
                self.now = self.began = target
            else:
                return

    def waiting_at(self, time_s: float) -> int:
        """Requests that wait and were in the queue at a time; those that came later are at its end."""
        later = 0
        for run in reversed(self.waiting):
            if run.seen_s <= time_s:
                break
            later += 1
        return len(self.waiting) - later

    def fail(self) -> list[Run]:
        """Everything in it is lost, the cache too; returns the requests that had not ended."""
        lost = [run for run in (*self.running, *self.waiting) if not run.ended]
        fresh = Engine(self.memory, self.rules, self.times, self.observer, self.hashes)
        fresh.now, fresh.began, fresh.busy_s = self.now, self.began, self.busy_s
        self.__dict__.update(fresh.__dict__)
        return lost

    def _pause(self) -> None:
        """Nothing could be scheduled in time: the next step is when the last one has ended."""
        self.let_go()
        self.began = self.now

    def _step(self) -> None:
        """One step with prompts; of decodes alone where none can start."""
        growth, mixes = self.growth, self.rules.mixes
        ahead = 1 if mixes and growth.batch else 0
        free = self._free(ahead) if self.promised > self.sure_tokens else MOST_TOKENS
        preempted = free < 0
        if preempted:
            self._make_room()
            free = self._free(ahead)
        batch = growth.batch if mixes else 0
        room = self.rules.max_tokens - batch
        prompts: list[tuple[int, int]] = []
        partial = self.partial
        if partial is not None:
            prior = partial.prefilled
            new = min(partial.prompt - prior, room)
            if free < self._grown(prior + new) - self._grown(prior):
                self._preempt(partial)
                preempted = True
            else:
                room -= self._compute(partial, new, prompts)
        if not preempted and room and self.partial is None:
            self._start_waiting(room, ahead, prompts)
        if prompts:
            self._run_prompts(batch, prompts)
        elif growth.batch:
            self.stride(self.began)
        else:
            self._pause()

    def _start_waiting(self, room: int, ahead: int, prompts: list[tuple[int, int]]) -> None:
        """Requests that wait, in order, as long as slots, tokens and memory last."""
        waiting, running = self.waiting, self.running
        while waiting and room and waiting[0].seen_s <= self.began and len(running) < self.most_running:
            run = waiting[0]
            if not self._start(run, room, ahead):
                return
            waiting.popleft()
            self.lack = 0
            running[run] = None
            if run.started_s < 0:
                run.started_s, run.cached = self.now, run.prefilled
            room -= self._compute(run, min(run.prompt - run.prefilled, room), prompts)

    def _compute(self, run: Run, new: int, prompts: list[tuple[int, int]]) -> int:
        """Schedules so much of a prompt, which fits; returns it."""
        prompts.append((new, run.prefilled))
        run.prefilled += new
        if run.parts is not None and self.sharing is not None:
            self.still -= self.sharing.keep(run)
        if run.prefilled == run.prompt:
            self.partial = None
            self.ready.append(run)
        else:
            self.partial = run
        return new

    def _run_prompts(self, batch: int, prompts: list[tuple[int, int]]) -> None:
        growth, decoding = self.growth, self.growth.batch
        seconds = self.times.mixed(batch, growth.tokens if batch else 0, prompts)
        if self.leaving:
            self.let_go()
        self.began = self.now
        self.now += seconds
        self.busy_s += seconds
        if batch:
            self.observer.steps(seconds, batch)
            growth.clock += 1
            if self.ends[0] <= growth.clock:
                self.finish()
        elif decoding and not self.stalled:
            self.stalled.append((self.began, decoding))
        for run in self.ready:
            if run.first_s < 0:
                run.first_s = self.now
            self.answer(run, run.request.output_tokens - run.emitted - 1)
        self.ready.clear()
        if self.stalled and growth.batch > decoding:
            self.stalled.append((self.now, growth.batch - decoding))
        if not self.rules.sees_late:
            self._pause()

    def answer(self, run: Run, steps: int) -> None:
        """A prompt is done: from now on every step gives a token, if any is left to give."""
        if not steps:
            self._end(run)
            return
        growth, ending = self.growth, self.ending
        run.own = growth.join(run.prompt)
        at = run.finish_at = growth.clock + steps
        if at in ending:
            ending[at].append(run)
        else:
            ending[at] = [run]
            heappush(self.ends, at)

    def stride(self, target: float) -> None:
        """Steps of decodes alone: up to the first scheduled at a time or later, or that ends a request."""
        growth, late = self.growth, self.rules.sees_late
        batch, steps = growth.batch, self.ends[0] - growth.clock
        seconds, slope = self.times.decode(batch, batch * growth.clock + growth.offset)
        wanted = target - self.now
        if wanted <= 0:
            steps = 1
        elif steps * seconds > wanted and (enough := _steps_in(wanted, seconds, slope) + late) < steps:
            steps = enough
        if steps > LONGEST_STRIDE:
            steps = LONGEST_STRIDE
        if self.promised > self.sure_tokens and self._free(steps) < 0:
            steps = self._steps_that_fit(steps)
            if not steps:
                self._make_room()
                batch, steps = growth.batch, 1
                if not batch:
                    self._pause()
                    return
                seconds, slope = self.times.decode(batch, growth.tokens)
        last = seconds + slope * (steps - 1)
        taken = steps * (seconds + last) / 2
        self.now += taken
        self.began = self.now - last if late else self.now
        self.busy_s += taken
        growth.clock += steps
        if self.stalled:
            for since_s, waited in self.stalled:
                self.observer.steps(self.now - taken + seconds - since_s, waited)
            self.stalled.clear()
            taken, steps = taken - seconds, steps - 1
        if steps:
            self.observer.steps(taken / steps, steps * batch)
        if self.leaving:
            self.let_go()
        if self.ends[0] <= growth.clock:
            self.finish()

    def _make_room(self) -> None:
        """Preempts those that started last until the others can take one more step."""
        while self.promised > self.sure_tokens and self._free(1) < 0:
            self._preempt(next(reversed(self.running)))

    def finish(self) -> None:
        """Requests that got their last token in the step just done."""
        growth, ends = self.growth, self.ends
        while ends and ends[0] <= growth.clock:
            for run in self.ending.pop(heappop(ends)):
                growth.leave(run.own)
                run.prefilled = growth.clock + run.own
                self._end(run)
        if not self.rules.sees_late:
            self.let_go()

    def _end(self, run: Run) -> None:
        run.ended = True
        self.leaving.append(run)
        self.observer.done(run, self.now)

    def let_go(self) -> None:
        """The blocks and slots of requests that have ended."""
        for run in self.leaving:
            del self.running[run]
            self._release(run)
        self.leaving.clear()

    def _preempt(self, run: Run) -> None:
        """Its blocks are let go, and it waits before all others to be computed again; one that has ended is gone."""
        if run.ended:
            self.leaving.remove(run)
            del self.running[run]
            self._release(run)
            return
        self._stop(run, again=True)
        run.preemptions += 1
        run.prompt = run.request.input_tokens + run.emitted
        run.prefilled = 0
        self.waiting.appendleft(run)
        self.lack = 0

    def _stop(self, run: Run, *, again: bool = False) -> None:
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
            if self.stalled:
                since_s, waited = self.stalled.pop()
                if waited > 1:
                    self.stalled.append((since_s, waited - 1))
        self._release(run, again=again)

    def _expire(self, until: float) -> float:
        """Cancels requests whose time is over when the next step is scheduled; returns the next such time, or until."""
        deadlines, waiting = self.deadlines, self.waiting
        while deadlines and (deadlines[0][0] <= self.began or deadlines[0][2].ended):
            _, _, run = heappop(deadlines)
            if run.ended:
                continue
            if run in self.running:
                self._stop(run)
            else:
                if run is waiting[0]:
                    self.lack = 0
                waiting.remove(run)
            run.ended = True
            self.observer.cancelled(run, self.now)
        return min(until, deadlines[0][0]) if deadlines else until


def _steps_in(wanted_s: float, first_s: float, each_s: float) -> int:
    """The fewest steps that take this long, each so much longer than the one before."""
    base = first_s - each_s / 2
    return ceil(2 * wanted_s / (base + sqrt(base * base + 2 * each_s * wanted_s)))
