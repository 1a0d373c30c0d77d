"""What a simulation measures: times of requests, gaps between tokens, counts, and how full the engines were."""

from collections import Counter
from copy import copy
from dataclasses import dataclass, replace

from planner.simulate.quantiles import Quantiles
from planner.simulate.run import Run

GAPS_PER_S = 100_000
"""Gaps between tokens are counted by the 10 us that they lie in."""
MOST_POINTS = 240
"""Of a series over time; when there are more, every second one is left out and they are twice as far apart."""
FIRST_EVERY_S = 1 / 64
"""Between the points of a short series; a power of two, so that points of parts of a fleet fall together."""
MOST_SCOPES = 10_000
"""Scopes whose hits are counted one by one; those that come later are counted together."""
OTHER_SCOPES = "(others)"
COUNTS = (
    "submitted", "done_count", "good", "in_time", "too_long", "turned_away", "cancelled_count", "restarted",
    "input_tokens", "output_tokens", "cached_tokens", "preemptions",
)  # fmt: skip
"""Of a meter, those that sum over parts of a fleet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must keep to count as good; None: not asked for."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    """Of a request's own mean."""


class Gaps:
    """Times between tokens, of all requests together, by 10 us."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def add(self, seconds: float, gaps: int) -> None:
        """So many gaps of this length."""
        self.counts[int(seconds * GAPS_PER_S)] += gaps

    def at(self, share: float) -> float:
        """The gap that this share of all does not exceed: the middle of its 10 us [s].

        raises: ValueError where there are none
        """
        left = share * self.counts.total()
        for place in sorted(self.counts):
            left -= self.counts[place]
            if left <= 0:
                return (place + 0.5) / GAPS_PER_S
        raise ValueError("no gaps")

    @property
    def mean(self) -> float:
        """Of all [s]."""
        whole = sum((place + 0.5) * gaps for place, gaps in self.counts.items())
        return whole / self.counts.total() / GAPS_PER_S


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
        self.submitted = self.done_count = self.good = self.in_time = 0
        self.too_long = self.turned_away = self.cancelled_count = self.restarted = 0
        self.input_tokens = self.output_tokens = self.cached_tokens = self.preemptions = 0
        self.last_s = 0.0
        self.scopes: dict[str, list[int]] = {}
        """Requests, input tokens and cached ones by scope, of requests that name a scope or a prefix."""

    def steps(self, seconds: float, gaps: int) -> None:
        """Steps that took so long each, in which so many tokens followed another of their request."""
        self.gaps.counts[int(seconds * GAPS_PER_S)] += gaps

    def done(self, run: Run, end_s: float) -> None:
        """A request got its last token."""
        request, first_s = run.request, run.first_s
        arrival_s, tokens = request.arrival_s, request.output_tokens
        limits = self.limits
        ttft_s = first_s - arrival_s
        good = limits.ttft_s is None or ttft_s <= limits.ttft_s
        self.in_time += good
        self.ttft.add(ttft_s)
        self.e2e.add(end_s - arrival_s)
        self.queued.add(run.started_s - arrival_s)
        if tokens > 1:
            tpot_s = (end_s - first_s) / (tokens - 1)
            self.tpot.add(tpot_s)
            good = good and (limits.tpot_s is None or tpot_s <= limits.tpot_s)
        self.good += good
        self.done_count += 1
        self.output_tokens += tokens
        self.input_tokens += request.input_tokens
        self.preemptions += run.preemptions
        self.last_s = max(self.last_s, end_s)
        if run.parts or request.scope:
            self._hits(request.scope, request.input_tokens, run.cached)

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

    def cancelled(self, run: Run, end_s: float) -> None:
        """A request did not end in time."""
        self.cancelled_count += 1
        self.preemptions += run.preemptions
        self.last_s = max(self.last_s, end_s)

    def merge(self, other: "Meter") -> None:
        """Adds what was seen of another part of the fleet."""
        for name in ("ttft", "tpot", "e2e", "queued", "series", "arriving"):
            getattr(self, name).merge(getattr(other, name))
        self.gaps.counts += other.gaps.counts
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.last_s = max(self.last_s, other.last_s)
        for scope, (requests, tokens, cached) in other.scopes.items():
            self._add_hits(scope, requests, tokens, cached)
