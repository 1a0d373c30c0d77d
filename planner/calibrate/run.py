"""A calibration run: each point is judged, profiled and timed on every backend; then all-reduce over the ranks."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from planner.calibrate import collective, reference
from planner.calibrate.device import Watch
from planner.calibrate.forms import work_of
from planner.calibrate.kernels import Inputs, Kernel, Lab, kernels_of
from planner.calibrate.paged import paged_kernels
from planner.calibrate.points import FAMILY_OF, CollectivePoint, DecodePoint, Point
from planner.calibrate.timing import Sample, Timer, spin_up, verdict
from planner.calibration_run import RunPoint
from planner.errors import MachineError

ROTATE_CACHES = 5
"""Input sets together are at least this many times the last-level cache."""
MOST_SETS = 1024
LEAST_SETS = 2
CPU_PROFILED = 3
"""Calls to profile on a CPU."""
MICRO = 1e6
SHOWN_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Peaks:
    """The datasheet's peaks; empty where the device has none."""

    gb_per_s: float | None = None
    tflop_per_s: tuple[tuple[str, float], ...] = ()
    """By dtype, dense."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that measuring a point needs."""

    lab: Lab
    cuda: bool
    timer: Timer
    watch: Watch
    cache_bytes: int
    peaks: Peaks

    def kernels(self, point: Point) -> tuple[Kernel, ...]:
        """Every backend that may do the point's work here."""
        paged = paged_kernels(self.lab, point) if self.cuda and isinstance(point, DecodePoint) else ()
        return (*kernels_of(self.lab, point, cuda=self.cuda), *paged)


def measure(bench: Bench, points: Iterable[Point], progress: Callable[[str], None]) -> Iterator[RunPoint]:
    """Each point on each backend.

    progress: told each point before it starts, as a line
    """
    if bench.cuda:
        spin_up(bench.lab.torch, bench.lab.device)
    for point in points:
        progress(label(point))
        for kernel in bench.kernels(point):
            yield _measured(bench, kernel)
            if bench.cuda:
                bench.lab.torch.cuda.empty_cache()


def label(point: Point) -> str:
    """A point in a few words."""
    shape = fields_of(point)
    return f"{FAMILY_OF[type(point)].replace('_', ' ')} {' '.join(str(value) for value in shape.values())}"


def fields_of(point: Point) -> dict[str, int | str]:
    """What a point runs: its fields without the time and the kernel."""
    return {name: value for name, value in asdict(point).items() if name not in ("seconds", "kernel")}


def _measured(bench: Bench, kernel: Kernel) -> RunPoint:
    """One point on one backend, or why it was skipped."""
    torch = bench.lab.torch
    try:
        return _gate_and_time(bench, kernel)
    except (torch.OutOfMemoryError, MemoryError):
        return _skipped(kernel, "out of memory")
    except torch.AcceleratorError as error:  # a fault of the device: every later call would fail too
        raise MachineError(
            f"the GPU failed at {label(kernel.point)} on {kernel.backend}: {_first_line(error)}"
        ) from None
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        if "can't allocate memory" in str(error):
            return _skipped(kernel, "out of memory")
        return _skipped(kernel, f"not available here: {_first_line(error)}")


def _gate_and_time(bench: Bench, kernel: Kernel) -> RunPoint:
    """Correctness first, then the time, then the kernels' names: the profiler may stay attached and slow calls down."""
    given = kernel.inputs()
    with bench.lab.torch.no_grad():
        error = reference.error(*kernel.judge(given, kernel.call(*given)))
        if not reference.is_right(error, kernel.limit):
            return _wrong(kernel, error)
        sets = rotated(given, ROTATE_CACHES * bench.cache_bytes)
        calls = [partial(kernel.call, *inputs) for inputs in sets]
        sample, notes = _timed(bench, calls)
        names = kernel_names(bench, calls[0])
    rotated_bytes = len(sets) * _size(given)
    if rotated_bytes < ROTATE_CACHES * bench.cache_bytes:
        notes = (*notes, "its input sets are smaller than five caches together: some reads were warm")
    return RunPoint(
        **_judged(kernel, error),
        **_speed(bench, kernel.point, sample),
        verdict=verdict(right=True, throttled=bool(bench.watch.throttled), noisy=sample.noisy),
        rotated_bytes=rotated_bytes,
        kernels=names,
        lowest_sm_clock_mhz=bench.watch.lowest_sm_clock_mhz,
        notes=(*sample.notes, *notes, *bench.watch.throttled, *bench.watch.notes),
    )


def _timed(bench: Bench, calls: Sequence[Callable[[], object]]) -> tuple[Sample, tuple[str, ...]]:
    """A sample, taken once more if it was noisy; the watch keeps what it saw during the one that counts.

    A core that other processes kept away, or a device that slowed itself down, would do so again.
    """
    bench.watch.reset()
    sample = bench.timer.measure(calls)
    if not sample.noisy or sample.disturbed or bench.watch.throttled:
        return sample, ()
    bench.watch.reset()
    return bench.timer.measure(calls), ("the first timing was noisy",)


def rotated(given: Inputs, least_bytes: int) -> list[Inputs]:
    """Input sets, the first and copies of it, that together exceed the caches."""
    count = min(MOST_SETS, max(LEAST_SETS, math.ceil(least_bytes / _size(given))))
    return [given, *(tuple(tensor.clone() for tensor in given) for _ in range(count - 1))]


def kernel_names(bench: Bench, call: Callable[[], object]) -> tuple[str, ...]:
    """Device kernels of one call, in order; on a CPU, the operators that take most of it."""
    profiler = bench.lab.torch.profiler
    kinds = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if bench.cuda else [])]
    try:
        with profiler.profile(activities=kinds) as profile:
            for _ in range(1 if bench.cuda else CPU_PROFILED):
                call()
            if bench.cuda:
                bench.lab.torch.cuda.synchronize()
        events = list(profile.events())
    except RuntimeError:  # the driver may keep its counters for administrators
        return ()
    if not bench.cuda:
        return heaviest((event.name, event.self_cpu_time_total) for event in events)
    names = [event.name for event in events if str(event.device_type).endswith("CUDA")]
    return tuple(dict.fromkeys(name for name in names if not name.startswith(("Memcpy", "Memset"))))


def heaviest(events: Iterable[tuple[str, float]]) -> tuple[str, ...]:
    """Operators with at least a fifth of the time, heaviest first, each taken at its median: a core may be lost in any.

    events: (operator, its own time)
    """
    times: dict[str, list[float]] = {}
    for name, own in events:
        times.setdefault(name, []).append(own)
    typical = {name: statistics.median(own) * len(own) for name, own in times.items()}
    least = sum(typical.values()) / 5
    return tuple(sorted((name for name in typical if typical[name] >= least), key=lambda name: -typical[name]))


def all_reduces(points: Sequence[CollectivePoint], replays: int) -> list[RunPoint]:
    """Every size over the ranks; where the ranks fail, each point is skipped and says why."""
    try:
        found = collective.measure(points, replays)
    except collective.RanksFailedError as error:
        return [_skipped_point(point, point.kernel, str(error)) for point in points]
    return [_reduced(reduced) for reduced in found]


def _reduced(reduced: collective.Reduced) -> RunPoint:
    point, sample = reduced.point, reduced.sample
    return RunPoint(
        family=FAMILY_OF[type(point)],
        backend=point.kernel,
        shape=fields_of(point),
        error=_finite(reduced.error),
        error_limit=collective.LIMITS[point.dtype],
        verdict=verdict(right=reduced.right, throttled=bool(reduced.throttled), noisy=sample.noisy),
        rotated_bytes=reduced.buffer_bytes,
        lowest_sm_clock_mhz=reduced.lowest_sm_clock_mhz,
        notes=(*sample.notes, *reduced.throttled, *reduced.notes),
        **_timing(sample),
        moved_bytes=point.bytes,
        achieved_gb_per_s=_digits(point.bytes / sample.median_s / 1e9),
    )


def _speed(bench: Bench, point: Point, sample: Sample) -> dict[str, Any]:
    """What was achieved, beside the datasheet."""
    work = work_of(point)
    size, operations = int(work.bytes), int(work.flops)
    gb_per_s, tflop_per_s = size / sample.median_s / 1e9, operations / sample.median_s / 1e12
    peak = dict(bench.peaks.tflop_per_s).get(str(getattr(point, "dtype", "")))
    return {
        **_timing(sample),
        "moved_bytes": size,
        "flops": operations,
        "achieved_gb_per_s": _digits(gb_per_s),
        "achieved_tflop_per_s": _digits(tflop_per_s) if operations else None,
        "share_of_datasheet_gb_per_s": _digits(gb_per_s / bench.peaks.gb_per_s) if bench.peaks.gb_per_s else None,
        "share_of_datasheet_tflop_per_s": _digits(tflop_per_s / peak) if peak and operations else None,
    }


def _timing(sample: Sample) -> dict[str, Any]:
    return {
        "median_us": _digits(sample.median_s * MICRO),
        "iqr_share": _digits(sample.iqr_share),
        "drift_share": _digits(sample.drift_share),
        "timings": len(sample.seconds),
        "set_aside": sample.set_aside,
        "method": sample.method,
    }


def _judged(kernel: Kernel, error: float) -> dict[str, Any]:
    return {
        "family": FAMILY_OF[type(kernel.point)],
        "backend": kernel.backend,
        "shape": fields_of(kernel.point),
        "error": _finite(error),
        "error_limit": kernel.limit,
    }


def _wrong(kernel: Kernel, error: float) -> RunPoint:
    found = f"{error:.2g}" if math.isfinite(error) else "not a number"
    note = f"wrong against the float64 reference: error {found}, limit {kernel.limit:g}; not timed"
    return RunPoint(**_judged(kernel, error), verdict="wrong", notes=(note,))


def _skipped(kernel: Kernel, why: str) -> RunPoint:
    return _skipped_point(kernel.point, kernel.backend, why)


def _skipped_point(point: Point, backend: str, why: str) -> RunPoint:
    family = FAMILY_OF[type(point)]
    return RunPoint(family=family, backend=backend, shape=fields_of(point), verdict="skipped", notes=(why,))


def _size(inputs: Inputs) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in inputs)


def _finite(number: float) -> float | None:
    return _digits(number) if math.isfinite(number) else None


def _digits(number: float) -> float:
    """As many digits as a measurement has."""
    return float(f"{number:.{SHOWN_DIGITS}g}")


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:300] if lines else type(error).__name__
