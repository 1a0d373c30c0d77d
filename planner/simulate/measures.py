"""What a simulation measures: times of requests, gaps between tokens, counts, and how full the engines were."""

from copy import copy
from dataclasses import dataclass, replace
from operator import sub

from planner.simulate.quantiles import Gaps, Quantiles
from planner.simulate.run import Run

MOST_POINTS = 120
"""Of a series over time; when there are more, every second one is left out and they are twice as far apart."""
FIRST_EVERY_S = 1 / 64
"""Between the points of a short series; a power of two, so that points of parts of a fleet fall together."""
MOST_SCOPES = 10_000
"""Scopes whose hits are counted one by one; those that come later are counted together."""
OTHER_SCOPES = "(others)"
COUNTED_AT_ONCE = 512
"""Requests that have ended: they are counted faster together, but not so many that caches cannot hold them."""
COUNTS = (
    "submitted", "counted", "good", "in_time", "too_long", "turned_away", "cancelled_count", "restarted",
    "input_tokens", "output_tokens", "cached_tokens", "preemptions",
)  # fmt: skip
"""Of a meter, those that sum over parts of a fleet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must keep to count as good; None: not asked for."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    """Of a request's own mean."""


@dataclass(frozen=True, slots=True)
class Point:
    """All engines at one time."""

    time_s: float
    running: int
    waiting: int
    used_share: float
    """Of all pools' units."""
    submitted: int
    done: int
    units: int = 1
    """Of all pools; of a part of the fleet too, once it is idle."""


class Series:
    """Points at even steps of time, fewer and wider apart the longer it goes on."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.every_s = FIRST_EVERY_S
        self.next_s = 0.0

    def add(self, point: Point) -> None:
        """A point at next_s."""
        self.points.append(point)
        if len(self.points) > MOST_POINTS:
            self.points = self.points[::2]
            self.every_s *= 2
        self.next_s = self.points[-1].time_s + self.every_s

    def so_far(self) -> "Series":
        """A copy of it as it is now."""
        found = copy(self)
        found.points = list(self.points)
        return found

    def merge(self, other: "Series") -> None:
        """Adds what another part of the fleet did; a part that was done earlier does nothing later."""
        self.every_s = max(self.every_s, other.every_s)
        mine, others = (self._at(points) for points in (self.points, other.points))
        times = max((mine, others), key=len)
        self.points = [
            _together(time_s, mine.get(time_s) or _after(self.points), others.get(time_s) or _after(other.points))
            for time_s in times
        ]

    def _at(self, points: list[Point]) -> dict[float, Point]:
        """By time, as far apart as the wider of two series."""
        return {point.time_s: point for point in points if point.time_s % self.every_s == 0}


def _after(points: list[Point]) -> Point:
    """A part of the fleet once its last request has ended."""
    last = points[-1] if points else Point(0.0, 0, 0, 0.0, 0, 0, 0)
    return replace(last, running=0, waiting=0, used_share=0.0)


def _together(time_s: float, one: Point, two: Point) -> Point:
    """Two parts of a fleet at one time."""
    units = one.units + two.units
    used = (one.used_share * one.units + two.used_share * two.units) / units if units else 0.0
    return Point(
        time_s,
        one.running + two.running,
        one.waiting + two.waiting,
        used,
        one.submitted + two.submitted,
        one.done + two.done,
        units,
    )


class Meter:
    """What engines are watched by."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.ttft, self.tpot, self.e2e = Quantiles(), Quantiles(), Quantiles()
        self.queued = Quantiles()
        """From a request's arrival to its first step."""
        self.gaps = Gaps()
        self.series = Series()
        self.arriving = self.series
        """The series up to the last arrival."""
        self.submitted = self.counted = self.good = self.in_time = 0
        self.too_long = self.turned_away = self.cancelled_count = self.restarted = 0
        self.input_tokens = self.output_tokens = self.cached_tokens = self.preemptions = 0
        self.last_s = 0.0
        self.scopes: dict[str, list[int]] = {}
        """Requests, input tokens and cached ones by scope, of requests that name a scope or a prefix."""
        self.ended: list[Run] = []
        """Those that are counted with the next ones, many at once."""

    @property
    def done_count(self) -> int:
        """Requests that got their last token."""
        return self.counted + len(self.ended)

    def done(self, runs: list[Run]) -> None:
        """Requests got their last token."""
        self.ended += runs
        if len(self.ended) >= COUNTED_AT_ONCE:
            self.count()

    def count(self) -> None:
        """Counts all requests that have ended by now: to be called before what they sum to is read."""
        runs, self.ended = self.ended, []
        requests = [run.request for run in runs]
        arrivals, outputs = [each.arrival_s for each in requests], [each.output_tokens for each in requests]
        firsts, ends = [run.first_s for run in runs], [run.end_s for run in runs]
        self.counted += len(runs)
        self.ttft.add_many(map(sub, firsts, arrivals))
        self.e2e.add_many(map(sub, ends, arrivals))
        self.queued.add_many(map(sub, [run.started_s for run in runs], arrivals))
        several = zip(firsts, ends, outputs, strict=True)
        self.tpot.add_many([(end - first) / (tokens - 1) for first, end, tokens in several if tokens > 1])
        self.output_tokens += sum(outputs)
        self.input_tokens += sum([each.input_tokens for each in requests])
        self.preemptions += sum([run.preemptions for run in runs])
        self.last_s = max(self.last_s, max(ends, default=0.0))
        in_time = [run for run in runs if self._in_time(run)] if self.limits.ttft_s is not None else runs
        self.in_time += len(in_time)
        self.good += sum(map(self._steady, in_time)) if self.limits.tpot_s is not None else len(in_time)
        for run in [run for run in runs if run.parts or run.request.scope]:
            self._hits(run.request.scope, run.request.input_tokens, run.cached)

    def _in_time(self, run: Run) -> bool:
        limit = self.limits.ttft_s
        return limit is None or run.first_s - run.request.arrival_s <= limit

    def _steady(self, run: Run) -> bool:
        limit = self.limits.tpot_s
        return limit is None or run.end_s - run.first_s <= limit * (run.request.output_tokens - 1)

    def expect(self, scope: str) -> None:
        """A scope that asks, by the order of which those are chosen that are counted one by one."""
        if len(self.scopes) < MOST_SCOPES:
            self.scopes.setdefault(scope, [0, 0, 0])

    def _hits(self, scope: str, tokens: int, cached: int) -> None:
        self.cached_tokens += cached
        self._add_hits(scope, 1, tokens, cached)

    def _add_hits(self, scope: str, requests: int, tokens: int, cached: int) -> None:
        found = self.scopes.get(scope)
        if found is None:
            scope = scope if len(self.scopes) < MOST_SCOPES else OTHER_SCOPES
            found = self.scopes.setdefault(scope, [0, 0, 0])
        found[0] += requests
        found[1] += tokens
        found[2] += cached

    def hits(self) -> dict[str, list[int]]:
        """Requests, input tokens and cached ones by scope, with the requests that name neither scope nor prefix."""
        found = {scope: list(counts) for scope, counts in self.scopes.items()}
        requests, tokens, _ = map(sum, zip(*found.values(), strict=True)) if found else (self.done_count, 0, 0)
        if requests < self.done_count:
            rest = found.setdefault("", [0, 0, 0])
            rest[0] += self.done_count - requests
            rest[1] += self.input_tokens - tokens
        return found

    def cancelled(self, run: Run) -> None:
        """A request did not end in time."""
        self.cancelled_count += 1
        self.preemptions += run.preemptions
        self.last_s = max(self.last_s, run.end_s)

    def merge(self, other: "Meter") -> None:
        """Adds what was seen of another part of the fleet, both counted."""
        for name in ("ttft", "tpot", "e2e", "queued", "gaps", "series", "arriving"):
            getattr(self, name).merge(getattr(other, name))
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.last_s = max(self.last_s, other.last_s)
        for scope, (requests, tokens, cached) in other.scopes.items():
            self._add_hits(scope, requests, tokens, cached)
