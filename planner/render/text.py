"""A report or a comparison on a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.render.parts import (
    WARNINGS,
    Line,
    Part,
    basis_parts,
    changed_lines,
    compared_parts,
    limit_of,
    main_lines,
    remark_parts,
    report_lines,
    simulation_parts,
    table_parts,
)
from planner.render.tables import compared, headings, subject, title
from planner.report import Comparison, Report

FREE_COLUMNS = ("value", "why", "fleet", "choice", "world")
"""Columns whose text may run over several lines; a figure or label that lacks room ends with an ellipsis, so that none
looks like another."""
SIMULATED = "simulated"
"""The section of what a simulation saw."""
NARROW = 110
"""Columns below which the reasons of a comparison stand under its table and not beside it."""


def draw(result: Report | Comparison, width: int, *, brief: bool) -> RenderableType:
    """Either kind of result, for a terminal of this many columns."""
    return _report(result, brief=brief) if isinstance(result, Report) else _comparison(result, width)


def _report(report: Report, *, brief: bool) -> RenderableType:
    """The main table, what binds, and unless brief the arithmetic, assumptions and sources; or a simulation alone."""
    only = SIMULATED if brief and report.simulation else None
    lines = [line for line in report_lines(report) if only in (None, line.section)]
    parts = [*_heading(title(report), [report]), _table(lines, ["value"])]
    parts += [] if only else _parts(table_parts(report))
    parts += _parts(simulation_parts(report))
    parts.append(_limit(report))
    parts += _parts(part for part in remark_parts(report) if not only or part.heading == WARNINGS)
    if not brief:
        parts += _parts(basis_parts(report))
    return Group(*parts)


def _comparison(comparison: Comparison, width: int) -> RenderableType:
    """Columns side by side; of two reports, also how every line moved and why."""
    reports, names = comparison.reports, headings(comparison.reports)
    table = _changes(comparison, with_why=width >= NARROW) if len(reports) == 2 else _table(main_lines(reports), names)
    parts = [*_heading(compared(reports), reports), table, Text(f"\n{comparison.verdict}", style="bold")]
    if width < NARROW and comparison.changes:
        parts += _part(Part("Why", lines=[f"{change.label}: {change.why}" for change in comparison.changes]))
    parts += _parts(compared_parts(comparison))
    return Group(*parts)


def write(part: RenderableType, console: Console) -> None:
    """Print to a console, with nothing in the data read as markup."""
    console.print(part, highlight=False, markup=False)


def listing_lines(rows: Sequence[Mapping[str, str | int | None]]) -> list[str]:
    """A listing as aligned columns; the last one is as long as it needs."""
    if not rows:
        return []
    cells = [[name.replace("_", " ") for name in rows[0]]]
    cells += [[f"{v:,}" if isinstance(v, int) else v or "-" for v in row.values()] for row in rows]
    numeric = [
        all(v is None or isinstance(v, int) for v in column) for column in zip(*(r.values() for r in rows), strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]


def plain(part: RenderableType, width: int) -> str:
    """The same as plain text, for a file or a pipe."""
    file = StringIO()
    write(part, Console(width=width, file=file, color_system=None))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def _heading(text: str, reports: Sequence[Report]) -> list[RenderableType]:
    return [Text(text, style="bold"), Text(subject(reports), style="dim"), Text("")]


def empty_table(*columns: tuple[str, bool]) -> Table:
    """A borderless table; each column is its heading and whether it is aligned right."""
    headed = any(name for name, _ in columns if name != "value")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=headed)
    for name, right in columns:
        free = name in FREE_COLUMNS
        table.add_column(
            Text(name),
            justify="right" if right else "left",
            overflow="fold" if free else "ellipsis",
            no_wrap=not free,
        )
    return table


def filled_table(heads: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> Table:
    """Such a table with its rows."""
    table = empty_table(*heads)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _table(lines: Iterable[Line], names: Sequence[str]) -> Table:
    """Reports side by side."""
    table = empty_table(("", False), *((name, len(names) > 1) for name in names))
    section = None
    for line in lines:
        if line.section != section:
            _section(table, line.section, first=section is None)
            section = line.section
        style = "dim" if line.inner else ""
        table.add_row(Text(_label(line), style=style), *(Text(cell, style=style) for cell in line.cells))
    return table


def _label(line: Line) -> str:
    return f"  {line.label}" if line.inner else line.label


def _section(table: Table, name: str, *, first: bool) -> None:
    table.add_row(Text(name if first else f"\n{name}", style="bold cyan"))


def _changes(comparison: Comparison, *, with_why: bool) -> Table:
    """Every line of two reports: old, new, change, why."""
    names = headings(comparison.reports)
    columns = (("", False), ("", False), (names[0], True), (names[1], True), ("change", True), ("", True))
    table = empty_table(*columns, *([("why", False)] if with_why else []))
    section = None
    for line in changed_lines(comparison):
        if line.section != section:
            table.add_row(Text(""), Text(line.section if section is None else f"\n{line.section}", style="bold cyan"))
            section = line.section
        sign, _, *cells = line.moved
        style = "" if line.change else "dim"
        table.add_row(*[Text(cell, style=style) for cell in (sign, _label(line), *cells)][: len(table.columns)])
    return table


def _limit(report: Report) -> Text:
    return Text(f"\n{limit_of(report)}", style="bold" if report.fleet else "bold red")


def _parts(parts: Iterable[Part]) -> list[RenderableType]:
    return [drawn for part in parts for drawn in _part(part)]


def _part(part: Part) -> list[RenderableType]:
    """A table with what is said of it, or a heading over indented lines."""
    if part.rows:
        table = filled_table(part.heads, part.rows)
        return [Text(f"\n{part.heading}", style="bold cyan"), table, *map(Text, part.lines)]
    heading, line = ("yellow", "") if part.heading == WARNINGS else ("bold", "dim")
    return [
        Text(f"\n{part.heading}", style=heading),
        *(Padding(Text(each, style=line), (0, 0, 0, 2)) for each in part.lines),
    ]
