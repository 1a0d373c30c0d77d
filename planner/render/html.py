"""A report, a comparison or a search as one HTML page: no scripts, nothing from elsewhere, every text escaped."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

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
from planner.render.search import Shown, counts, search_parts
from planner.render.search import subject as search_subject
from planner.render.tables import compared, headings, subject, title
from planner.report import Comparison, Report
from planner.search_report import SearchResult

STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --soft: #5c6370; --rule: #d9dce1; --warn: #8a5a00; --page: #fff }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e6ea; --soft: #9ba3af; --rule: #3a3f47; --warn: #e5b567; --page: #16181b }
}
body { margin: 2rem auto; max-width: 72rem; padding: 0 1.25rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; margin: 0; line-height: 1.25 }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
.soft, tr.inner td { color: var(--soft) }
.warnings { color: var(--warn) }
.limit { font-weight: 600 }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; overflow-wrap: normal }
th, td { text-align: left; vertical-align: top; padding: .2rem 1.25rem .2rem 0 }
tr > * { border-bottom: 1px solid var(--rule) }
th { font-weight: 600 }
th[colspan] { padding-top: 1rem }
.right { text-align: right; white-space: nowrap }
ul { margin: 0; padding-left: 1.25rem }
@media print {
  :root { color-scheme: light; --text: #000; --soft: #444; --rule: #bbb; --warn: #000; --page: #fff }
  body { margin: 0; max-width: none; font-size: 10pt }
  h2 { break-after: avoid }
  tr { break-inside: avoid }
  .wide { overflow: visible }
}
"""


def draw(result: Report | Comparison | SearchResult, shown: Shown | None) -> str:
    """Any kind of result.

    shown: how much of a search is drawn; None: the default
    """
    if isinstance(result, SearchResult):
        parts = search_parts(result, shown or Shown(), brief=False)
        return _page(result.scenario.title, search_subject(result), [_line(counts(result)), *_sections(parts)])
    if isinstance(result, Comparison):
        return _page(compared(result.reports), subject(result.reports), _comparison(result))
    return _page(title(result), subject([result]), _report(result))


def _page(heading: str, line: str, body: Iterable[str]) -> str:
    """The whole file; the policy keeps a browser from loading or running anything, whatever a text holds."""
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en" dir="ltr">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">""",
            f"<title>{escape(heading)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            f"<h1>{escape(heading)}</h1>",
            _line(line, "soft"),
            *body,
            "</body>\n</html>\n",
        ]
    )


def _report(report: Report) -> Iterator[str]:
    yield _line(limit_of(report), "limit")
    heads = [("", False), ("value", False)]
    yield _table(heads, _main_rows(((line, [line.label, *line.cells]) for line in report_lines(report)), heads))
    yield from _sections([*table_parts(report), *simulation_parts(report)])
    yield from _sections([*remark_parts(report), *basis_parts(report)])


def _comparison(comparison: Comparison) -> Iterator[str]:
    names = [(name, True) for name in headings(comparison.reports)]
    yield _line(comparison.verdict, "limit")
    if len(names) == 2:
        heads = [("", False), ("", False), *names, ("change", True), ("", True), ("why", False)]
        lines = ((line, line.moved) for line in changed_lines(comparison))
    else:
        heads = [("", False), *names]
        lines = ((line, (line.label, *line.cells)) for line in main_lines(comparison.reports))
    yield _table(heads, _main_rows(lines, heads))
    yield from _sections(compared_parts(comparison))


def _main_rows(lines: Iterable[tuple[Line, Sequence[str]]], heads: Sequence[tuple[str, bool]]) -> Iterator[str]:
    """Each line with its cells, under a row that names its section."""
    section = None
    for line, cells in lines:
        if line.section != section:
            section = line.section
            yield f'<tr><th colspan="{len(heads)}" scope="colgroup">{escape(section)}</th></tr>'
        yield _row(cells, heads, "inner" if line.inner else "")


def _sections(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        yield f"<h2>{escape(part.heading)}</h2>"
        if part.rows:
            yield _table(part.heads, (_row(row, part.heads) for row in part.rows))
        if part.lines:
            items = "\n".join(f"<li>{escape(line)}</li>" for line in part.lines)
            yield f'<ul class="{"warnings" if part.heading == WARNINGS else "soft"}">\n{items}\n</ul>'


def _table(heads: Sequence[tuple[str, bool]], rows: Iterable[str]) -> str:
    head = "".join(f'<th scope="col"{_side(right)}>{escape(name)}</th>' for name, right in heads)
    lines = "\n".join(rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table></div>'


def _row(cells: Sequence[str], heads: Sequence[tuple[str, bool]], kind: str = "") -> str:
    drawn = "".join(f"<td{_side(right)}>{escape(cell)}</td>" for cell, (_, right) in zip(cells, heads, strict=True))
    return f'<tr class="{kind}">{drawn}</tr>' if kind else f"<tr>{drawn}</tr>"


def _side(right: bool) -> str:
    return ' class="right"' if right else ""


def _line(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"
