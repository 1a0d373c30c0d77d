"""Calibrations held against tables of measured kernels: how far off, by family, GPU and engine."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from planner.calibrate.accuracy import relative_errors, summary
from planner.calibrate.bundle import FAMILIES, LIBRARIES
from planner.calibrate.fit import held_out
from planner.calibrate.peaks import peaks_for, shipped_accelerator
from planner.calibrate.shipped import calibration_names, shipped_calibration
from planner.calibrate.tables import SELECTION, Row, newest, read_tables, selected
from planner.calibration import Calibration, Errors, FittedKernel
from planner.catalog import load_calibration
from planner.errors import InputError
from planner.units import counted

BOUNDS = {
    "decode_attention": (7.0, 25.0),
    "prefill_attention": (8.0, 22.0),
    "gemm": (8.0, 28.0),
    "moe": (18.0, 50.0),
    "collective": (8.0, 23.0),
}
"""What a family's held-out errors may be, as a median over keys of the key's median and 90th percentile [%]."""


WIDE = 117
"""Columns that a line of scores takes."""
NARROW = (0, 1, 2, 5, 8, 9, 10)
"""Of a line's cells, those that a narrow terminal shows: the names, the median, and the held-out points."""


@dataclass(frozen=True, slots=True)
class KeyScore:
    """One key (dtype and kernel, or operation and ranks) on one GPU and engine."""

    family: str
    gpu: str
    engine: str
    key: str
    kernel: str
    version: str
    calibration: str
    extrapolated: bool
    """True where the constants were measured on another GPU."""
    all: Errors
    held_out: Errors | None
    """On the points that no shipped fit has seen."""


@dataclass(frozen=True, slots=True)
class GroupScore:
    """Keys of one family together (gpu and engine None: of all): medians over keys of the key's own figures."""

    family: str
    gpu: str | None
    engine: str | None
    keys: int
    points: int
    median_percent: float
    p90_percent: float
    bias_percent: float
    held_out_points: int
    held_out_median_percent: float | None
    held_out_p90_percent: float | None
    held_out_bias_percent: float | None


@dataclass(frozen=True, slots=True)
class Scores:
    """Everything that tables say about calibrations."""

    families: tuple[GroupScore, ...]
    groups: tuple[GroupScore, ...]
    """By family, GPU and engine."""
    keys: tuple[KeyScore, ...]
    unscored: tuple[str, ...]
    """Points without constants, and why."""
    exceeded: tuple[str, ...]
    """Why the tables are not passed: families beyond their bounds or without held-out points, or nothing scored."""


def score_tables(paths: Sequence[Path], calibration: str | None = None) -> Scores:
    """Predicted against measured seconds of every selected point of the tables.

    calibration: shipped name or path that all points are held against; None: the one of each point's GPU and engine
    raises: InputError with every bad row, or for an unknown calibration
    """
    read = read_tables(paths)
    rows = newest(selected(read))
    given = load_calibration(calibration) if calibration else None
    unscored: Counter[str] = Counter()
    keys = tuple(_score_keys(rows, given, unscored))
    groups = tuple(_grouped(keys, by_gpu=True))
    families = tuple(_grouped(keys, by_gpu=False))
    notes = tuple(f"{reason}: {counted(points, 'point')}" for reason, points in sorted(unscored.items()))
    failed = tuple(_exceeded(families)) if keys else (_nothing_scored(paths, len(read), len(rows)),)
    return Scores(families, groups, keys, notes, failed)


def _nothing_scored(paths: Sequence[Path], read: int, chosen: int) -> str:
    named = ", ".join(map(str, paths))
    if not read:
        return f"{named}: nothing scored: no rows under the header"
    if not chosen:
        return f"{named}: nothing scored: none of {counted(read, 'row')} is within the selection ({SELECTION})"
    return f"{named}: nothing scored: no calibration has constants for {counted(chosen, 'point')}"


def _score_keys(rows: Iterable[Row], given: Calibration | None, unscored: Counter[str]) -> Iterator[KeyScore]:
    found: dict[tuple[str, str, str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row.family, row.gpu, row.engine, row.point.key, row.point.kernel].append(row)
    shipped = _Shipped()
    order = sorted(found, key=lambda key: (FAMILIES.index(key[0]), key))
    for family, gpu, engine, key, kernel in order:
        points = [row.point for row in found[family, gpu, engine, key, kernel]]
        version = found[family, gpu, engine, key, kernel][0].version
        try:
            used = given or shipped.of(gpu, engine)
            entry = shipped.entry(used, family, key, kernel)
            peaks = peaks_for(shipped_accelerator(gpu), points[0])
        except InputError as error:
            unscored[f"{family} of {gpu} {engine}: {error.problems[0]}"] += len(points)
            continue
        errors = relative_errors(points, entry[1].constants, peaks)
        rest = [error for error, point in zip(errors, points, strict=True) if held_out(point)]
        yield KeyScore(
            family,
            gpu,
            engine,
            key,
            kernel,
            version,
            entry[0].name,
            entry[0].gpu != gpu,
            summary(errors),
            summary(rest) if rest else None,
        )


class _Shipped:
    """Shipped calibrations, each read once."""

    def __init__(self) -> None:
        self._loaded: dict[str, Calibration] = {}

    def named(self, name: str) -> Calibration:
        """The calibration of that name."""
        if name not in self._loaded:
            self._loaded[name] = shipped_calibration(name)
        return self._loaded[name]

    def of(self, gpu: str, engine: str) -> Calibration:
        """The calibration of a GPU and engine; a library's rows are in that of any engine."""
        shared = (name for name in calibration_names() if engine in LIBRARIES and self.named(name).gpu == gpu)
        return self.named(next(shared, f"{gpu}-{engine}"))

    def entry(self, used: Calibration, family: str, key: str, kernel: str) -> tuple[Calibration, FittedKernel]:
        """The constants that a calibration has, or borrows, for a key.

        raises: InputError where it has none
        """
        own = used.find(family, key, kernel)
        if own is not None:
            return used, own
        for borrowed in used.borrowed:
            if borrowed.family == family:
                lender = self.named(borrowed.calibration)
                lent = lender.find(family, key, kernel)
                if lent is not None:
                    return lender, lent
        what = key if family != "collective" else key.partition("/")[0]
        raise InputError(f"calibration {used.name} has no constants for {what}")


def _grouped(keys: Sequence[KeyScore], *, by_gpu: bool) -> Iterator[GroupScore]:
    groups: dict[tuple[str, str | None, str | None], list[KeyScore]] = defaultdict(list)
    for key in keys:
        groups[key.family, key.gpu if by_gpu else None, key.engine if by_gpu else None].append(key)
    for (family, gpu, engine), members in groups.items():
        rest = [member.held_out for member in members if member.held_out is not None]
        of_all, of_rest = _medians([member.all for member in members]), _medians(rest)
        yield GroupScore(
            family,
            gpu,
            engine,
            len(members),
            sum(member.all.points for member in members),
            of_all["median_percent"] or 0.0,
            of_all["p90_percent"] or 0.0,
            of_all["bias_percent"] or 0.0,
            sum(errors.points for errors in rest),
            of_rest["median_percent"],
            of_rest["p90_percent"],
            of_rest["bias_percent"],
        )


def _medians(errors: Sequence[Errors]) -> Mapping[str, float | None]:
    names = ("median_percent", "p90_percent", "bias_percent")
    return {name: statistics.median(getattr(e, name) for e in errors) if errors else None for name in names}


def _exceeded(families: Iterable[GroupScore]) -> Iterator[str]:
    for group in families:
        median, p90 = BOUNDS[group.family]
        ours = group.held_out_median_percent, group.held_out_p90_percent
        if ours[0] is None or ours[1] is None:
            yield f"{group.family}: none of {counted(group.points, 'point')} was held out of the fits"
            continue
        if ours[0] > median or ours[1] > p90:
            yield f"{group.family}: held-out errors {ours[0]:.1f}/{ours[1]:.1f} % exceed {median:.0f}/{p90:.0f} %"


def fields(scores: Scores) -> dict[str, object]:
    """The scores as plain data."""
    keys = [
        {name: getattr(key, name) for name in KeyScore.__slots__}
        | {"all": key.all.model_dump(), "held_out": key.held_out.model_dump() if key.held_out else None}
        for key in scores.keys
    ]
    groups = {name: [asdict(group) for group in getattr(scores, name)] for name in ("families", "groups")}
    return {**groups, "keys": keys, "unscored": list(scores.unscored), "exceeded": list(scores.exceeded)}


def lines(scores: Scores, width: int = WIDE) -> Iterator[str]:
    """The scores as text: a line for each group, then for each family, then what has no constants.

    width: of the terminal; below WIDE, columns are left out
    """
    head = ("family", "GPU", "engine", "keys", "points", "median", "p90", "bias", "held out", "median", "p90")
    if scores.groups:
        yield _line(*head, wide=width >= WIDE)
    for group in (*scores.groups, *scores.families):
        rest = (group.held_out_points, _percent(group.held_out_median_percent), _percent(group.held_out_p90_percent))
        figures = (_percent(group.median_percent), _percent(group.p90_percent), f"{group.bias_percent:+.1f} %")
        name = (group.family, group.gpu or "every GPU", group.engine or "")
        cells = (*name, f"{group.keys:,}", f"{group.points:,}", *figures, f"{rest[0]:,}", *rest[1:])
        yield _line(*cells, wide=width >= WIDE)
    yield from (f"not scored: {reason}" for reason in scores.unscored)
    extrapolated = sum(key.extrapolated for key in scores.keys)
    if extrapolated:
        yield f"extrapolated from another GPU's constants: {extrapolated:,} of {counted(len(scores.keys), 'key')}"
    yield from scores.exceeded


def _line(*cells: str, wide: bool) -> str:
    widths: tuple[int, ...] = (18, 20, 7, 5, 8, 8, 8, 8, 9, 8, 8)
    if not wide:
        cells, widths = tuple(cells[i] for i in NARROW), (17, 19, 6, 8, 8, 8, 7)
    left = [cell.ljust(width) for cell, width in zip(cells[:3], widths[:3], strict=True)]
    right = [cell.rjust(width) for cell, width in zip(cells[3:], widths[3:], strict=True)]
    return " ".join((*left, *right)).rstrip()


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"
