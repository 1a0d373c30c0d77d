"""Where a value was written, for messages that read file:line: field: what is wrong."""

from dataclasses import dataclass
from pathlib import Path

import yaml

MAX_MESSAGE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Origin:
    """A file (or a command line) and the path of fields inside it."""

    file: str
    path: tuple[str, ...] = ()

    def within(self, *fields: str) -> "Origin":
        """The same file, further in."""
        return Origin(self.file, self.path + fields)

    def at(self, *fields: str) -> str:
        """'file:line: a.b' for a field here; the line is looked up now, so only messages pay for it."""
        path = self.path + fields
        line = _line_of(self.file, path)
        place = f"{self.file}:{line}" if line else self.file
        return f"{place}: {'.'.join(path)}" if path else place


def _line_of(file: str, path: tuple[str, ...]) -> int | None:
    """Line (from 1) of the deepest part of `path` that the file has, or None where that cannot be told."""
    try:
        node = yaml.compose(Path(file).read_text("utf-8-sig")[:MAX_MESSAGE_BYTES], Loader=yaml.CSafeLoader)
    except (OSError, ValueError, yaml.YAMLError):
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


def _child(node: yaml.Node, field: str) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == field:
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and field.isdigit() and int(field) < len(node.value):
        item = node.value[int(field)]
        return item.start_mark.line + 1, item
    return None
