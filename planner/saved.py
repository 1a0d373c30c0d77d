"""A report, a comparison or a search as YAML or JSON, and back to an equal one."""

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from planner.documents import load_mapping, validate
from planner.documents import to_yaml as dump_yaml
from planner.errors import InputError
from planner.inputs import Model
from planner.origin import Origin
from planner.printable import shown
from planner.report import Comparison, Report

if TYPE_CHECKING:
    from planner.search_report import SearchResult

SCHEMA_VERSION = 3
MAX_REPORT_BYTES = 256 * 2**20
"""A search holds every choice that it tried."""
MAX_ORACLE_BYTES = 256 * 2**20
Result: TypeAlias = "Report | Comparison | SearchResult"
KINDS = ("planner report", "planner comparison", "planner search")


def to_json(result: Result) -> str:
    """JSON, indented, with a final newline."""
    return result.model_dump_json(indent=2) + "\n"


def to_yaml(result: Result) -> str:
    """Block-style YAML in the order of the fields."""
    return dump_yaml(result.model_dump(mode="json"))


def model_yaml(model: Model) -> str:
    """planner's own model YAML, without the fields that have no value."""
    return dump_yaml(model.model_dump(mode="json", exclude_none=True))


def is_result(fields: dict[str, object]) -> bool:
    """True if a mapping says that it is a saved report, comparison or search."""
    return fields.get("kind") in KINDS


def read(path: Path) -> Result:
    """A saved report, comparison or search.

    raises: InputError for a file that is none of them, or that another version of the schema wrote
    """
    fields = load_mapping(path, MAX_REPORT_BYTES)
    origin = Origin(str(path))
    if not is_result(fields):
        raise InputError(f"{origin.at('kind')}: is not a saved report; planner estimate --format yaml writes one")
    if fields.get("schema_version") != SCHEMA_VERSION:
        version = shown(fields.get("schema_version"))
        raise InputError(
            f"{origin.at('schema_version')}: this version reads schema {SCHEMA_VERSION}, not {version}: plan it again"
        )
    return validate(_class_of(str(fields["kind"])), fields, origin)


def _class_of(kind: str) -> "type[Report] | type[Comparison] | type[SearchResult]":
    if kind == "planner search":
        from planner.search_report import SearchResult  # not needed by any other command's start-up

        return SearchResult
    return Report if kind == "planner report" else Comparison
