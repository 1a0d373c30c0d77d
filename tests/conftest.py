"""Options of the test run, vendors' configs as files, and hypothesis made repeatable on every machine, however slow."""

import json
from datetime import date
from pathlib import Path

import pytest
from hypothesis import settings

from planner import cli_options
from tests.scenarios import VENDORS

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="write what is printed now as what is expected")


@pytest.fixture(autouse=True)
def the_same_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices age; what is printed about them must not change overnight."""
    monkeypatch.setattr(cli_options, "today", lambda: date(2026, 11, 30))


@pytest.fixture(scope="session")
def vendor_configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of checkpoint folders named ORG__NAME, as `planner validate --configs` takes it."""
    root = tmp_path_factory.mktemp("vendor_configs")
    for name, row in VENDORS["models"].items():
        folder = root / name.replace("/", "__")
        folder.mkdir()
        for field, file in (("config", "config.json"), ("hf_quant_config", "hf_quant_config.json")):
            if field in row:
                (folder / file).write_text(json.dumps(row[field]), "utf-8")
    return root
