"""How far off predictions of speed were where they could be held against measurements, and the ranges that follow."""

from collections.abc import Sequence
from datetime import date
from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from planner.calibration import FittedKernel
from planner.catalog import bundled
from planner.documents import load_mapping, validate
from planner.input_types import Count, Input
from planner.origin import Origin
from planner.printable import Printable
from planner.report import Range

FILE = "profiles/accuracy/serving.yaml"
Metric = Literal["ttft", "tpot", "throughput"]
Kind = Literal["dense", "MoE"]
DIGITS = 6
"""Of a report's times: the last bits of a float differ between machines."""


class Spread(Input):
    """Signed errors of one metric over measured rows: predicted / measured - 1, in percent."""

    metric: Metric
    kind: Kind
    own_constants: bool = True
    """Priced by the GPU's own calibration; False: by another GPU's, on its own datasheet peaks."""
    rows: Count
    p10_percent: Annotated[float, Field(gt=-100)]
    p90_percent: Annotated[float, Field(gt=-100)]


class ServingAccuracy(Input):
    """What `planner validate serving` and `throughput` found on public rows."""

    spreads: tuple[Spread, ...]
    source: Printable
    licence: Printable | None = None
    attribution: Printable | None = None
    as_of: date
    notes: Printable | None = None


@cache
def serving_accuracy() -> ServingAccuracy:
    """The shipped figures."""
    path = bundled() / FILE
    return validate(ServingAccuracy, load_mapping(path), Origin(str(path)))


def spread_of(metric: Metric, kind: Kind, *, own_constants: bool) -> Spread:
    """Of rows of this kind and these constants; where none were measured, of all of the metric by own constants."""
    found = [each for each in serving_accuracy().spreads if each.metric == metric]
    exact = [each for each in found if (each.kind, each.own_constants) == (kind, own_constants)]
    return (exact or sorted(found, key=lambda each: (each.kind != kind, each.own_constants != own_constants)))[0]


def kernel_p90(entries: Sequence[FittedKernel]) -> float:
    """Largest 90th percentile of the errors of these fits, on held-out points where there are any [%]."""
    errors = [entry.holdout or entry.residual for entry in entries]
    return max((each.p90_percent for each in errors), default=0.0)


def ranged(best: float, spread: Spread, kernels_percent: float) -> Range:
    """The range that measured errors leave around an estimate: the wider of serving's and its kernels' on each side.

        x / (1 + max(p90, k)) .. x / (1 + min(p10, -k))

    best: x [any]
    spread: p10 and p90 of (predicted / measured - 1) over rows [%]
    kernels_percent: k, 90th percentile of absolute errors of the least certain kernel; at most 95 [%]
    returns: low, best, high [as x]
    source: profiles/accuracy/serving.yaml; each calibration's own errors
    """
    kernels = min(kernels_percent, 95.0)
    low = best / (1 + max(spread.p90_percent, kernels, 0.0) / 100)
    high = best / (1 + min(spread.p10_percent, -kernels, 0.0) / 100)
    return Range(low=rounded(low), best=rounded(best), high=rounded(high))


def rounded(value: float) -> float:
    """To a report's digits."""
    return float(f"{value:.{DIGITS}g}")
