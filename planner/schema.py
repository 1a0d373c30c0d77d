"""JSON Schema of inputs and reports, with the field descriptions that their modules write as docstrings.

pydantic can read those itself (use_attribute_docstrings), but does so at import, which every start-up would pay for.
"""

import ast
import inspect
from functools import cache
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from planner import engine_inputs, inputs, report, search_report

MODULES = (inputs, engine_inputs, report, search_report)


def json_schema(cls: type[BaseModel]) -> dict[str, Any]:
    """JSON Schema (2020-12) of an input or a report class."""
    schema = cls.model_json_schema()
    _describe(cls.__name__, schema)
    for name, definition in schema.get("$defs", {}).items():
        _describe(name, definition)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _describe(class_name: str, schema: dict[str, Any]) -> None:
    described = {k: v for module in MODULES for k, v in _descriptions(module).items()}
    for name, text in described.get(class_name, {}).items():
        if name in schema.get("properties", {}):
            schema["properties"][name].setdefault("description", text)


@cache
def _descriptions(module: ModuleType) -> dict[str, dict[str, str]]:
    """Class -> field -> the docstring under it."""
    tree = ast.parse(inspect.getsource(module))
    return {node.name: _field_docstrings(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _field_docstrings(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        match (field, below):
            case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text)))):
                found[name] = inspect.cleandoc(text)
    return found
