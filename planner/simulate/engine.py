"""One data-parallel rank of a serving engine: continuous batching over a block pool, step by step.

Scheduling follows vLLM 0.33, v1/core/sched/scheduler.py: running requests first, then waiting ones in order of arrival;
prompts in chunks; blocks on demand; where they run out the request that started last is preempted and computed anew.
A step costs no more for a larger batch, and steps of decodes alone are done in closed form.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil, inf, sqrt

from planner.simulate.hashes import Hashes
from planner.simulate.requests import Request
from planner.simulate.room import Room
from planner.simulate.rules import Memory, Rules
from planner.simulate.run import Observer, Run, Times

LONGEST_STRIDE = 512
"""Steps done at once: over so many the time of a step grows linearly."""


class Engine(Room):
    """Requests in, times out: `submit` in order of arrival, `advance` as far as time goes."""

    def __init__(
        self, memory: Memory, rules: Rules, times: Times, observer: Observer, hashes: Hashes | None = None
    ) -> None:
        """hashes: how the load's hash ids name chunks; None: nothing is shared"""
        super().__init__(memory, rules, hashes if rules.prefix_caching else None)
        self.times, self.observer = times, observer
        self.most_running = min(rules.max_seqs, rules.max_tokens, memory.most_requests or rules.max_seqs)
        self.longest = memory.longest_of(rules)
        """Tokens of the longest request that it takes, input and output together."""
        self.waiting: deque[Run] = deque()
        self.deadlines: list[tuple[float, int, Run]] = []
        """A heap, where requests are cancelled after a time."""
        self.submitted = 0
        self.now = self.began = 0.0
        """When the next step starts, and when it is scheduled: as it starts, or as the one before it does."""
        self.stalled: list[tuple[float, int]] = []
        """(since when, how many) of those whose decodes wait for prompts, in the order in which they began to."""
        self.busy_s = 0.0
        self.together: Callable[[float], None] | None = None
        """Advances it with others, without whom it does no step."""

    def submit(self, request: Request, seen_s: float) -> Run | None:
        """A request that is in the queue from a time on, to which `advance` has come; None: too long, or queue full."""
        hashes, rules, waiting = self.hashes, self.rules, self.waiting
        parts = hashes.parts(request) if hashes is not None and request.hash_ids else None
        run = Run(request, seen_s, parts)
        if run.tokens > self.longest or (rules.max_queue is not None and len(waiting) >= rules.max_queue):
            return None
        waiting.append(run)
        if rules.timeout_s is not None:
            self.submitted += 1
            heappush(self.deadlines, (request.arrival_s + rules.timeout_s, self.submitted, run))
        return run

    def takes(self, request: Request) -> bool:
        """Whether a request is not too long."""
        return request.input_tokens + request.output_tokens <= self.longest

    @property
    def requests(self) -> int:
        """Waiting and running."""
        return len(self.waiting) + len(self.running)

    def advance(self, until: float) -> None:
        """Runs every step that is scheduled before a time: what comes at that time or later cannot change them."""
        if self.together is not None:
            self.together(until)
            return
        waiting, running, growth, most = self.waiting, self.running, self.growth, self.most_running
        while self.began < until:
            target = self.expire(until) if self.deadlines else until
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
                self.decode(target)
            elif self.began < self.now:
                self._pause()
            elif target < until:
                self.now = self.began = target
            else:
                return

    def due_s(self) -> float:
        """When the next step that may have a prompt is scheduled, at the earliest: until then decodes are alone."""
        if self.partial is not None:
            return self.began
        if self.waiting and self.lack <= 0 and len(self.running) < self.most_running:
            return self.waiting[0].seen_s
        return self.began if self.waiting and self.leaving else inf  # those that leave make room

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
        lost = [run for run in (*self.running, *self.waiting) if run.end_s < 0]
        together, now, began, busy_s = self.together, self.now, self.began, self.busy_s
        Engine.__init__(self, self.memory, self.rules, self.times, self.observer, self.hashes)
        self.together, self.now, self.began, self.busy_s = together, now, began, busy_s
        return lost

    def _pause(self) -> None:
        """Nothing could be scheduled in time: the next step is when the last one has ended."""
        self.let_go()
        self.began = self.now

    def _step(self) -> None:
        """One step with prompts; of decodes alone where none can start."""
        growth, prompts = self.growth, self.schedule()
        if prompts:
            batch = growth.batch if self.rules.mixes else 0
            self.complete(batch, self.times.mixed(batch, growth.tokens if batch else 0, prompts))
        elif growth.batch:
            self.decode(self.began)
        else:
            self._pause()

    def schedule(self) -> list[tuple[int, int]]:
        """Chooses what the next step computes of prompts, as Times.mixed takes it; makes room for its decodes."""
        growth, mixes = self.growth, self.rules.mixes
        ahead = 1 if mixes and growth.batch else 0
        preempted = self.lacks(0, ahead)
        if preempted:
            self.make_room()
        room = self.rules.max_tokens - (growth.batch if mixes else 0)
        prompts: list[tuple[int, int]] = []
        partial = self.partial
        if partial is not None:
            prior = partial.prefilled
            new = min(partial.prompt - prior, room)
            if self.lacks(self._grown(prior + new) - self._grown(prior), ahead):
                self._preempt(partial)
                preempted = True
            else:
                room -= self._compute(partial, new, prompts)
        if not preempted and room and self.partial is None:
            self._start_waiting(room, ahead, prompts)
        if not prompts:
            self.make_room()
        return prompts

    def _start_waiting(self, room: int, ahead: int, prompts: list[tuple[int, int]]) -> None:
        """Requests that wait, in order, as long as slots, tokens and memory last.

        ahead: as `lacks` takes it
        """
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

    def complete(self, batch: int, seconds: float) -> None:
        """The step that was scheduled takes so long, with so many decodes in it."""
        growth, decoding = self.growth, self.growth.batch
        if self.leaving:
            self.let_go()
        self.began = self.now
        self.now += seconds
        self.busy_s += seconds
        if batch:
            if self.stalled:
                self._resume(self.now)
            else:
                self.observer.gaps.add(seconds, batch)
            growth.clock += 1
            if growth.ends[0] <= growth.clock:
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
        if steps:
            self.growth.join(run, steps)
        else:
            self.end([run])

    def decode(self, target: float) -> None:
        """Steps of decodes alone, up to the first scheduled at a time or later, or where one who waits may be seen.

        They are done as many at once as end no request before the last of them.
        """
        growth, late, waiting, gaps = self.growth, self.rules.sees_late, self.waiting, self.observer.gaps
        ends, priced = growth.ends, self.times.decode
        leaving, stalled, now = self.leaving, self.stalled, self.now
        while True:
            batch, clock = growth.batch, growth.clock
            steps = ends[0] - clock
            seconds, slope = priced(batch, batch * clock + growth.offset)
            wanted = target - now
            if wanted <= 0:
                steps = 1
            elif steps * seconds > wanted and (enough := _steps_in(wanted, seconds, slope) + late) < steps:
                steps = enough
            if steps > LONGEST_STRIDE:
                steps = LONGEST_STRIDE
            if self.lacks(0, steps):
                steps = self._steps_that_fit(steps)
                if not steps:
                    self.make_room()
                    batch, steps = growth.batch, 1
                    if not batch:
                        self._pause()
                        return
                    seconds, slope = priced(batch, growth.tokens)
            last = seconds + slope * (steps - 1)
            taken = steps * (seconds + last) / 2
            self.now = now = now + taken
            self.began = began = now - last if late else now
            self.busy_s += taken
            growth.clock = clock + steps
            if stalled:
                self._resume(now - taken + seconds)
                taken, steps = taken - seconds, steps - 1
            if steps:
                gaps.add(taken / steps, steps * batch)
            if leaving:
                self.let_go()
            if ends[0] <= growth.clock:
                self.finish()
            if began >= target or not growth.batch or (waiting and waiting[0].seen_s < target):
                return

    def _resume(self, now: float) -> None:
        """The first step of decodes since prompts made them wait has ended."""
        for since_s, waited in self.stalled:
            self.observer.gaps.add(now - since_s, waited)
        self.stalled.clear()

    def make_room(self) -> None:
        """Preempts those that started last until the others can take one more step."""
        while self.lacks(0, 1):
            self._preempt(next(reversed(self.running)))

    def finish(self) -> None:
        """Requests that got their last token in the step just done."""
        self.end(self.growth.ended())
        if not self.rules.sees_late:
            self.let_go()

    def end(self, runs: list[Run]) -> None:
        """They got their last token in the step just done."""
        now = self.now
        for run in runs:
            run.end_s = now
        self.leaving += runs
        self.observer.done(runs)

    def let_go(self) -> None:
        """The blocks and slots of requests that have ended."""
        running = self.running
        for run in self.leaving:
            del running[run]
        self._release(self.leaving)
        self.leaving.clear()

    def _preempt(self, run: Run) -> None:
        """Its blocks are let go, and it waits before all others to be computed again; one that has ended is gone."""
        if run.end_s >= 0:
            self.leaving.remove(run)
            del self.running[run]
            self._release([run])
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
            growth.leave(run)
            run.emitted = run.request.output_tokens - (run.finish_at - growth.clock)
            if self.stalled:
                since_s, waited = self.stalled.pop()
                if waited > 1:
                    self.stalled.append((since_s, waited - 1))
        self._release([run], again)

    def expire(self, until: float) -> float:
        """Cancels requests whose time is over when the next step is scheduled; returns the next such time, or until."""
        deadlines, waiting = self.deadlines, self.waiting
        while deadlines and (deadlines[0][0] <= self.began or deadlines[0][2].end_s >= 0):
            _, _, run = heappop(deadlines)
            if run.end_s >= 0:
                continue
            if run in self.running:
                self._stop(run)
            else:
                if run is waiting[0]:
                    self.lack = 0
                waiting.remove(run)
            run.end_s = self.now
            self.observer.cancelled(run)
        return min(until, deadlines[0][0]) if deadlines else until


def _steps_in(wanted_s: float, first_s: float, each_s: float) -> int:
    """The fewest steps that take this long, each so much longer than the one before."""
    base = first_s - each_s / 2
    return ceil(2 * wanted_s / (base + sqrt(base * base + 2 * each_s * wanted_s)))
