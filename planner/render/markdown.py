"""A report or a comparison as GitHub-flavoured Markdown."""

from collections.abc import Iterable, Sequence

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
from planner.report import Comparison, Report


def draw(result: Report | Comparison) -> str:
    """Either kind of result."""
    return _report(result) if isinstance(result, Report) else _comparison(result)


def _report(report: Report) -> str:
    """One report: table, limit, warnings, assumptions, arithmetic, sources."""
    return "\n".join(
        [
            f"# {_plain(title(report))}",
            "",
            _plain(subject([report])),
            "",
            *_table([report], ["value"]),
            "",
            *_listed(CURVE_HEADS, curve_rows(report)),
            *_listed(BAND_HEADS, band_rows(report)),
            *_listed(GROWTH_HEADS, growth_rows(report)),
            *_bullets("Growth", growth_lines(report)),
            *_listed(WORLD_HEADS, world_rows(report)),
            *_bullets("Uncertain demand", demand_lines(report)),
            *_bullets("Simulation", simulation_lines(report)),
            *_listed(CHECK_HEADS, check_rows(report)),
            *_listed(HIT_HEADS, hit_rows(report)),
            f"**Binds: {_plain(report.binding_limit)}.** {_plain(report.binding_reason)}",
            *_bullets("Replicas that each limit asks for", need_lines(report)),
            *_bullets("Warnings", report.warnings),
            *_bullets("Assumptions", report.assumptions),
            *_bullets(
                "Arithmetic",
                (f"{_code(d.path)}: {_plain(d.text)} *[{d.basis}]*" for d in report.derivations),
                raw=True,
            ),
            *_bullets("Sources", map(source_line, report.sources)),
            "",
        ]
    )


def _comparison(comparison: Comparison) -> str:
    """Columns side by side, then every line that moved."""
    reports = comparison.reports
    lines = [
        f"# {_plain(compared(reports))}",
        "",
        _plain(subject(reports)),
        "",
        f"**{_plain(comparison.verdict)}**",
        "",
        *_table(reports, headings(reports)),
    ]
    if comparison.changes:
        heads = ("", "line", "old", "new", "difference", "%", "why")
        lines += ["", "## What changed", "", _row(heads), _row(["---"] * len(heads))]
        lines += [
            _row((f"`{c.sign}`", c.label, c.old, c.new, c.difference, c.percent, c.why)) for c in comparison.changes
        ]
    names = headings(reports)
    lines += _bullets("Prices", shared([prices_of(report) for report in reports], names))
    lines += _bullets("Warnings", shared([report.warnings for report in reports], names))
    lines += _bullets("Assumptions", shared([report.assumptions for report in reports], names))
    return "\n".join([*lines, ""])


def _table(reports: Sequence[Report], names: Sequence[str]) -> list[str]:
    lines = [_row(["", *names]), _row(["---", *["---:"] * len(names)])]
    for row, cells in main_rows(reports):
        lines.append(_row([row.label, *cells]))
        if row.path == "cost.monthly_usd":
            lines += [_row([f"– {label}", *line_cells]) for label, line_cells in cost_rows(reports)]
    return lines


def _listed(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    return [_row(heads), _row(["---:"] * len(heads)), *(_row(row) for row in rows), ""]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _bullets(heading: str, lines: Iterable[str], *, raw: bool = False) -> list[str]:
    lines = [line if raw else _plain(line) for line in lines]
    return ["", f"## {heading}", "", *(f"- {line}" for line in lines)] if lines else []


def _plain(text: str) -> str:
    """Text that Markdown and the HTML it may hold cannot take for their own."""
    text = text.replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("|", "\\|").replace("\n", " ").replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")


def _code(text: str) -> str:
    """Text as a code span that it cannot end."""
    text = text.replace("`", "'").replace("\n", " ")
    return f"`{text}`"
