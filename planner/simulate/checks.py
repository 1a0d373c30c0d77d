"""What the formulas took for granted or predicted, against what the simulation saw."""

from collections.abc import Iterator
from dataclasses import dataclass

from planner.report import Latency, Range, Report
from planner.report_simulation import Check
from planner.units import counted, show_number, show_seconds

LOAD_TOLERANCE = 0.05
"""Of what describes the load: rate and mean lengths."""
CONCURRENCY_TOLERANCE = 0.2
"""Of the number of active requests."""
MOST_PREEMPTED = 0.01
"""Preemptions for each completed request."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Figures of a simulation that checks compare."""

    offered_per_s: float | None
    input_tokens: float | None
    """Mean of a prompt; None where no request ended."""
    output_tokens: float | None
    hit_share: float | None
    tpot_mean_s: float | None
    itl_p95_s: float | None
    ttft_p95_s: float | None
    active_mean: float
    preemptions: int
    too_long: int
    completed: int
    saturated: bool
    saturation: str


def checks_of(report: Report, seen: Seen) -> tuple[Check, ...]:
    """Each with both figures; those of a time are held against the estimate's own range."""
    latency = report.latency
    found: list[Check | None] = []
    if latency is not None:
        found += _load_checks(latency, seen)
        found += [
            _within("mean TPOT", latency.tpot_s, seen.tpot_mean_s),
            _within("p95 of the gaps between tokens", latency.itl_p95_s, seen.itl_p95_s),
            _within("p95 TTFT", latency.ttft_p95_s, seen.ttft_p95_s),
            _near("active requests", latency.concurrency_mean, seen.active_mean, CONCURRENCY_TOLERANCE),
        ]
        found.append(_saturation(latency, seen))
    found += [_preemptions(seen), _too_long(seen)]
    return tuple(check for check in found if check is not None)


def _load_checks(latency: Latency, seen: Seen) -> Iterator[Check | None]:
    yield _near("requests per second", latency.arrivals_per_s, seen.offered_per_s, LOAD_TOLERANCE)
    yield _near("mean prompt, tokens", float(latency.input_tokens), seen.input_tokens, LOAD_TOLERANCE)
    yield _near("mean answer, tokens", float(latency.output_tokens), seen.output_tokens, LOAD_TOLERANCE)
    planned, simulated = latency.cached_tokens / latency.input_tokens, seen.hit_share
    if simulated is not None or planned:
        apart = abs((simulated or 0.0) - planned)
        yield Check(
            what="prompt tokens found cached",
            planned=f"{planned:.1%}",
            simulated="-" if simulated is None else f"{simulated:.1%}",
            holds=apart <= LOAD_TOLERANCE,
            text=f"{apart * 100:.1f} points apart; up to {LOAD_TOLERANCE * 100:.0f} hold",
        )


def _near(what: str, planned: float | None, simulated: float | None, tolerance: float) -> Check | None:
    if planned is None or simulated is None:
        return None
    apart = abs(simulated - planned) / planned if planned else abs(simulated)
    return Check(
        what=what,
        planned=show_number(planned),
        simulated=show_number(simulated),
        holds=apart <= tolerance,
        text=f"{apart:.1%} apart; up to {tolerance:.0%} holds",
    )


def _within(what: str, planned: Range, simulated: float | None) -> Check | None:
    if simulated is None:
        return None
    low, high = show_seconds(planned.low), show_seconds(planned.high)
    where = "below" if simulated < planned.low else "above" if simulated > planned.high else "within"
    return Check(
        what=what,
        planned=show_seconds(planned.best),
        simulated=show_seconds(simulated),
        holds=where != "above",
        text=f"{where} the estimate's range, {low} to {high}{'' if where != 'below' else ': better than planned'}",
    )


def _saturation(latency: Latency, seen: Seen) -> Check:
    said = {True: "grows", False: "does not grow"}
    return Check(
        what="the queue",
        planned=said[latency.saturated],
        simulated=said[seen.saturated],
        holds=latency.saturated == seen.saturated,
        text=seen.saturation,
    )


def _preemptions(seen: Seen) -> Check:
    return Check(
        what="preemptions",
        planned="none",
        simulated=f"{seen.preemptions:,}",
        holds=seen.preemptions <= MOST_PREEMPTED * seen.completed,
        text=f"the formulas count no prompt twice; of {counted(seen.completed, 'request')}",
    )


def _too_long(seen: Seen) -> Check:
    return Check(
        what="requests too long",
        planned="none",
        simulated=f"{seen.too_long:,}",
        holds=not seen.too_long,
        text="longer than the context planned for, or than the whole pool; they are refused",
    )
