"""A recorded run of vLLM replayed by the simulated engine: how far its times are off, with fitted constants and without."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from pathlib import Path
from statistics import fmean

from planner.architectures import resolve
from planner.calibrate.accuracy import percentile
from planner.catalog import load_model, load_scenario, names
from planner.deployment import Deployment, deploy
from planner.errors import InputError, nearest
from planner.inputs import Model
from planner.origin import Origin
from planner.replay_meta import Meta
from planner.replay_rows import Recorded, Served
from planner.replica import replica_of, times_of
from planner.row_models import gpu_name, has_experts, row_model
from planner.serving import Replica
from planner.simulate.replay import Machine, Replayed, replay
from planner.simulate.replay_fit import Factors, fit
from planner.simulate.requests import Request
from planner.simulate.setting import memory_of, reserves_prompt, rules_of
from planner.simulate.steps import StepTimes
from planner.rank import governing_rank
from planner.units import GIB
from planner.validate import PRICE
from planner.validate_logs import nearest_engine

BAR_PERCENT = 5.0
SHARES = {"mean": None, "p50": 0.5, "p90": 0.9, "p99": 0.99}
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
    """A replay with some constants, over some of the requests."""

    name: str
    factors: Factors
    figures: tuple[Figure, ...]
    preemptions: int

    @property
    def error_percent(self) -> float:
        """Mean of the absolute errors of all figures."""
        return fmean(abs(figure.error_percent) for figure in self.figures)


@dataclass(frozen=True, slots=True)
class ReplayScore:
    """All replays of a run."""

    facts: tuple[str, ...]
    calibrated: Case
    fitted: Case
    held_out: Case

    @property
    def within(self) -> bool:
        """The bar is kept."""
        return self.fitted.error_percent <= BAR_PERCENT


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run ready to be replayed."""

    requests: tuple[Request, ...]
    served: tuple[Served, ...]
    machine: Machine
    replica: Replica

    def run(self, factors: Factors) -> Replayed:
        """Once."""
        return replay(self.requests, self.machine, StepTimes(self.replica, factors.seconds))


def score_replay(prepared: Prepared, progress: Callable[[int, int], None] | None = None) -> ReplayScore:
    """The run replayed with the calibration's constants, and with three fitted on all of it and on its first half."""
    served = prepared.served
    half = len(served) // 2
    everything, first, second = slice(None), slice(half), slice(half, None)

    def case(name: str, factors: Factors, of: slice) -> Case:
        found = prepared.run(factors)
        return Case(name, factors, figures(served[of], found.times[of]), found.preemptions)

    def fitted(of: slice) -> Factors:
        return fit(lambda factors: case("", factors, of).error_percent, progress)

    calibrated = case("calibration", Factors(), everything)
    return ReplayScore((), calibrated, case("fitted", fitted(everything), everything), case("held out", fitted(first), second))


def figures(served: Sequence[Served], times: Sequence[tuple[float, float]]) -> tuple[Figure, ...]:
    """Mean and percentiles of TTFT, TPOT and E2E, measured and simulated.

    times: when each request's first and last tokens came
    """
    measured = [_times(each, each.first_s, each.last_s) for each in served]
    simulated = [_times(each, first_s, last_s) for each, (first_s, last_s) in zip(served, times, strict=True)]
    found = []
    for place, metric in enumerate(METRICS):
        pairs = [(m[place], s[place]) for m, s in zip(measured, simulated, strict=True)]
        ours, theirs = (sorted(v for pair in pairs if (v := pair[i]) is not None) for i in (1, 0))
        for name, share in SHARES.items() if theirs else ():
            found.append(Figure(metric, name, *(fmean(v) if share is None else percentile(v, share) for v in (theirs, ours))))
    return tuple(found)


def _times(served: Served, first_s: float, last_s: float) -> tuple[float, float | None, float]:
    """TTFT, TPOT (None for one token) and E2E [s]."""
    ttft, e2e = first_s - served.arrival_s, last_s - served.arrival_s
    return ttft, (e2e - ttft) / (served.output_tokens - 1) if served.output_tokens > 1 else None, e2e
