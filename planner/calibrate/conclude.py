"""A run's points -> a calibration: constants of each backend, the fastest one marked, and the peaks they refer to."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from planner.calibrate.bundle import mark_fastest
from planner.calibrate.curves import point_of
from planner.calibrate.fit import COLLECTIVE, HOLDOUT_RULE, LEAST_POINTS, Fitted, Free, fit, free_constants
from planner.calibrate.forms import Peaks
from planner.calibrate.points import Point
from planner.calibration import CollectiveConstants, Family, FittedKernel, KernelConstants
from planner.calibration_run import USABLE, CalibrationRun, Environment, RunPoint
from planner.errors import MachineError

FAMILIES: tuple[Family, ...] = ("gemm", "decode_attention", "prefill_attention", "collective")
OK_SHARE = 2 / 3
"""Where less of a backend's points is ok, its noisy ones are fitted too."""
SPARE_POINTS = 2
"""A fit with fewer points beyond its constants passes through almost anything."""
POOR_P90_PERCENT = 50
"""Held-out error beyond which the constants are no use."""


def conclude(environment: Environment, points: Sequence[RunPoint], unmeasured: Sequence[str] = ()) -> CalibrationRun:
    """The file that a run leaves behind.

    unmeasured: what the run was never to measure, a line each
    raises: MachineError where nothing could be measured
    """
    usable = [point for point in points if point.verdict in USABLE]
    if not usable:
        raise MachineError(f"none of {len(points)} points could be measured: {_reasons(points)}")
    machine = environment.model_copy(update=_peaks(environment, usable))
    fits, left_out = _fits(machine, usable)
    name = f"{environment.accelerator or environment.device}-torch-{environment.torch.split('+')[0]}"
    return CalibrationRun(
        name=re.sub(r"[^a-z0-9.]+", "-", name.lower()),
        gpu=environment.accelerator or environment.device,
        engine="torch",
        engine_version=environment.torch,
        peaks=_peaks_note(environment),
        points_used=len(usable),
        holdout_rule=HOLDOUT_RULE,
        selection="points whose output was right and whose clocks were not lowered; noisy ones where few are not",
        kernels=tuple(fits),
        left_out=(*unmeasured, *left_out),
        source="planner calibrate on this machine",
        licence="yours",
        attribution="none needed",
        as_of=environment.measured_at.date(),
        environment=machine,
        points=tuple(points),
    )


def _peaks(environment: Environment, usable: Iterable[RunPoint]) -> dict[str, object]:
    """The datasheet's peaks; for what it does not say, the best that was measured."""
    best = dict[str, float]()
    bandwidth = 0.0
    for point in usable:
        if point.family == "bandwidth":
            bandwidth = max(bandwidth, point.achieved_gb_per_s or 0.0)
        if point.family == "gemm":
            dtype = str(point.shape["dtype"])
            best[dtype] = max(best.get(dtype, 0.0), point.achieved_tflop_per_s or 0.0)
    return {
        "peak_gb_per_s": environment.datasheet_gb_per_s or bandwidth or None,
        "peak_tflop_per_s": best | environment.datasheet_tflop_per_s,
    }


def _peaks_note(environment: Environment) -> str:
    if environment.accelerator:
        return f"datasheet, profiles/accelerators/{environment.accelerator}.yaml; where it has none, the best measured"
    return "the best copy or read, and the best matrix product of the dtype, of this run"


def _fits(machine: Environment, usable: Sequence[RunPoint]) -> tuple[list[FittedKernel], list[str]]:
    """(fits, what has too few points for one)."""
    fits, left_out = list[FittedKernel](), list[str]()
    for family in FAMILIES:
        of_family = [point for point in usable if point.family == family]
        measured = [point_of(point) for point in of_family]
        for key in dict.fromkeys(point.key for point in measured):
            same = [(raw, p) for raw, p in zip(of_family, measured, strict=True) if p.key == key]
            by_kernel: dict[str, list[tuple[RunPoint, Point]]] = defaultdict(list)
            for raw, point in same:
                by_kernel[point.kernel].append((raw, point))
            peaks = _peaks_for(machine, family, str(same[0][0].shape["dtype"]))
            fitted = list[FittedKernel]()
            for kernel, chosen in by_kernel.items():
                found = _fit(family, key, machine, chosen, peaks)
                if found is None:
                    few = "1 point is" if len(chosen) == 1 else f"{len(chosen)} points are"
                    left_out.append(f"{family} {key} {kernel}: {few} too few for a fit")
                else:
                    fitted.append(found)
            if fitted and peaks:
                fits += mark_fastest(
                    fitted, {kernel: [p for _, p in chosen] for kernel, chosen in by_kernel.items()}, peaks
                )
    return fits, left_out


def _peaks_for(machine: Environment, family: Family, dtype: str) -> Peaks | None:
    """What a fit's efficiencies refer to; None where the machine has no such peak."""
    flops = machine.peak_tflop_per_s.get(dtype)
    if not machine.peak_gb_per_s or (flops is None and family != "collective"):
        return None
    return Peaks(machine.peak_gb_per_s * 1e9, (flops or 0.0) * 1e12)


def _fit(
    family: Family, key: str, machine: Environment, chosen: Sequence[tuple[RunPoint, Point]], peaks: Peaks | None
) -> FittedKernel | None:
    """Constants of one backend; None where it has too few points or no peaks."""
    ok = [point for raw, point in chosen if raw.verdict == "ok"]
    steady = len(ok) >= max(LEAST_POINTS, OK_SHARE * len(chosen))
    points = ok if steady else [point for _, point in chosen]
    if len(points) < LEAST_POINTS or peaks is None:
        return None
    fitted = fit(points, peaks)
    return FittedKernel(
        family=family,
        key=key,
        kernel=chosen[0][1].kernel,
        version=machine.torch,
        constants=fitted.constants,
        residual=fitted.residual,
        holdout=fitted.holdout,
        notes="; ".join(_doubts(family, fitted, steady=steady)) or None,
    )


def _doubts(family: Family, fitted: Fitted, *, steady: bool) -> Iterator[str]:
    """Why the constants of a fit should not be trusted."""
    if not steady:
        yield "noisy points were fitted too: too few were ok"
    points = fitted.residual.points
    free = COLLECTIVE if family == "collective" else free_constants(family, points, l2=False)
    if points < len(free) + SPARE_POINTS:
        yield f"{points} points for {len(free)} constants: too few to trust them"
    yield from _at_bounds(free, fitted.constants)
    if fitted.holdout and fitted.holdout.p90_percent > POOR_P90_PERCENT:
        yield f"a tenth of the held-out points is off by more than {fitted.holdout.p90_percent:.0f} %"


def _at_bounds(free: Mapping[str, Free], constants: KernelConstants | CollectiveConstants) -> Iterator[str]:
    """Constants that the fit would have moved further; not the norm, nor one of nothing: those bounds are answers."""
    for name, bounds in free.items():
        value = getattr(constants, name)
        if name != "norm" and value and value in (bounds.low, bounds.high):
            yield f"{name} is at its bound of {value:g}: the points do not determine it"


def _reasons(points: Iterable[RunPoint]) -> str:
    return "; ".join(dict.fromkeys(note for point in points for note in point.notes)) or "no points"
