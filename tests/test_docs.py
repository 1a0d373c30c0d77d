"""The documents show what the tool prints: every `$ planner ...` block is run and its output compared."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "CONTRIBUTING.md")
BLOCK = re.compile(r"```console\n\$ planner (?P<arguments>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)


def run(arguments: str) -> str:
    result = CliRunner().invoke(app, shlex.split(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_print_what_the_document_shows(
    document: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    path = ROOT / document
    text = path.read_text("utf-8")
    fresh = BLOCK.sub(lambda m: f"```console\n$ planner {m['arguments']}\n{run(m['arguments'])}```", text)
    if request.config.getoption("--refresh-golden"):
        path.write_text(fresh, "utf-8")
    else:
        assert fresh == text


def test_readme_has_examples() -> None:
    assert len(BLOCK.findall((ROOT / "README.md").read_text("utf-8"))) >= 4


def test_every_file_and_folder_that_the_documents_link_to_exists() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / document).read_text("utf-8")):
            assert (ROOT / target).exists(), f"{document} links to {target}"
