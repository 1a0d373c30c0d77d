"""Options of the test run, and hypothesis made repeatable: the same tests on every machine, however slow."""

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="write what is printed now as what is expected")
