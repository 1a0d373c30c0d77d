"""The lines of the main table, and what is said beside it: once for every format."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.render.tables import (
    BAND_HEADS,
    CHECK_HEADS,
    CURVE_HEADS,
    GROWTH_HEADS,
    HIT_HEADS,
    WORLD_HEADS,
    band_rows,
    check_rows,
    cost_rows,
    curve_rows,
    demand_lines,
    growth_lines,
    growth_rows,
    headings,
    hit_rows,
    main_rows,
    need_lines,
    prices_of,
    shared,
    simulation_lines,
    source_line,
    world_rows,
)
from planner.report import Change, Comparison, Report

WARNINGS = "Warnings"


@dataclass(frozen=True, slots=True)
class Part:
    """A heading with a table, lines of text, or both under it."""

    heading: str
    heads: Sequence[tuple[str, bool]] = ()
    """(heading, whether its cells stand at the right) of each column."""
    rows: Sequence[Sequence[str]] = ()
    lines: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the main table."""

    section: str
    label: str
    cells: Sequence[str]
    """One for each report."""
    path: str
    """Of a line of the bill, cost.lines."""
    change: Change | None = None
    """Of two reports."""

    @property
    def inner(self) -> bool:
        """Whether it is a line of the sum above it."""
        return self.path == "cost.lines"

    @property
    def moved(self) -> tuple[str, ...]:
        """Sign, label, old, new, difference, percent and why, of two reports."""
        change = self.change
        if change is None:
            return ("", self.label, *self.cells, "same", "", "")
        return (change.sign, self.label, *self.cells, change.difference, change.percent, change.why)


def main_lines(reports: Sequence[Report], changes: Sequence[Change] = ()) -> Iterator[Line]:
    """The main table, with the lines of each bill under what they come to."""
    moved = {(change.path, change.label): change for change in changes}
    for row, cells in main_rows(reports):
        yield Line(row.section, row.label, cells, row.path, moved.get((row.path, row.label)))
        if row.path == "cost.monthly_usd":
            for label, of_line in cost_rows(reports):
                yield Line(row.section, label, of_line, "cost.lines", moved.get(("cost.lines", label)))


def report_lines(report: Report) -> Iterator[Line]:
    """The main table of one report; what limits is said beside it, with its reason."""
    yield from (line for line in main_lines([report]) if line.section != "limit")


def changed_lines(comparison: Comparison) -> Iterator[Line]:
    """The main table of two reports; lines of inputs and of the model that did not move are left out."""
    for line in main_lines(comparison.reports, comparison.changes):
        if line.change or line.section not in ("scenario", "model"):
            yield line


def table_parts(report: Report) -> list[Part]:
    """What of a report has a table of its own."""
    world_heads = ((WORLD_HEADS[0], False), *_right(WORLD_HEADS[1:]))
    return _given(
        Part("KV bytes of one request over its context", _right(CURVE_HEADS), curve_rows(report)),
        Part("Time to first token by length of the prompt", _right(BAND_HEADS), band_rows(report)),
        Part("Growth", _right(GROWTH_HEADS), growth_rows(report), growth_lines(report)),
        Part("Uncertain demand", world_heads, world_rows(report), demand_lines(report)),
    )


def simulation_parts(report: Report) -> list[Part]:
    """What a simulation saw beside its figures."""
    heads = tuple(zip(CHECK_HEADS, (False, True, True, False, False), strict=True))
    return _given(
        Part("Simulation", lines=simulation_lines(report)),
        Part("The formulas and the simulation", heads, check_rows(report)),
        Part("Prefix cache by scope", _right(HIT_HEADS), hit_rows(report)),
    )


def limit_of(report: Report) -> str:
    """What sets the size of the fleet, or leaves none."""
    return f"Binds: {report.binding_limit}. {report.binding_reason}"


def remark_parts(report: Report) -> list[Part]:
    """What to know of a report."""
    return _given(
        Part("Replicas that each limit asks for", lines=need_lines(report)), Part(WARNINGS, lines=report.warnings)
    )


def basis_parts(report: Report) -> list[Part]:
    """What a report rests on."""
    return _given(
        Part("Assumes", lines=report.assumptions),
        Part("Arithmetic", lines=[f"{each.path}: {each.text} [{each.basis}]" for each in report.derivations]),
        Part("Sources", lines=[source_line(each) for each in report.sources]),
    )


def compared_parts(comparison: Comparison) -> list[Part]:
    """What to know of reports side by side."""
    reports, names = comparison.reports, headings(comparison.reports)
    return _given(
        Part("Prices", lines=shared([prices_of(report) for report in reports], names)),
        Part(WARNINGS, lines=shared([report.warnings for report in reports], names)),
        Part("Assumes", lines=shared([report.assumptions for report in reports], names)),
    )


def _right(heads: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    return tuple((head, True) for head in heads)


def _given(*parts: Part) -> list[Part]:
    """Those that have anything to say."""
    return [part for part in parts if part.rows or part.lines]
