"""Predicted seconds of measured points, and how far they are off. Needs neither scipy nor numpy."""

import math
import statistics
from collections.abc import Iterable, Sequence

from planner.calibrate.forms import Peaks, collective_seconds, kernel_seconds, work_of
from planner.calibrate.points import Point
from planner.calibration import CollectiveConstants, Errors, KernelConstants

Constants = KernelConstants | CollectiveConstants


def seconds_of(point: Point, constants: Constants, peaks: Peaks) -> float:
    """The time that constants predict for a point."""
    work = work_of(point)
    if isinstance(constants, CollectiveConstants):
        return float(collective_seconds(work.bytes, constants))
    return float(kernel_seconds(work, constants, peaks))


def relative_errors(points: Iterable[Point], constants: Constants, peaks: Peaks) -> list[float]:
    """Predicted over measured seconds, less one."""
    return [seconds_of(point, constants, peaks) / point.seconds - 1 for point in points]


def errors(points: Iterable[Point], constants: Constants, peaks: Peaks) -> Errors:
    """Relative errors of the predicted seconds of at least one point."""
    return summary(relative_errors(points, constants, peaks))


def summary(relative: Sequence[float]) -> Errors:
    """Median, 90th percentile, worst and bias of relative errors, of which there is at least one."""
    size = sorted(abs(value) * 100 for value in relative)
    return Errors(
        points=len(size),
        median_percent=round(statistics.median(size), 2),
        p90_percent=round(percentile(size, 0.9), 2),
        max_percent=round(size[-1], 2),
        bias_percent=round(statistics.median(relative) * 100, 2),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of ordered numbers, interpolated linearly."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
