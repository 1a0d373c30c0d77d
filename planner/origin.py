"""Where a value was written, for messages that read file:line: field: what is wrong."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import yaml

MAX_MESSAGE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Origin:
    """A file (or a command line) and the path of fields inside it."""

    file: str
    path: tuple[str, ...] = ()
    flags: tuple[tuple[tuple[str, ...], str], ...] = ()
    """(path in the file, name) of the fields that the command line set over the file's."""

    def within(self, *fields: str) -> "Origin":
        """The same file, further in."""
        return replace(self, path=self.path + fields)

    def with_flags(self, stem: tuple[str, ...], overrides: Iterable[str]) -> "Origin":
        """The same place, aware of the overrides (dotted paths) of what lies at `stem` in the scenario."""
        below = ((tuple(name.split(".")[len(stem) :]), name) for name in overrides if _is_below(name, stem))
        return replace(self, flags=tuple((self.path + inner, name) for inner, name in below))

    def at(self, *fields: str) -> str:
        """'file:line: a.b' for a field here; the line is looked up now, so only messages pay for it."""
        path = self.path + fields
        for flag, name in self.flags:
            if path[: len(flag)] == flag:
                return f"command line: {'.'.join((name, *path[len(flag) :]))}"
        line = _line_of(self.file, path)
        place = f"{self.file}:{line}" if line else self.file
        return f"{place}: {'.'.join(path)}" if path else place


def _is_below(name: str, stem: tuple[str, ...]) -> bool:
    return tuple(name.split("."))[: len(stem)] == stem


def _line_of(file: str, path: tuple[str, ...]) -> int | None:
    """Line (from 1) of the deepest part of `path` that the file has, or None where that cannot be told."""
    try:
        node = _compose(file, Path(file).stat().st_mtime_ns)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
    if node is None:
        return None
    line = 1
    for field in path:
        found = _child(node, field)
        if found is None:
            break
        line, node = found
    return line


@lru_cache(maxsize=8)
def _compose(file: str, _: int) -> yaml.Node | None:
    """The file's nodes with their lines; kept, because a broken file can be the subject of many messages."""
    with Path(file).open("rb") as opened:
        text = opened.read(MAX_MESSAGE_BYTES).decode("utf-8-sig")
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.CSafeLoader)
    return node


def _child(node: yaml.Node, field: str) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == field:
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and field.isdigit() and int(field) < len(node.value):
        item = node.value[int(field)]
        return item.start_mark.line + 1, item
    return None
