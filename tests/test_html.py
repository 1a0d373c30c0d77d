"""HTML: well-formed, self-contained, with every text as text and the figures of the other formats."""

from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app
from planner.compare import compare
from planner.render import markdown
from planner.render.html import draw
from planner.report import Comparison, Report
from tests.scenarios import EXAMPLES
from tests.test_render import RESULTS, THIRTY_TWO, named

TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "table", "thead", "tbody", "tr", "th",
    "td", "ul", "li",
}  # fmt: skip
ATTRIBUTES = {"lang", "dir", "charset", "name", "content", "http-equiv", "class", "colspan", "scope"}
HOSTILE = "</title></style><script>alert(1)</script><img src=x onerror=\"a\" title='b'>&lt;&amp; עברית"
SEARCH = ("search", "--model", "llama-3.1-8b", "--workload", "chat", "--gpu", "h100-sxm", "--gpu", "l40s")


class Page(HTMLParser):
    """Tags as they nest, and the text of each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.rows: list[list[str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert {name for name, _ in attrs} <= ATTRIBUTES
        if tag != "meta":
            self.open.append(tag)
            self.texts.append((tag, ""))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1] += [""] * int(dict(attrs).get("colspan") or 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            tag, before = self.texts[-1]
            self.texts[-1] = tag, before + data
            if self.open[-1] in ("td", "th"):
                self.rows[-1][-1] += data


def page_of(result: Report | Comparison) -> Page:
    page = Page(draw(result, None))
    assert page.open == []
    return page


def figures(result: Report | Comparison) -> set[str]:
    """Cells of Markdown's tables without what only Markdown marks."""
    lines = [line for line in markdown.draw(result).splitlines() if line.startswith("| ") and "---" not in line]
    found = {cell.strip().replace("\\", "").replace("&gt;", ">") for line in lines for cell in line.split(" | ")}
    return {cell.strip("| ").removeprefix("– ").strip("`") for cell in found}


@pytest.mark.parametrize("name", [name for name in RESULTS if "hostile" not in name])
def test_a_page_is_well_formed_and_holds_every_cell_of_the_other_formats(name: str) -> None:
    result = RESULTS[name]
    page = page_of(result)
    assert [tag for tag, _ in page.texts].count("h1") == 1
    cells = {cell for row in page.rows for cell in row}
    if isinstance(result, Report):
        assert figures(result) - cells <= {"binds", "", result.binding_limit}
    elif len(result.reports) > 2:
        assert figures(result) <= cells | {""}
    else:
        assert {change.new for change in result.changes} | {change.why for change in result.changes} <= cells


@pytest.mark.parametrize("name", ["one", "two"])
def test_whatever_a_text_holds_is_text(name: str) -> None:
    hostile = named(HOSTILE)
    page = page_of(hostile if name == "one" else compare([hostile, THIRTY_TWO]))
    assert any(HOSTILE in text for tag, text in page.texts if tag == "h1")
    assert any(HOSTILE in text for tag, text in page.texts if tag == "title")
    assert any(HOSTILE in text for tag, text in page.texts if tag == "li")


def test_a_page_loads_and_runs_nothing() -> None:
    page = draw(named(HOSTILE), None)
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    assert not [word for word in ("url(", "@import", "<script", "href", "<img", "<link") if word in page]


def test_a_page_is_drawn_again_from_a_saved_report(tmp_path: Path) -> None:
    scenario, kept, page = (
        EXAMPLES.parent / "tenants" / "assistant.yaml",
        tmp_path / "saved.yaml",
        tmp_path / "page.html",
    )
    run = CliRunner()
    asked = ["estimate", str(scenario), "--set", "growth={per_month: 0.1, months: 3}"]
    assert run.invoke(app, [*asked, "-f", "yaml", "-o", str(kept)]).exit_code == 0
    again = run.invoke(app, ["report", str(kept), "--format", "html", "-o", str(page)])
    assert (again.exit_code, again.output) == (0, "")
    drawn = page.read_text("utf-8")
    assert drawn == run.invoke(app, [*asked, "-f", "html"]).stdout
    rows = Page(drawn).rows
    assert ["month", "load", "active replicas", "devices billed", "monthly cost"] in rows
    assert sum(row[0] in ("1", "2", "3") for row in rows) == 3


def test_marks_that_turn_the_writing_direction_reach_no_page(tmp_path: Path) -> None:
    kept = tmp_path / "saved.json"
    run = CliRunner()
    asked = ["estimate", str(EXAMPLES / "16k.yaml"), "-f", "json"]
    text = run.invoke(app, asked).stdout
    kept.write_text(text.replace("Private assistant", "Private \u202e assistant", 1), "utf-8")
    refused = run.invoke(app, ["report", str(kept), "--format", "html"])
    assert (refused.exit_code, refused.stdout) == (2, "")


def test_a_search_is_a_page() -> None:
    found = CliRunner().invoke(app, [*SEARCH, "--format", "html"])
    assert found.exit_code == 0
    page = Page(found.stdout)
    assert page.open == []
    heads = next(row for row in page.rows if "fleet" in row)
    assert {len(row) for row in page.rows} == {len(heads)}
    text = CliRunner().invoke(app, [*SEARCH]).stdout.split()
    shown = " ".join(cell for row in page.rows for cell in row).split()
    lists = " ".join(text for tag, text in page.texts if tag == "li").split()
    assert not {word for word in text if "$" in word} - {*shown, *lists}
