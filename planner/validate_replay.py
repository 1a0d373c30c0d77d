"""How far a recorded run's times are from their replay by the simulated engine, with fitted constants and without."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from math import log
from statistics import fmean

from planner.calibrate.accuracy import percentile
from planner.errors import InputError
from planner.replay_rows import Served
from planner.replay_setup import Prepared
from planner.simulate.measures import Point
from planner.simulate.replay import Replayed
from planner.simulate.replay_fit import ACROSS, ALONE, Bounds, Factors, fit
from planner.units import counted

BAR_PERCENT = 5.0
SHARES = {"mean": None, "p50": 0.5, "p90": 0.9, "p99": 0.99}
MOST_REPLAYED, LEAST_TRIES = 60_000, 40
"""Prompts' chunks that a fit replays, all tries together, unless that leaves it too few tries."""
METHOD = "percentiles by linear interpolation between the two nearest of the sorted values"
METRICS = ("TTFT", "TPOT", "E2E")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a run, measured and simulated [s]."""

    metric: str
    of: str
    """mean, p50, p90 or p99."""
    measured_s: float
    simulated_s: float

    @property
    def error_percent(self) -> float:
        """Simulated over measured, less one."""
        return 100 * (self.simulated_s / self.measured_s - 1)


@dataclass(frozen=True, slots=True)
class Case:
    """A replay with some constants, scored on some of its requests."""

    name: str
    factors: Factors
    requests: int
    """Scored ones."""
    figures: tuple[Figure, ...]
    preemptions: int
    points: tuple[Point, ...]

    @property
    def error_percent(self) -> float:
        """Mean of the absolute errors of all figures."""
        return fmean(abs(figure.error_percent) for figure in self.figures)

    @property
    def residuals(self) -> list[float]:
        """Logarithm of simulated over measured, figure by figure."""
        return [log(figure.simulated_s / figure.measured_s) for figure in self.figures]


@dataclass(frozen=True, slots=True)
class ReplayScore:
    """All replays of a run."""

    facts: tuple[str, ...]
    calibrated: Case
    """Nothing fitted on the run."""
    fitted: Case
    """Fitted and scored on the whole run: in-sample."""
    held_out: Case
    """Fitted on the first half of the requests, scored on the others."""
    unseen: Case
    """Nothing fitted, scored on the same others."""
    datasheet: Case
    """Nothing measured: every kernel at the datasheet's peaks."""
    bounds: Bounds
    """Of the factors."""

    @property
    def within(self) -> bool:
        """The bar is kept."""
        return self.fitted.error_percent <= BAR_PERCENT


def score_replay(prepared: Prepared, progress: Callable[[int, int], None] | None = None) -> ReplayScore:
    """The run replayed with the calibration's constants, and with factors fitted on all of it and on its first half.

    raises: InputError where the run has no second half
    """
    if len(prepared.served) < 2:
        raise InputError("the run holds one request; two are needed, since half of them are held out")
    half = (len(prepared.served) + 1) // 2
    everything, first, second = slice(None), slice(half), slice(half, None)

    def scored(name: str, factors: Factors, of: slice, found: Replayed) -> Case:
        served = prepared.served[of]
        return Case(name, factors, len(served), figures(served, found.times[of]), found.preemptions, found.points)

    def case(name: str, factors: Factors, of: slice) -> Case:
        return scored(name, factors, of, prepared.run(factors))

    ranks = prepared.replica.work.ranks
    bounds = ACROSS if ranks.devices > 1 else ALONE
    tries = max(LEAST_TRIES, MOST_REPLAYED // prepared.chunks)

    def fitted(of: slice) -> Factors:
        return fit(lambda factors: case("", factors, of).residuals, tries, progress, bounds)

    return ReplayScore(
        prepared.facts,
        case("calibration", Factors(), everything),
        case("fitted", fitted(everything), everything),
        case("held out", fitted(first), second),
        case("calibration, held-out half", Factors(), second),
        scored("datasheet", Factors(), everything, prepared.run_at_peaks()),
        bounds,
    )


def figures(served: Sequence[Served], times: Sequence[tuple[float, float]]) -> tuple[Figure, ...]:
    """Mean and percentiles of TTFT, TPOT and E2E; of TPOT none where no request has two tokens.

    times: when each request's first and last tokens came in the simulation [s]
    """
    measured = [_times(each, each.first_s, each.last_s) for each in served]
    simulated = [_times(each, *found) for each, found in zip(served, times, strict=True)]
    return tuple(
        Figure(metric, name, *(_summed(side, metric, share) for side in (measured, simulated)))
        for metric in METRICS
        if any(metric in each for each in measured)
        for name, share in SHARES.items()
    )


def _times(served: Served, first_s: float, last_s: float) -> dict[str, float]:
    """A request's own figures [s].

    source: TPOT = (E2E - TTFT) / (n - 1) for n > 1 output tokens
    """
    found = {"TTFT": first_s - served.arrival_s, "E2E": last_s - served.arrival_s}
    if served.output_tokens > 1:
        found["TPOT"] = (last_s - first_s) / (served.output_tokens - 1)
    return found


def _summed(of_requests: list[dict[str, float]], metric: str, share: float | None) -> float:
    """The mean, or the percentile of a share."""
    values = sorted(each[metric] for each in of_requests if metric in each)
    return fmean(values) if share is None else percentile(values, share)


def lines(score: ReplayScore) -> Iterator[str]:
    """The score as text."""
    calibrated, fitted, held_out = score.calibrated, score.fitted, score.held_out
    yield from score.facts
    yield METHOD
    yield ""
    cases = calibrated, fitted, score.datasheet
    yield _row("", "measured", *(cell for case in cases for cell in (case.name, "error")))
    for of_cases in zip(*(case.figures for case in cases), strict=True):
        first = of_cases[0]
        yield _row(_name(first), _ms(first.measured_s), *(cell for each in of_cases for cell in _found(each)))
    yield _row("mean absolute error", "", *(cell for case in cases for cell in ("", _percent(case))))
    yield ""
    yield f"calibration: nothing is fitted on this run{_preempted(calibrated)}"
    yield "datasheet: every kernel at its peaks, nothing between kernels, nothing measured"
    yield f"fitted, in-sample, to the least of this error: {_said(fitted.factors, score.bounds)}{_preempted(fitted)}"
    others = f"fitted on the first {fitted.requests - held_out.requests:,} requests, scored on the other"
    unseen = f"{held_out.requests:,}, where the calibration alone is {_percent(score.unseen)} off"
    yield f"held out: {_percent(held_out)}, {others} {unseen}: {_said(held_out.factors, score.bounds)}"
    yield f"{'within' if score.within else 'over'} the bar of {BAR_PERCENT:g} % with fitted constants{_doubt(score)}"


def _doubt(score: ReplayScore) -> str:
    """A factor at its bound is a sign that something else ran than was recorded."""
    factors = zip(astuple(score.fitted.factors), score.bounds, strict=True)
    at_bound = any(value in bounds for value, bounds in factors)
    return ", but one stands at its bound: something else may have run than the record says" if at_bound else ""


def _row(name: str, *cells: str) -> str:
    widths = (12, 12, 9, 12, 9, 12, 9)
    return " ".join((name.ljust(20), *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))).rstrip()


def _name(figure: Figure) -> str:
    return f"{figure.metric} {figure.of}, ms"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f}"


def _found(figure: Figure) -> tuple[str, str]:
    return _ms(figure.simulated_s), f"{figure.error_percent:+.1f} %"


def _percent(case: Case) -> str:
    return f"{case.error_percent:.2f} %"


def _preempted(case: Case) -> str:
    return f", {counted(case.preemptions, 'preemption')}" if case.preemptions else ""


def _said(factors: Factors, bounds: Bounds) -> str:
    """The constants, what they scale, and which stands at a bound."""
    found = []
    names = ("memory traffic", "arithmetic", "launches and messages")
    for value, what, (least, most) in zip(astuple(factors), names, bounds, strict=True):
        bound = " (at its bound)" if value in (least, most) else ""
        found.append(f"{what} x {value:.3f}{bound}")
    return f"times of {', '.join(found)}"


def fields(score: ReplayScore) -> dict[str, object]:
    """The score as plain data."""
    return {
        "facts": list(score.facts),
        "method": METHOD,
        "bar_percent": BAR_PERCENT,
        "within": score.within,
        "calibration": _plain(score.calibrated),
        "fitted": _plain(score.fitted),
        "held_out": _plain(score.held_out),
        "calibration_held_out_half": _plain(score.unseen),
        "datasheet": _plain(score.datasheet),
    }


def _plain(case: Case) -> dict[str, object]:
    return {
        "factors": asdict(case.factors),
        "requests": case.requests,
        "preemptions": case.preemptions,
        "mean_absolute_error_percent": case.error_percent,
        "figures": [asdict(each) | {"error_percent": each.error_percent} for each in case.figures],
    }
