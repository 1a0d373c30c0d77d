"""What a cluster was measured to do -> the report's part."""

from collections.abc import Callable
from typing import Any

from planner.accuracy import rounded
from planner.printable import escaped
from planner.report_simulation import Percentiles, ScopeHits, SimulatedPoint
from planner.simulate.cluster import Result
from planner.simulate.measures import Meter, Point
from planner.simulate.quantiles import Gaps, Quantiles
from planner.units import show_seconds

MOST_SCOPES = 20
"""Scopes in a report, those with most input."""
LEAST_QUEUE = 8
"""Requests that wait, below which nothing is said to be saturated."""
GROWTH = 1.5
"""Of the queue from the second third of the arrivals to the last: a queue that grows evenly gives 5 / 3."""
MOST_TURNED_AWAY = 0.01


def measured(result: Result) -> dict[str, Any]:
    """Fields of report_simulation.Simulation that a cluster measured."""
    meter, last_arrival_s, outages = result.meter, result.last_arrival_s, result.outages
    points = meter.series.points
    span = max(meter.last_s, last_arrival_s or 0.0)
    saturated, saturation = _saturation(meter, last_arrival_s)
    offered = (meter.submitted - 1) / last_arrival_s if last_arrival_s and meter.submitted > 1 else None
    return {
        "engines": result.engines,
        "span_s": rounded(span),
        "offered_per_s": None if offered is None else rounded(offered),
        "submitted": meter.submitted,
        "completed": meter.done_count,
        "too_long": meter.too_long,
        "turned_away": meter.turned_away,
        "cancelled": meter.cancelled_count,
        "restarted": meter.restarted,
        "preemptions": meter.preemptions,
        "ttft_s": _percentiles(meter.ttft),
        "tpot_s": _percentiles(meter.tpot),
        "itl_s": _percentiles(meter.gaps),
        "e2e_s": _percentiles(meter.e2e),
        "queued_s": _percentiles(meter.queued),
        "percentile_method": f"{meter.ttft.method}; gaps between tokens by 10 us",
        "completed_per_s": _per(meter.done_count, span),
        "input_tokens_per_s": _per(meter.input_tokens, span),
        "output_tokens_per_s": _per(meter.output_tokens, span),
        "goodput_per_s": _per(meter.good, span),
        "good_share": _share(meter.good, meter.submitted),
        "in_time_share": _share(meter.in_time, meter.submitted),
        "hit_share": _share(meter.cached_tokens, meter.input_tokens) if meter.scopes else None,
        "hits": _hits(meter),
        "running_mean": _mean(points, lambda point: point.running),
        "running_max": max((point.running for point in points), default=0),
        "waiting_mean": _mean(points, lambda point: point.waiting),
        "waiting_max": max((point.waiting for point in points), default=0),
        "kv_used_mean": _mean(points, lambda point: point.used_share),
        "kv_used_max": rounded(max((point.used_share for point in points), default=0.0)),
        "utilisation": _per(result.busy_s, span * result.engines),
        "saturated": saturated,
        "saturation": saturation,
        "node_failures": outages.count if outages else 0,
        "down_share": _per(outages.down_s, span * outages.nodes) if outages else 0.0,
        "series": tuple(
            SimulatedPoint(
                time_s=point.time_s,
                running=point.running,
                waiting=point.waiting,
                kv_used_share=rounded(point.used_share),
                submitted=point.submitted,
                done=point.done,
            )
            for point in points
        ),
    }


def _per(amount: float, seconds: float) -> float:
    return rounded(amount / seconds) if seconds > 0 else 0.0


def _share(part: int, whole: int) -> float | None:
    return rounded(part / whole) if whole else None


def _mean(points: list[Point], of: Callable[[Point], float]) -> float:
    return rounded(sum(map(of, points)) / len(points)) if points else 0.0


def _percentiles(found: Quantiles | Gaps) -> Percentiles | None:
    if not found.count:
        return None
    at = {f"p{round(share * 100)}": rounded(found.at(share)) for share in (0.5, 0.9, 0.95, 0.99)}
    return Percentiles(mean=rounded(found.mean), **at)


def _hits(meter: Meter) -> tuple[ScopeHits, ...]:
    largest = sorted(meter.hits().items(), key=lambda item: (-item[1][1], item[0]))[:MOST_SCOPES]
    return tuple(
        ScopeHits(
            scope=escaped(scope),
            requests=requests,
            input_tokens=tokens,
            cached_tokens=cached,
            hit_share=rounded(cached / tokens),
        )
        for scope, (requests, tokens, cached) in largest
        if requests
    )


def _saturation(meter: Meter, last_arrival_s: float | None) -> tuple[bool, str]:
    """(whether the queue grows as long as requests come, why it is said)."""
    away = meter.turned_away / max(1, meter.submitted)
    if away > MOST_TURNED_AWAY:
        return True, f"{away:.1%} of the requests found the queue full or no replica that works"
    if last_arrival_s is None:
        waiting = _mean(meter.series.points, lambda point: point.waiting)
        return False, f"a closed loop cannot grow its queue: {waiting:,.1f} requests wait on average"
    middle, end = (
        _mean_between(meter.arriving.points, last_arrival_s * part / 3, last_arrival_s * (part + 1) / 3)
        for part in (1, 2)
    )
    if middle is None or end is None:
        when = f"within {show_seconds(last_arrival_s)}" if last_arrival_s else "at one moment"
        return False, f"not told: all requests come {when}, too short a time"
    text = f"{middle:,.1f} requests wait on average in the second third of the arrivals and {end:,.1f} in the last"
    grows = end > max(LEAST_QUEUE, 0.01 * meter.submitted) and end > GROWTH * middle
    return grows, text


def _mean_between(points: list[Point], low_s: float, high_s: float) -> float | None:
    waiting = [point.waiting for point in points if low_s < point.time_s <= high_s]
    return sum(waiting) / len(waiting) if waiting else None
