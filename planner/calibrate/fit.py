"""Measured points -> constants. Pure: the same points give the same constants, whoever measured them.

Relative errors are minimised with a loss that outliers pull on only linearly. A third of the points, chosen by their
shape alone, is never seen by the fit and says how well the constants hold.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any, TypeVar

from planner.calibrate.accuracy import errors
from planner.calibrate.forms import Peaks, Work, collective_seconds, kernel_seconds, work_of
from planner.calibrate.points import FAMILY_OF, CollectivePoint, Point, shape_of
from planner.calibration import CollectiveConstants, Errors, KernelConstants
from planner.errors import InputError, MachineError

HELD_OUT_OF = 3
HOLDOUT_RULE = (
    "a point is held out where the first 8 hexadecimal digits of the SHA-256 of its shape (as points.shape_of writes "
    "it: no dtype, kernel, GPU or time) are divisible by 3"
)
LEAST_POINTS = 4
FEW_POINTS = 40
"""Below this, only floor, efficiencies and norm are free: a short run cannot tell the rest apart."""
OUTLIER = 0.1
"""Relative error beyond which the loss grows linearly instead of quadratically."""
DIGITS = 4
"""Significant digits of a fitted constant."""
NOTHING = 1e-3
"""A constant that may be 0 and is less than this share of where it started has no effect."""

Constants = TypeVar("Constants", KernelConstants, CollectiveConstants)


@dataclass(frozen=True, slots=True)
class Free:
    """One constant that a fit may move: where it starts, and its bounds."""

    starts: tuple[float, ...]
    low: float
    high: float


ROOFLINE = {
    "floor_us": Free((8.0,), 0.5, 500.0),
    "memory_efficiency": Free((0.8,), 0.01, 1.05),
    "compute_efficiency": Free((0.5,), 0.005, 1.05),
    "norm": Free((1.5, 4.0), 1.0, 8.0),
}
L2 = {"l2_reach": Free((0.5,), 0.05, 1.0), "l2_speedup": Free((2.0,), 1.0, 6.0)}
FREE: dict[str, dict[str, Free]] = {
    "decode_attention": ROOFLINE | L2 | {"serial_ns_per_step": Free((0.1,), 0, 100), "item_ns": Free((5.0,), 0, 1000)},
    "prefill_attention": ROOFLINE | L2 | {"serial_ns_per_step": Free((10.0,), 0, 500)},
    "gemm": ROOFLINE | L2 | {"serial_ns_per_step": Free((0.2,), 0, 50), "activation_passes": Free((0.3,), 0, 30)},
    "moe": ROOFLINE
    | {
        "serial_ns_per_step": Free((1.0,), 0, 100),
        "item_ns": Free((100.0,), 0, 10_000),
        "activation_passes": Free((0.5,), 0, 30),
        "token_passes": Free((0.5,), 0, 200),
    },
    "bandwidth": {name: ROOFLINE[name] for name in ("floor_us", "memory_efficiency")},
}
COLLECTIVE = {
    "latency_us": Free((10.0,), 0.3, 5000.0),
    "gb_per_s": Free((100.0, 5.0), 0.05, 5000.0),
    "norm": Free((1.0,), 0.5, 8.0),
}


@dataclass(frozen=True, slots=True)
class Fitted:
    """Constants and their errors."""

    constants: KernelConstants | CollectiveConstants
    residual: Errors
    """On the points fitted."""
    holdout: Errors | None
    """On the points held out; None where too few were given to spare any."""


def held_out(point: Point) -> bool:
    """True if the fit must not see this point, whatever the GPU, engine or dtype: see HOLDOUT_RULE."""
    digest = hashlib.sha256(shape_of(point).encode()).hexdigest()
    return int(digest[:8], 16) % HELD_OUT_OF == 0


def fit(points: Sequence[Point], peaks: Peaks) -> Fitted:
    """Constants of points of one family, key and kernel on one device.

    raises: InputError for points of several families or fewer than LEAST_POINTS; MachineError without scipy
    """
    families = {FAMILY_OF[type(point)] for point in points}
    if len(families) != 1 or len(points) < LEAST_POINTS:
        raise InputError(f"a fit needs at least {LEAST_POINTS} points of one family, not {len(points)} of {families}")
    fitted, rest = split(points)
    family = families.pop()
    constants: KernelConstants | CollectiveConstants
    if family == "collective":
        constants = with_measured(solve(fitted, COLLECTIVE, CollectiveConstants, peaks), fitted)
    else:
        constants = solve(fitted, free_constants(family, len(fitted), l2=peaks.l2_bytes > 0), KernelConstants, peaks)
    return Fitted(constants, errors(fitted, constants, peaks), errors(rest, constants, peaks) if rest else None)


def with_measured(constants: CollectiveConstants, points: Iterable[Point]) -> CollectiveConstants:
    """The constants and the fitted points themselves: each size, and the mean of its times.

    No size takes longer than a larger one: noise only ever slows a measurement.
    """
    times: dict[int, list[float]] = defaultdict(list)
    for point in points:
        if isinstance(point, CollectivePoint):
            times[point.bytes].append(point.seconds * 1e6)
    means = [float(f"{fmean(times[size]):.{DIGITS}g}") for size in sorted(times)]
    rising = tuple(accumulate(reversed(means), min))[::-1]
    return constants.model_copy(update={"measured_bytes": tuple(sorted(times)), "measured_us": rising})


def split(points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    """(fitted, held out); nothing is held out where too few would be left to fit."""
    fitted = [point for point in points if not held_out(point)]
    if len(fitted) < max(LEAST_POINTS, len(points) // 2):
        return list(points), []
    return fitted, [point for point in points if held_out(point)]


def free_constants(family: str, points: int, *, l2: bool) -> Mapping[str, Free]:
    """What a fit of that many points may move; of cold caches (l2 False) nothing about L2, which had no effect."""
    free = FREE[family] if l2 else {name: f for name, f in FREE[family].items() if name not in L2}
    return free if points >= FEW_POINTS else {name: free[name] for name in ROOFLINE if name in free}


def solve(points: Sequence[Point], free: Mapping[str, Free], kind: type[Constants], peaks: Peaks) -> Constants:
    """The constants with the least loss over all starts, rounded.

    raises: MachineError without scipy
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise MachineError("fitting needs scipy: pip install 'llm-serving-planner[calibrate]'") from error
    import numpy as np

    model, measured = _model(points, peaks), np.log([point.seconds for point in points])
    low, high = (np.array([getattr(f, side) for f in free.values()]) for side in ("low", "high"))

    def off(values: Any) -> Any:
        return np.log(model(_constants(kind, free, values))) - measured

    best: Any = None
    for start in _starts(free):
        scale = np.maximum(np.abs(start), 1e-3)
        robust = {"loss": "soft_l1", "f_scale": OUTLIER, "x_scale": scale, "max_nfev": 300}
        found = least_squares(off, start, bounds=(low, high), **robust)
        if best is None or found.cost < best.cost:
            best = found
    values = [_rounded(value, f) for value, f in zip(best.x, free.values(), strict=True)]
    return kind.model_validate(_constants(kind, free, values).model_dump())


def _constants(kind: type[Constants], free: Mapping[str, Free], values: Sequence[float]) -> Constants:
    """Without validation, which would take longer than the prediction."""
    given = dict(zip(free, values, strict=True))
    if kind is KernelConstants:
        given = {"floor_us": 1.0, "memory_efficiency": 1.0, "compute_efficiency": 1.0} | given
    return kind.model_construct(**given)  # type: ignore[arg-type]


def _starts(free: Mapping[str, Free]) -> list[list[float]]:
    most = max(len(f.starts) for f in free.values())
    return [[f.starts[min(i, len(f.starts) - 1)] for f in free.values()] for i in range(most)]


def _rounded(value: float, free: Free) -> float:
    """To DIGITS; what hardly differs from nothing is nothing."""
    if free.low == 0 and value < NOTHING * free.starts[0]:
        return 0.0
    return float(f"{value:.{DIGITS}g}")


def _model(points: Sequence[Point], peaks: Peaks) -> Callable[[Any], Any]:
    """Constants -> predicted seconds of the points, with their work put into arrays once."""
    import numpy as np

    if isinstance(points[0], CollectivePoint):
        sizes = np.array([float(work_of(point).bytes) for point in points])
        return lambda constants: collective_seconds(sizes, constants)
    works = [work_of(point) for point in points]
    work = Work(*(np.array([float(getattr(w, name)) for w in works]) for name in Work.__slots__))
    return lambda constants: kernel_seconds(work, constants, peaks)
