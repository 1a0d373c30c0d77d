"""What a calibration's plots show: bandwidth over bytes and arithmetic over length, measured and fitted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.calibrate.accuracy import seconds_of
from planner.calibrate.forms import Peaks, work_of
from planner.calibrate.points import FAMILIES, Point
from planner.calibration import FittedKernel
from planner.calibration_run import USABLE, CalibrationRun, RunPoint


@dataclass(frozen=True, slots=True)
class Series:
    """Measured points and the fitted curve through them."""

    label: str
    measured: tuple[tuple[float, float], ...]
    fitted: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """One plot: the x axis is logarithmic."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]


Speed = Callable[[Point, float], tuple[float, float]]
"""(a point, its seconds) -> where it lies in the plot."""


def point_of(point: RunPoint) -> Point:
    """The family's own point, with the time that was measured."""
    seconds = (point.median_us or 0.0) / 1e6
    return FAMILIES[point.family](**point.shape, seconds=seconds, kernel=point.backend)  # type: ignore[arg-type]


def curves_of(run: CalibrationRun) -> Iterator[Curve]:
    """Decode bandwidth over the bytes read, and prefill arithmetic over the new tokens."""
    plots = (
        ("decode_attention", "Decode attention", "bytes", "GB/s", _bandwidth),
        ("prefill_attention", "Prefill attention, no earlier tokens", "tokens", "TFLOP/s", _arithmetic),
    )
    for family, title, x_label, y_label, speed in plots:
        series = tuple(_series(run, family, speed))
        if series:
            yield Curve(title, x_label, y_label, series)


def _series(run: CalibrationRun, family: str, speed: Speed) -> Iterator[Series]:
    """One per dtype and head shape, of the backend that the fit used."""
    for fit in run.kernels:
        if fit.family != family or not fit.fastest:
            continue
        usable = [point_of(p) for p in run.points if p.family == family and p.verdict in USABLE]
        points = [
            p for p in usable if p.key == fit.key and p.kernel == fit.kernel and not getattr(p, "prior_tokens", 0)
        ]
        for shape in dict.fromkeys(map(_heads, points)):
            chosen = [p for p in points if _heads(p) == shape]
            measured = tuple(speed(p, p.seconds) for p in chosen)
            fitted = tuple(speed(p, _predicted(run, fit, p)) for p in chosen)
            yield Series(f"{fit.key} {fit.kernel} {shape[0]}/{shape[1]} heads", measured, fitted)


def _heads(point: Point) -> tuple[int, int]:
    return getattr(point, "query_heads", 0), getattr(point, "kv_heads", 0)


def _predicted(run: CalibrationRun, fit: FittedKernel, point: Point) -> float:
    machine = run.environment
    peaks = Peaks((machine.peak_gb_per_s or 0) * 1e9, machine.peak_tflop_per_s.get(fit.key, 0) * 1e12)
    return seconds_of(point, fit.constants, peaks)


def _bandwidth(point: Point, seconds: float) -> tuple[float, float]:
    size = float(work_of(point).bytes)
    return size, size / seconds / 1e9


def _arithmetic(point: Point, seconds: float) -> tuple[float, float]:
    return float(getattr(point, "seq", 0)), float(work_of(point).flops) / seconds / 1e12
