"""The ranges around estimates of speed that measured errors leave."""

from collections.abc import Sequence

from planner.calibrate.serving_errors import Kind, Metric, Spread, serving_accuracy
from planner.calibration import FittedKernel
from planner.report import Range

DIGITS = 6
"""Of a report's times: the last bits of a float differ between machines."""


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
