"""Every format draws every result; what strangers named stays text; stdout is as the golden files say."""

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from planner import __version__
from planner.cli import app
from planner.compare import compare
from planner.plan import estimate
from planner.render import markdown, text
from planner.render.rows import ROWS
from planner.render.tables import replicas, show, show_bytes, show_usd, value
from planner.report import Comparison, Derivation, Report
from tests.scenarios import ROOT, example, report

HOSTILE = "[bold]x|y<script>\\|z `q` *s* _u_"
GOLDEN = Path(__file__).parent / "golden"
SCENARIOS = "examples/context-upgrade/16k.yaml", "examples/context-upgrade/32k.yaml"
COMMANDS = {
    "estimate-16k.txt": ("estimate", SCENARIOS[0]),
    "estimate-16k-yaml.txt": ("estimate", SCENARIOS[0], "--format", "yaml"),
    "compare.txt": ("compare", *SCENARIOS),
    "compare-markdown.txt": ("compare", *SCENARIOS, "--format", "markdown"),
}
SIXTEEN, THIRTY_TWO = estimate(example("16k"), devices=6), estimate(example("32k"), devices=6)


def named(name: str) -> Report:
    """A report in which everything that a stranger names is called `name`."""
    facts = dict.fromkeys(("name", "title", "model", "accelerator", "engine", "workload", "price"), name)
    base = SIXTEEN
    return base.model_copy(
        update={
            "scenario": base.scenario.model_copy(update=facts),
            "binding_reason": name,
            "warnings": (name,),
            "assumptions": (name,),
            "sources": tuple(source.model_copy(update={"what": name, "source": name}) for source in base.sources),
            "derivations": (Derivation(path=name, text=name, basis="given", source=name),),
            "model": base.model.model_copy(update={"quantisation": name}),
        }
    )


RESULTS: dict[str, Report | Comparison] = {
    "report": SIXTEEN,
    "report without a fleet": report("llama-3.1-70b"),
    "comparison": compare([SIXTEEN, THIRTY_TWO]),
    "comparison with one that does not fit": compare([report("llama-3.1-70b"), SIXTEEN]),
    "three": compare([SIXTEEN, THIRTY_TWO, report("llama-3.1-8b")]),
    "hostile": named(HOSTILE),
    "hostile comparison": compare([named(HOSTILE), THIRTY_TWO]),
}


def as_text(result: Report | Comparison, *, brief: bool = False, width: int = 400) -> str:
    return text.plain(text.draw(result, width, brief=brief), width)


@pytest.mark.parametrize("name", list(RESULTS))
def test_every_format_draws_the_main_figures(name: str) -> None:
    result = RESULTS[name]
    reports = [result] if isinstance(result, Report) else list(result.reports)
    for drawn in (as_text(result), markdown.draw(result)):
        for found in reports:
            assert show_bytes(found.kv_cache.bytes_per_request) in drawn
            if found.cost:
                assert show_usd(found.cost.monthly_usd) in drawn
        assert all(label in drawn for label in ("KV per token", "requests, fully reserved"))
        assert re.search("binds", drawn, re.IGNORECASE)


@pytest.mark.parametrize("name", ["report", "report without a fleet", "hostile"])
def test_brief_leaves_the_arithmetic_out(name: str) -> None:
    brief, whole = as_text(RESULTS[name], brief=True), as_text(RESULTS[name])
    assert "Arithmetic" in whole
    assert "Arithmetic" not in brief
    assert whole.startswith(brief)


def test_a_terminal_shows_what_a_pipe_shows() -> None:
    console = Console(width=120, force_terminal=True, record=True, file=StringIO())
    text.write(text.draw(SIXTEEN, 120, brief=False), console)
    shown = console.export_text()
    assert [line.rstrip() for line in shown.splitlines()] == as_text(SIXTEEN, width=120).splitlines()


@pytest.mark.parametrize("name", ["hostile", "hostile comparison"])
def test_names_are_text_on_a_terminal(name: str) -> None:
    assert HOSTILE in as_text(RESULTS[name])


def cells(line: str) -> int:
    """Cells of a GitHub table row: a backslash takes the next character's meaning away."""
    return re.sub(r"\\.", "", line).count("|") - 1


@pytest.mark.parametrize("name", list(RESULTS))
def test_names_are_text_in_markdown(name: str) -> None:
    drawn = markdown.draw(RESULTS[name])
    prose = "\n".join(re.sub(r"^- `[^`]*`", "", line) for line in drawn.splitlines())
    assert not re.search(r"<|(?<!\\)\[(?!(given|config|computed|measured|datasheet|assumed)\])", prose)
    tables = [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", drawn, re.MULTILINE)]
    assert tables
    for table in tables:
        assert len({cells(line) for line in table}) == 1


@pytest.mark.parametrize("name", ["hostile", "hostile comparison"])
def test_no_name_ends_a_line_of_markdown(name: str) -> None:
    two_lines = named("one\ntwo")
    result = two_lines if name == "hostile" else compare([two_lines, THIRTY_TWO])
    assert not [line for line in markdown.draw(result).splitlines() if line.startswith("two")]


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (131_072, "128 KiB"),
        (1536, "1.50 KiB"),
        (2**30, "1.00 GiB"),
        (24 * 2**30, "24.00 GiB"),
        (80 * 10**9, "74.51 GiB"),
        (-(2**30), "-1.00 GiB"),
    ],
)
def test_bytes_are_shown_in_binary_units_by_name(size: int, shown: str) -> None:
    assert show_bytes(size) == shown


def test_nothing_is_shown_for_nothing() -> None:
    assert {show(None, unit) for unit in {row.unit for row in ROWS}} == {"-"}
    assert replicas(report("llama-3.1-70b")) == "h100-sxm"


def test_every_row_is_a_path_of_the_report_and_follows_from_such_paths() -> None:
    for row in ROWS:
        for path in (row.path, *row.parents):
            value(SIXTEEN, path)
    assert len({row.path for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("file", list(COMMANDS))
def test_stdout_is_golden(file: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, list(COMMANDS[file]))
    assert (result.exit_code, result.stderr) == (0, "")
    printed = result.stdout.replace(f"planner_version: {__version__}", "planner_version: VERSION")
    path = GOLDEN / file
    if request.config.getoption("--refresh-golden"):
        path.write_text(printed, "utf-8")
    assert printed == path.read_text("utf-8")
