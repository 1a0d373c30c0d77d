"""What a recorded run logged every second, beside what its replay had: running, waiting, and the cache in use."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from planner.errors import InputError
from planner.printable import shown
from planner.simulate.measures import Point

MOST_VALUE = 10**9
COLUMNS: dict[str, Callable[[Point], float]] = {
    "running": lambda point: point.running,
    "waiting": lambda point: point.waiting,
    "kv_cache_pct": lambda point: 100 * point.used_share,
}
"""Columns that are compared, and the same of a simulated engine."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One column: its mean and its largest value."""

    column: str
    measured_mean: float
    simulated_mean: float
    measured_most: float
    simulated_most: float


def read_series(text: str, file: str) -> dict[str, list[float]]:
    """The columns of a file's text, row by row.

    raises: InputError with file, line and column of what cannot be read
    """
    reader = csv.DictReader(text.splitlines(), restval="", restkey="more")
    found: dict[str, list[float]] = {name: [] for name in COLUMNS}
    try:
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{file}:1: columns missing: {', '.join(missing)}")
        for row in reader:
            for name in COLUMNS:
                found[name].append(_value(row[name], f"{file}:{reader.line_num}: {name}"))
    except csv.Error as error:
        raise InputError(f"{file}:{reader.line_num}: is not CSV: {error}") from error
    if not found["running"]:
        raise InputError(f"{file}: holds no rows")
    return found


def _value(cell: str, place: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = -1.0
    if not isfinite(value) or not 0 <= value <= MOST_VALUE:
        raise InputError(f"{place}: {shown(cell)} is not a number from 0 to {MOST_VALUE:,}")
    return value


def compare_series(measured: dict[str, list[float]], points: Sequence[Point]) -> tuple[Comparison, ...]:
    """Each column over the whole run; one that the run did not log is 0 throughout, and left out."""
    found = []
    for name, logged in measured.items():
        ours = [COLUMNS[name](point) for point in points]
        if any(logged):
            found.append(Comparison(name, fmean(logged), fmean(ours), max(logged), max(ours)))
    return tuple(found)


def series_lines(found: Sequence[Comparison]) -> list[str]:
    """The comparison as text."""
    return [
        f"{each.column}: mean {each.measured_mean:,.1f} measured, {each.simulated_mean:,.1f} simulated; "
        f"most {each.measured_most:,.1f} and {each.simulated_most:,.1f}"
        for each in found
    ]
