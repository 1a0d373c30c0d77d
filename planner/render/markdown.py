"""A report or a comparison as GitHub-flavoured Markdown."""

from collections.abc import Iterable, Iterator, Sequence

from planner.render.parts import (
    Line,
    Part,
    basis_parts,
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


def draw(result: Report | Comparison) -> str:
    """Either kind of result."""
    return _report(result) if isinstance(result, Report) else _comparison(result)


def _report(report: Report) -> str:
    """One report: table, limit, warnings, assumptions, arithmetic, sources."""
    lines = opening(title(report), subject([report]))
    lines += [*_table(report_lines(report), ["value"]), *parts([*table_parts(report), *simulation_parts(report)])]
    lines += ["", f"**{plain(limit_of(report))}**", *parts([*remark_parts(report), *basis_parts(report)])]
    return "\n".join([*lines, ""])


def _comparison(comparison: Comparison) -> str:
    """Columns side by side, then every line that moved."""
    reports = comparison.reports
    lines = [*opening(compared(reports), subject(reports)), f"**{plain(comparison.verdict)}**", ""]
    lines += _table(main_lines(reports), headings(reports))
    if comparison.changes:
        heads = ("", "line", "old", "new", "difference", "%", "why")
        lines += ["", "## What changed", "", _row(heads), _row(["---"] * len(heads))]
        lines += [
            _row((f"`{c.sign}`", c.label, c.old, c.new, c.difference, c.percent, c.why)) for c in comparison.changes
        ]
    return "\n".join([*lines, *parts(compared_parts(comparison)), ""])


def opening(heading: str, line: str) -> list[str]:
    """The title, and what was planned."""
    return [f"# {plain(heading)}", "", plain(line), ""]


def _table(lines: Iterable[Line], names: Sequence[str]) -> Iterator[str]:
    yield _row(["", *names])
    yield _row(["---", *["---:"] * len(names)])
    yield from (_row([f"– {line.label}" if line.inner else line.label, *line.cells]) for line in lines)


def parts(of_result: Iterable[Part]) -> Iterator[str]:
    """Each as a section of its own."""
    for part in of_result:
        yield from ("", f"## {plain(part.heading)}")
        if part.rows:
            yield from ("", _row(head for head, _ in part.heads))
            yield _row("---:" if right else "---" for _, right in part.heads)
            yield from map(_row, part.rows)
        if part.lines:
            yield from ("", *(f"- {plain(line)}" for line in part.lines))


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(plain(cell) for cell in cells) + " |"


def plain(text: str) -> str:
    """Text that Markdown and the HTML it may hold cannot take for their own."""
    text = text.replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("|", "\\|").replace("\n", " ").replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")
