"""Several replicas behind a router: where each request goes, and what fails under it."""

import gc
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import islice
from operator import attrgetter
from random import Random

from planner.errors import InputError
from planner.simulate.engine import Engine
from planner.simulate.loads import ClosedLoop, Load
from planner.simulate.lockstep import Lockstep
from planner.simulate.measures import Meter, Point
from planner.simulate.requests import Request
from planner.simulate.run import Run
from planner.units import ceil_div, show_seconds

ROUTINGS = ("round-robin", "least-loaded", "prefix-aware")
SENT_AHEAD = 256
"""Requests that are sent, to all engines together, before these do their steps, which they then do faster."""
TOLD = 4096
"""Requests between two tellings of progress."""
MATCH_SHARE = 0.3
"""Of a prompt's tokens that a replica must hold for a request to follow its prefix."""
IMBALANCE_REQUESTS, IMBALANCE_RATIO = 64, 1.5
"""Beyond both, the replica with fewest requests is chosen whatever it holds."""

_arrival_s = attrgetter("arrival_s")

MOST_FAILURES = 20_000
"""Of nodes, that a simulation goes through."""


@dataclass(frozen=True, slots=True)
class Failures:
    """How often nodes fail, and for how long."""

    mtbf_s: float
    """Of one node."""
    mttr_s: float
    engines_per_node: int
    seed: int


@dataclass(slots=True)
class Outages:
    """When nodes fail and come back: independent, exponential times between failures, and a fixed time to repair."""

    failures: Failures
    nodes: int
    events: list[tuple[float, int]]
    """A heap: when each node fails next."""
    random: Random
    count: int = 0
    down_s: float = 0.0

    @classmethod
    def over(cls, engines: int, failures: Failures) -> "Outages":
        """Of a fleet of so many engines."""
        nodes = ceil_div(engines, failures.engines_per_node)
        random = Random(f"{failures.seed} failures")  # noqa: S311 - no secret
        events = [(random.expovariate(1 / failures.mtbf_s), node) for node in range(nodes)]
        heapify(events)
        return cls(failures, nodes, events, random)

    def before(self, time_s: float) -> Iterator[tuple[float, int, float]]:
        """(when, node, when it is back) of each failure up to a time.

        raises: InputError beyond MOST_FAILURES, as where nodes fail before any request can end
        """
        while self.events and self.events[0][0] <= time_s:
            at_s, node = self.events[0]
            back_s = at_s + self.failures.mttr_s
            self.count += 1
            if self.count > MOST_FAILURES:
                raise InputError(
                    f"--failures: more than {MOST_FAILURES:,} nodes fail before the last request ends; spares.failures "
                    f"comes to a failure of each node every {show_seconds(self.failures.mtbf_s)} on average, too often "
                    "for requests to end, or for so long a load to be followed"
                )
            self.down_s += self.failures.mttr_s
            heapreplace(self.events, (back_s + self.random.expovariate(1 / self.failures.mtbf_s), node))
            yield at_s, node, back_s


@dataclass(slots=True)
class Result:
    """What a cluster did, or a part of it."""

    meter: Meter
    engines: int
    busy_s: float
    """Steps of all engines together."""
    last_arrival_s: float | None
    """None where answers decide when requests come."""
    outages: Outages | None = None
    facts: tuple[str, ...] = ()
    """What the load says of itself once it was read, here."""

    def merge(self, other: "Result") -> None:
        """Adds another part of the cluster."""
        self.meter.merge(other.meter)
        self.engines += other.engines
        self.busy_s += other.busy_s


@contextmanager
def _loaded_modules_unvisited() -> Iterator[None]:
    """The garbage collector leaves alone what is there already, which it would visit time and again for nothing."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Cluster:
    """Engines and the router before them."""

    def __init__(
        self,
        make: Callable[[Meter], Engine],
        count: int,
        meter: Meter,
        *,
        routing: str,
        delay_s: float = 0.0,
        failures: Failures | None = None,
        mine: range | None = None,
        together: int = 1,
    ) -> None:
        """make: an engine that a meter watches
        count: engines
        delay_s: of a request's way to an engine's queue
        mine: engines of a round robin that are simulated here, in no sight of the others; None: all
        together: engines, one after the other, whose steps are one another's
        """
        self.count, self.mine = count, mine or range(count)
        self.engines = [make(meter) for _ in self.mine]
        for first in range(0, len(self.engines), together) if together > 1 else ():
            Lockstep(self.engines[first : first + together])
        self.meter, self.routing, self.delay_s = meter, routing, delay_s
        self.back_s = [0.0] * count
        """When each engine works again."""
        self.outages = Outages.over(count, failures) if failures else None
        self.turn = 0

    @_loaded_modules_unvisited()
    def run(self, load: Load, progress: Callable[[int], None] = lambda _done: None) -> Result:
        """Everything that a load sends, to its end."""
        if self.outages is None and (self.routing == ROUTINGS[0] or self.count == 1):
            return self._drained(self._in_turn(load, progress))
        meter, series, now = self.meter, self.meter.series, 0.0
        for request in load.requests():
            now = request.arrival_s
            if now >= series.next_s:
                self._sample(now)
            self._break(now)
            meter.submitted += 1
            self._send(request, now)
            if not meter.submitted % TOLD:
                progress(meter.submitted)
        return self._drained(now)

    def _in_turn(self, load: Load, progress: Callable[[int], None]) -> float:
        """Sends each request to the next engine, whatever they do; returns when the last one came."""
        meter, series, count, now, told = self.meter, self.meter.series, self.count, 0.0, 0
        requests, together = load.requests(), ceil_div(SENT_AHEAD, count) * count
        while batch := list(islice(requests, together)):
            for scope in [request.scope for request in batch if request.scope]:
                meter.expect(scope)
            for engine in self.engines:
                engine.advance(batch[0].arrival_s)
            sent = 0
            while sent < len(batch):
                now = batch[sent].arrival_s
                if now >= series.next_s:
                    self._sample(now)
                until = bisect_left(batch, series.next_s, sent, key=_arrival_s)
                for place, engine in zip(self.mine, self.engines, strict=True):
                    self._offer_all(engine, batch[sent + (place - sent) % count : until : count])
                sent = until
            now = batch[-1].arrival_s
            if meter.submitted - told >= TOLD:
                told = meter.submitted
                progress(told)
        return now

    def _offer_all(self, engine: Engine, requests: list[Request]) -> None:
        """Hands requests over as they come, ahead of time where the queue is not bounded."""
        bounded, delay_s = engine.rules.max_queue is not None, self.delay_s
        self.meter.submitted += len(requests)
        for request in requests:
            if bounded:  # then it matters what is in the queue as a request comes
                engine.advance(request.arrival_s)
            if engine.submit(request, request.arrival_s + delay_s) is None:
                self._refused(engine, request)

    @_loaded_modules_unvisited()
    def run_closed(self, loop: ClosedLoop, progress: Callable[[int], None] = lambda _done: None) -> Result:
        """Users who each ask one replica again when it has answered.

        raises: ValueError with failures, which no closed loop has
        """
        if self.outages is not None:
            raise ValueError("a closed loop knows no failures")
        requests = loop.requests()
        for i, engine in enumerate(self.engines):
            engine.observer = _Asking(self, engine, requests, loop.think_s, progress)
            users = loop.users // len(self.engines) + (i < loop.users % len(self.engines))
            for request in islice(requests, users):
                self.meter.submitted += 1
                self._offer(engine, request, request.arrival_s)
        return self._drained(None)

    def _send(self, request: Request, now: float) -> None:
        engine = self._chosen(request, now)
        if engine is None:
            self.meter.turned_away += 1
            return
        self._offer(engine, request, now)

    def _offer(self, engine: Engine, request: Request, now: float) -> Run | None:
        """Hands a request over at a time; counts it where it is not taken."""
        run = engine.submit(request, now + self.delay_s)
        if run is None:
            self._refused(engine, request)
        return run

    def _refused(self, engine: Engine, request: Request) -> None:
        if engine.takes(request):
            self.meter.turned_away += 1
        else:
            self.meter.too_long += 1

    def _chosen(self, request: Request, now: float) -> Engine | None:
        """The engine that a request goes to, brought up to now; None where none works."""
        if self.routing == ROUTINGS[0]:
            for _ in self.engines:
                place = self.turn
                self.turn = (place + 1) % len(self.engines)
                if self.back_s[place] <= now:
                    self.engines[place].advance(now)
                    return self.engines[place]
            return None
        alive = [engine for engine, back_s in zip(self.engines, self.back_s, strict=True) if back_s <= now]
        for engine in alive:
            engine.advance(now)
        return self._best(alive, request) if alive else None

    def _best(self, engines: list[Engine], request: Request) -> Engine:
        """Fewest requests; with prefix-aware routing the one that holds most of the prompt, unless loads differ a lot.

        source: SGLang model gateway, cache_aware policy (cache_threshold, balance_abs_threshold, balance_rel_threshold)
        """
        idle = min(engines, key=lambda engine: engine.requests)
        if self.routing != "prefix-aware":
            return idle
        most = max(engine.requests for engine in engines)
        if most - idle.requests > IMBALANCE_REQUESTS and most > IMBALANCE_RATIO * idle.requests:
            return idle
        held, found = max(((engine.cached_tokens(request), engine) for engine in engines), key=lambda pair: pair[0])
        return found if held > MATCH_SHARE * request.input_tokens else idle

    def _break(self, now: float) -> None:
        """Nodes that fail up to now: their requests are sent again at once, to others."""
        outages = self.outages
        if outages is None:
            return
        each = outages.failures.engines_per_node
        for at_s, node, back_s in outages.before(now):
            lost = []
            for place in range(node * each, min((node + 1) * each, len(self.engines))):
                engine = self.engines[place]
                engine.advance(at_s)
                lost += engine.fail()
                engine.now = engine.began = max(engine.now, back_s)
                self.back_s[place] = back_s
            for run in lost:
                self.meter.restarted += 1
                self._send(run.request, at_s)

    def _sample(self, now: float) -> None:
        """Points of the series up to a time."""
        series, meter = self.meter.series, self.meter
        while series.next_s <= now:
            at_s = series.next_s
            for engine in self.engines:
                engine.advance(at_s)
            units = sum(engine.memory.units for engine in self.engines)
            series.add(
                Point(
                    at_s,
                    running=sum(len(engine.running) for engine in self.engines),
                    waiting=sum(engine.waiting_at(at_s) for engine in self.engines),
                    used_share=sum(engine.units_now() for engine in self.engines) / units,
                    submitted=meter.submitted,
                    done=meter.done_count,
                    units=units,
                )
            )

    def _drained(self, last_arrival_s: float | None) -> Result:
        """Time goes on until nothing is left."""
        series = self.meter.series
        self._sample(last_arrival_s or 0.0)
        self.meter.arriving = series.so_far()
        while any(engine.requests for engine in self.engines):
            if self.outages is not None:
                self._break(series.next_s)
            self._sample(series.next_s)
        self.meter.count()
        busy_s = sum(engine.busy_s for engine in self.engines)
        return Result(self.meter, len(self.engines), busy_s, last_arrival_s, self.outages)


class _Asking:
    """Watches an engine of a closed loop: a user whose request ended asks again."""

    def __init__(
        self,
        cluster: Cluster,
        engine: Engine,
        requests: Iterator[Request],
        think_s: float,
        progress: Callable[[int], None],
    ) -> None:
        self.cluster, self.engine, self.requests, self.think_s, self.progress = (
            cluster, engine, requests, think_s, progress,
        )  # fmt: skip
        self.gaps = cluster.meter.gaps

    def done(self, runs: list[Run]) -> None:
        """Requests got their last token."""
        self.cluster.meter.done(runs)
        for run in runs:
            self._ask(run.end_s)

    def cancelled(self, run: Run) -> None:
        """A request did not end in time."""
        self.cluster.meter.cancelled(run)
        self._ask(run.end_s)

    def _ask(self, now: float) -> None:
        meter = self.cluster.meter
        for request in self.requests:
            request.arrival_s = now + self.think_s
            meter.submitted += 1
            if not meter.submitted % TOLD:
                self.progress(meter.submitted)
            if self.cluster._offer(self.engine, request, request.arrival_s):
                return
