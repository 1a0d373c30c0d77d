"""A report or a comparison on a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.render.tables import (
    BAND_HEADS,
    CHECK_HEADS,
    CURVE_HEADS,
    GROWTH_HEADS,
    HIT_HEADS,
    WORLD_HEADS,
    band_rows,
    check_rows,
    compared,
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
    subject,
    title,
    world_rows,
)
from planner.report import Change, Comparison, Report

FREE_COLUMNS = ("value", "why")
"""Columns whose text may run over several lines; figures and labels never do."""
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
    parts = [*_heading(title(report), [report]), _table([report], ["value"], only)]
    parts += [] if only else _tables_of(report)
    parts += _remarks("Simulation", simulation_lines(report))
    if checks := check_rows(report):
        parts += [Text("\nThe formulas and the simulation", style="bold cyan"), _checks(checks)]
    if hits := hit_rows(report):
        parts += [Text("\nPrefix cache by scope", style="bold cyan"), _listed(HIT_HEADS, hits)]
    parts.append(_limit(report))
    parts += [] if only else _remarks("Replicas that each limit asks for", need_lines(report))
    parts += _remarks("Warnings", report.warnings, "yellow")
    if not brief:
        parts += _remarks("Assumes", report.assumptions)
        parts += _remarks("Arithmetic", (f"{d.path}: {d.text} [{d.basis}]" for d in report.derivations))
        parts += _remarks("Sources", map(source_line, report.sources))
    return Group(*parts)


def _tables_of(report: Report) -> list[RenderableType]:
    """What of a report has a table of its own."""
    parts: list[RenderableType] = []
    if curve := curve_rows(report):
        parts += [Text("\nKV bytes of one request over its context", style="bold cyan"), _listed(CURVE_HEADS, curve)]
    if bands := band_rows(report):
        parts += [Text("\nTime to first token by length of the prompt", style="bold cyan"), _listed(BAND_HEADS, bands)]
    if growth := growth_rows(report):
        parts += [Text("\nGrowth", style="bold cyan"), _listed(GROWTH_HEADS, growth)]
        parts += [Text(line) for line in growth_lines(report)]
    if worlds := world_rows(report):
        parts += [Text("\nUncertain demand", style="bold cyan"), _listed(WORLD_HEADS, worlds)]
        parts += [Text(line) for line in demand_lines(report)]
    return parts


def _comparison(comparison: Comparison, width: int) -> RenderableType:
    """Columns side by side; of two reports, also how every line moved and why."""
    reports, names = comparison.reports, headings(comparison.reports)
    table = _changes(comparison, with_why=width >= NARROW) if len(reports) == 2 else _table(reports, names)
    parts = [*_heading(compared(reports), reports), table, Text(f"\n{comparison.verdict}", style="bold")]
    if width < NARROW:
        parts += _remarks("Why", (f"{change.label}: {change.why}" for change in comparison.changes))
    parts += _remarks("Prices", shared([prices_of(report) for report in reports], names))
    parts += _remarks("Warnings", shared([report.warnings for report in reports], names), "yellow")
    parts += _remarks("Assumes", shared([report.assumptions for report in reports], names))
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


def _empty_table(*columns: tuple[str, bool]) -> Table:
    """A borderless table; each column is its heading and whether it is aligned right."""
    headed = any(name for name, _ in columns if name != "value")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=headed)
    for name, right in columns:
        free = name in FREE_COLUMNS
        table.add_column(Text(name), justify="right" if right else "left", overflow="fold", no_wrap=not free)
    return table


def _table(reports: Sequence[Report], names: Sequence[str], only: str | None = None) -> Table:
    """Reports side by side.

    only: the one section that is shown; None: all of them
    """
    many = len(reports) > 1
    table = _empty_table(("", False), *((name, many) for name in names))
    section = None
    for row, cells in main_rows(reports):
        if (row.section == "limit" and not many) or (only and row.section != only):
            continue  # the line under the table says what limits, with its reason
        if row.section != section:
            _section(table, row.section, first=section is None)
            section = row.section
        table.add_row(Text(row.label), *map(Text, cells))
        if row.path == "cost.monthly_usd":
            for label, line_cells in cost_rows(reports):
                table.add_row(Text(f"  {label}", style="dim"), *(Text(cell, style="dim") for cell in line_cells))
    return table


def _listed(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = _empty_table(*((name, True) for name in names))
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _checks(rows: Sequence[Sequence[str]]) -> Table:
    table = _empty_table(*zip(CHECK_HEADS, (False, True, True, False, False), strict=True))
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _section(table: Table, name: str, *, first: bool) -> None:
    table.add_row(Text(name if first else f"\n{name}", style="bold cyan"))


def _changes(comparison: Comparison, *, with_why: bool) -> Table:
    """Every line of two reports: old, new, change, why. Inputs and model lines that did not move are left out."""
    names = headings(comparison.reports)
    columns = (("", False), ("", False), (names[0], True), (names[1], True), ("change", True), ("", True))
    table = _empty_table(*columns, *([("why", False)] if with_why else []))
    moved = {(change.path, change.label): change for change in comparison.changes}
    section = None
    for row, cells in main_rows(comparison.reports):
        change = moved.get((row.path, row.label))
        if change is None and row.section in ("scenario", "model"):
            continue
        if row.section != section:
            table.add_row(Text(""), Text(row.section if section is None else f"\n{row.section}", style="bold cyan"))
            section = row.section
        _change_row(table, row.label, cells, change)
        if row.path == "cost.monthly_usd":
            for label, line_cells in cost_rows(comparison.reports):
                _change_row(table, f"  {label}", line_cells, moved.get(("cost.lines", label)))
    return table


def _change_row(table: Table, label: str, cells: Sequence[str], change: Change | None) -> None:
    wide = len(table.columns)
    if change is None:
        table.add_row(*[Text(cell, style="dim") for cell in ("", label, *cells, "same", "", "")][:wide])
        return
    cells = (change.sign, label, *cells, change.difference, change.percent, change.why)
    table.add_row(*[Text(cell) for cell in cells][:wide])


def _limit(report: Report) -> Text:
    style = "bold" if report.fleet else "bold red"
    return Text(f"\nBinds: {report.binding_limit}. {report.binding_reason}", style=style)


def _remarks(heading: str, lines: Iterable[str], style: str = "") -> list[RenderableType]:
    lines = tuple(lines)
    if not lines:
        return []
    return [
        Text(f"\n{heading}", style=style or "bold"),
        *(Padding(Text(line, style="" if style else "dim"), (0, 0, 0, 2)) for line in lines),
    ]
