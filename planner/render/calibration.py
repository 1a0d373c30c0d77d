"""A calibration on a terminal: the machine, every point beside the datasheet, the fits, and curves through points."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import plotille
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.calibrate.curves import Curve
from planner.calibration import Calibration, CollectiveConstants, Errors, FittedKernel
from planner.calibration_run import CalibrationRun, Environment, RunPoint, Verdict
from planner.units import GIB, KIB, MIB, counted

TITLES = {
    "bandwidth": "Memory bandwidth",
    "gemm": "Matrix products",
    "decode_attention": "Decode attention",
    "prefill_attention": "Prefill attention",
    "collective": "Collectives",
}
HIDDEN = ("op", "kv_dtype")
"""Fields of a shape that say nothing beside the others."""
VERDICT_STYLES: dict[Verdict, str] = {
    "ok": "",
    "noisy": "yellow",
    "throttled": "red",
    "wrong": "bold red",
    "skipped": "dim",
}
NAME_WIDTH = 100
WIDE = 150
"""Columns from which every figure of a point or fit stands on one line."""
NAMED = ("dtype",)
"""Fields of a shape that head a table of their own where the terminal is narrow."""
FURTHER = {
    "norm": "norm {:.3g}",
    "serial_ns_per_step": "{:.3g} ns a step",
    "item_ns": "{:.3g} ns an item",
    "activation_passes": "{:.3g} activation passes",
    "token_passes": "{:.3g} token passes",
    "l2_reach": "L2 reach {:.2f}",
    "l2_speedup": "L2 speedup {:.3g}",
}
"""Constants that are often without effect, and then not shown."""


def draw(calibration: Calibration, width: int) -> RenderableType:
    """Everything but the plots, for a terminal of this many columns."""
    narrow = width < WIDE
    parts: list[RenderableType] = [Text(calibration.name, style="bold")]
    if isinstance(calibration, CalibrationRun):
        parts += [_machine(calibration.environment), _verdicts(calibration.points)]
        for family, title in TITLES.items():
            chosen = [p for p in calibration.points if p.family == family and p.verdict not in ("skipped", "wrong")]
            if chosen:
                parts += [_heading(title), *(_narrow_points(chosen) if narrow else [_points(chosen)])]
        parts += _lines("Not measured", _left_out(calibration.points))
        parts += _lines("Kernels that ran", _kernels(calibration.points))
        parts += _lines("Notes", (*calibration.environment.notes, *_point_notes(calibration.points)))
    if calibration.kernels:
        parts += [_heading(f"Fitted constants, as shares of {calibration.peaks}")]
        parts += _narrow_fits(calibration.kernels) if narrow else [_fits(calibration.kernels)]
        parts += _lines("Doubts about the fits", _doubts(calibration.kernels))
    parts += _lines(
        "Borrowed", (f"{b.family}: {b.borrowed_family} of {b.calibration}; {b.rule}" for b in calibration.borrowed)
    )
    parts += _lines("Left out", calibration.left_out)
    licence = f" ({calibration.licence})" if calibration.licence else ""
    parts += _lines("Source", (f"{calibration.source}{licence}, {calibration.as_of}",))
    return Group(*parts)


def plot(curve: Curve, width: int) -> str:
    """Points and their curve; the x axis in powers of ten."""
    figure = plotille.Figure()
    figure.width, figure.height = max(20, min(width - 24, 100)), 14
    figure.with_colors = False
    figure.x_label, figure.y_label = curve.x_label, curve.y_label
    figure.x_ticks_fkt = _power
    figure.y_ticks_fkt = _tick
    xs = [math.log10(x) for series in curve.series for x, _ in (*series.measured, *series.fitted)]
    margin = 0.03 * (max(xs) - min(xs)) or 0.5
    figure.set_x_limits(min_=min(xs) - margin, max_=max(xs) + margin)
    figure.set_y_limits(min_=0)
    for series, marker in zip(curve.series, "ox+*sdvh" * len(curve.series), strict=False):
        points = sorted(series.measured)
        figure.scatter([math.log10(x) for x, _ in points], [y for _, y in points], label=series.label, marker=marker)
        if series.fitted:
            line = sorted(series.fitted)
            figure.plot([math.log10(x) for x, _ in line], [y for _, y in line], label=f"{series.label}, fitted")
    drawn: str = figure.show(legend=True)
    return f"{curve.title}\n{drawn}"


def _machine(machine: Environment) -> Text:
    """Device, software and settings in a few lines."""
    memory = f"{machine.memory_bytes / GIB:.1f} GiB" if machine.memory_bytes else None
    clocks = f"idle at {machine.sm_clock_mhz} of {machine.max_sm_clock_mhz} MHz" if machine.sm_clock_mhz else None
    facts = (
        machine.device,
        machine.accelerator and f"profile {machine.accelerator}",
        memory,
        clocks,
        machine.power_limit_w and f"{machine.power_limit_w:g} W",
        None if machine.ecc is None else f"ECC {'on' if machine.ecc else 'off'}",
        machine.temperature_c is not None and f"{machine.temperature_c} °C",
        machine.driver and f"driver {machine.driver}",
        f"torch {machine.torch}",
        machine.cuda and f"CUDA {machine.cuda}",
        machine.cudnn and f"cuDNN {machine.cudnn}",
        counted(machine.threads, "CPU thread"),
        f"{machine.measured_at:%Y-%m-%d %H:%M} UTC",
    )
    return Text(" · ".join(str(fact) for fact in facts if fact), style="dim")


def _verdicts(points: Sequence[RunPoint]) -> Text:
    counts = Counter(point.verdict for point in points)
    return Text(
        f"{counted(len(points), 'point')}: " + ", ".join(f"{counts[v]} {v}" for v in VERDICT_STYLES if counts[v])
    )


def _narrow_points(points: Sequence[RunPoint]) -> list[RenderableType]:
    """A table for each backend and dtype under its name, its headings on two lines and without the spread."""
    groups: dict[tuple[str, ...], list[RunPoint]] = {}
    for point in points:
        groups.setdefault((point.backend, *(str(point.shape[n]) for n in NAMED if n in point.shape)), []).append(point)
    return [
        part for name, group in groups.items() for part in (Text(" ".join(name), "dim"), _points(group, narrow=True))
    ]


def _points(points: Sequence[RunPoint], *, narrow: bool = False) -> Table:
    """A line a point: shape, time, what was achieved, and of what the datasheet says."""
    computes = any(point.flops for point in points)
    hidden = (*HIDDEN, *NAMED) if narrow else HIDDEN
    shapes = [name for name in points[0].shape if name not in hidden]
    space = "\n" if narrow else " "
    backend = () if narrow else ("backend",)
    left = (*backend, *(name.replace("_", space) for name in shapes), "time")
    table = _table(left, (*([] if narrow else ["spread"]), "GB/s", f"of{space}peak"), gap=1 if narrow else 2)
    if computes:
        _columns(table, ("TFLOP/s", f"of{space}peak"))
    table.add_column(Text("verdict"), no_wrap=True)
    for point in points:
        speeds = [_number(point.achieved_gb_per_s), _share(point.share_of_datasheet_gb_per_s)]
        if computes:
            speeds += [_number(point.achieved_tflop_per_s), _share(point.share_of_datasheet_tflop_per_s)]
        shape = [_field(name, point.shape[name]) for name in shapes]
        spread = [] if narrow else [_share(point.iqr_share)]
        cells = (*([] if narrow else [point.backend]), *shape, _time(point.median_us), *spread, *speeds)
        table.add_row(*map(Text, cells), Text(point.verdict, style=VERDICT_STYLES[point.verdict]))
    return table


def _narrow_fits(fits: Sequence[FittedKernel]) -> list[RenderableType]:
    """Three lines a fit: its name, its errors and its constants."""
    parts: list[RenderableType] = []
    for fit in fits:
        held = "; held out: median {}, p90 {}".format(*_errors(fit.holdout)) if fit.holdout else ""
        errors = "{}: median {}, p90 {}".format(counted(fit.residual.points, "point"), *_errors(fit.residual))
        parts.append(Text(" ".join(filter(None, (fit.family.replace("_", " "), fit.key, fit.kernel)))))
        parts += [Padding(Text(line, style="dim"), (0, 0, 0, 2)) for line in (errors + held, _constants(fit))]
    return parts


def _fits(fits: Sequence[FittedKernel]) -> Table:
    table = _table(("family", "key", "kernel"), ("points", "median", "p90", "held out: median", "p90"))
    table.add_column(Text("constants"), overflow="fold")
    for fit in fits:
        held = _errors(fit.holdout) if fit.holdout else ("-", "-")
        cells = (
            fit.family.replace("_", " "),
            fit.key,
            fit.kernel,
            str(fit.residual.points),
            *_errors(fit.residual),
            *held,
        )
        table.add_row(*map(Text, (*cells, _constants(fit))))
    return table


def _doubts(fits: Iterable[FittedKernel]) -> list[str]:
    return [f"{fit.family.replace('_', ' ')} {fit.key} {fit.kernel}: {fit.notes}" for fit in fits if fit.notes]


def _errors(errors: Errors) -> tuple[str, str]:
    return f"{errors.median_percent:.1f} %", f"{errors.p90_percent:.1f} %"


def _constants(fit: FittedKernel) -> str:
    """What differs from a constant that does nothing."""
    constants = fit.constants
    if isinstance(constants, CollectiveConstants):
        parts = [f"latency {constants.latency_us:.3g} us", f"{constants.gb_per_s:.3g} GB/s"]
    else:
        parts = [f"floor {constants.floor_us:.3g} us", f"memory {constants.memory_efficiency:.2f}"]
        if fit.family != "bandwidth":
            parts.append(f"compute {constants.compute_efficiency:.2f}")
    changed = constants.model_dump(exclude_defaults=True)
    parts += [label.format(changed[name]) for name, label in FURTHER.items() if name in changed]
    return ", ".join(parts)


def _left_out(points: Iterable[RunPoint]) -> list[str]:
    """Skipped and wrong points, those with the same reason together."""
    reasons = Counter(
        f"{p.family.replace('_', ' ')} on {p.backend}: {p.verdict}, {'; '.join(p.notes)}"
        for p in points
        if p.verdict in ("skipped", "wrong")
    )
    return [f"{reason} ({counted(count, 'point')})" for reason, count in reasons.items()]


def _kernels(points: Iterable[RunPoint]) -> list[str]:
    names: dict[tuple[str, str, str], dict[str, None]] = {}
    for point in points:
        key = (point.family.replace("_", " "), point.backend, str(point.shape.get("dtype", "")))
        names.setdefault(key, {}).update(dict.fromkeys(point.kernels))
    shown = {
        key: [name if len(name) <= NAME_WIDTH else f"{name[:NAME_WIDTH]}..." for name in found]
        for key, found in names.items()
    }
    return [f"{' '.join(filter(None, key))}: {', '.join(found)}" for key, found in shown.items() if found]


def _point_notes(points: Iterable[RunPoint]) -> list[str]:
    notes = Counter(note for p in points if p.verdict not in ("skipped", "wrong") for note in p.notes)
    return [f"{note} ({counted(count, 'point')})" for note, count in notes.items()]


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold cyan")


def _lines(heading: str, lines: Iterable[str]) -> list[RenderableType]:
    lines = tuple(lines)
    return [_heading(heading), *(Padding(Text(line, style="dim"), (0, 0, 0, 2)) for line in lines)] if lines else []


def _table(left: Sequence[str], right: Sequence[str], gap: int = 2) -> Table:
    """A borderless table; words are aligned left and everything after them right."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for name in left:
        words = name in ("backend", "dtype", "family", "key", "kernel")
        table.add_column(Text(name), justify="left" if words else "right", no_wrap=True)
    _columns(table, right)
    return table


def _columns(table: Table, names: Iterable[str]) -> None:
    for name in names:
        table.add_column(Text(name), justify="right", no_wrap=True)


def _field(name: str, value: int | str) -> str:
    if name == "bytes" and isinstance(value, int):
        unit, size = next((u for u in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)) if value >= u[1]), ("B", 1))
        return f"{value / size:g} {unit}"
    return f"{value:,}" if isinstance(value, int) else value


def _time(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    return f"{microseconds:,.1f} us" if microseconds < 10_000 else f"{microseconds / 1000:,.1f} ms"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f} %"


def _power(low: float, _: float) -> str:
    return f"{10**low:.2g}"


def _tick(low: float, _: float) -> str:
    return f"{low:.3g}"
