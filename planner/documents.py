"""Reading files that strangers wrote: bounded size, depth and aliases; safe YAML and JSON only."""

import gzip
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from planner.errors import InputError
from planner.origin import Origin
from planner.printable import shown

MAX_BYTES = 4 * 2**20
MAX_DEPTH = 40
MAX_ALIASES = 100
MAX_EVENTS = 400_000
MAX_PROBLEMS = 100
MAX_LINE_BYTES = 2**20
BLOCK_BYTES = 2**16
"""Read at once of a file of lines."""
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_HALF_PAIR = re.compile("[\ud800-\udfff]")

AnyModel = TypeVar("AnyModel", bound=BaseModel)


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """A regular file's text, unpacked where its name ends in .gz, at most max_bytes of it.

    raises: InputError that says what is wrong with the file, never OSError or UnicodeError
    """
    raw = _read_bytes(path, max_bytes)
    if len(raw) > max_bytes:
        size = "unpacks to more" if path.suffix == ".gz" else "larger"
        raise InputError(f"{path}: {size} than the {max_bytes:,} bytes that planner reads of such a file")
    if raw[:4] == b"GGUF":
        raise InputError(f"{path}: is a GGUF file; planner reads config.json, safetensors headers and its own YAML")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start})") from error


def _read_bytes(path: Path, max_bytes: int) -> bytes:
    """The first max_bytes of a regular file's content and one more."""
    with _opened(path) as file:
        return file.read(max_bytes + 1)


def read_blocks(path: Path) -> Iterator[bytes]:
    """A file of lines as blocks of whole lines, unpacked where its name ends in .gz; memory stays flat.

    raises: InputError that says what is wrong with the file, also for a line over MAX_LINE_BYTES
    """
    with _opened(path) as file:
        rest, lines = b"", 0
        while chunk := file.read(BLOCK_BYTES):
            whole, newline, after = chunk.rpartition(b"\n")
            if newline:
                block = rest + whole + newline
                yield block
                rest, lines = after, lines + block.count(b"\n")
            else:
                rest += after
            if len(rest) > MAX_LINE_BYTES:
                raise InputError(f"{path}:{lines + 1}: the line is longer than {MAX_LINE_BYTES:,} bytes")
        if rest:
            yield rest


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file for reading, unpacked where its name ends in .gz; what goes wrong is an InputError."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a directory; a file is needed")
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is not a regular file")
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read as gzip: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the path
        raise InputError(f"{str(path)!r}: is not a file name: {error}") from error


def load_json(path: Path, max_bytes: int) -> dict[str, Any]:
    """The mapping that a JSON file holds, unpacked where its name ends in .gz."""
    data = _parse_json(path, read_text(path, max_bytes))
    if not isinstance(data, dict):
        raise InputError(f"{path}: a mapping of fields is needed, not a {_kind(data)}")
    return data


def load_mapping(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The mapping that a YAML or JSON file holds.

    raises: InputError naming file and line for anything that is not one mapping with unique keys
    """
    text = read_text(path, max_bytes)
    head = text.lstrip()[:1]
    if not head:
        raise InputError(f"{path}: is empty; a mapping of fields is needed")
    if head == "<":
        raise InputError(f"{path}: looks like an HTML or XML page, not YAML or JSON; was an error page saved?")
    data = _parse_json(path, text) if path.suffix == ".json" or _is_json(text) else _parse_yaml(path, text)
    if not isinstance(data, dict):
        raise InputError(f"{path}: a mapping of fields is needed, not a {_kind(data)}")
    return data


def parse_value(name: str, text: str) -> Any:
    """One value as YAML writes it: a number, true or false, null, text, or a short list or mapping."""
    return _parse_yaml(Path(name), text)


def _kind(data: object) -> str:
    return {list: "list", str: "text", type(None): "null"}.get(type(data), type(data).__name__)


def _is_json(text: str) -> bool:
    """True if the text looks like JSON: YAML's own {} mappings have keys without quotes."""
    return re.match(r"\s*\{\s*[\"}]", text) is not None


def _parse_json(path: Path, text: str) -> Any:
    try:
        data = json.loads(text, object_pairs_hook=lambda pairs: _unique(path, text, pairs))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: is not JSON: {error.msg}") from error
    except RecursionError:
        raise InputError(f"{path}: {TOO_DEEP}") from None
    except ValueError:  # the only other one that json raises
        raise InputError(f"{path}: holds an integer of thousands of digits; planner does not read that") from None
    _check_values(path, data)
    return data


def _unique(path: Path, text: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = max(counts, key=lambda key: counts[key])
        found = [match.start() for match in re.finditer(re.escape(json.dumps(twice)) + r"\s*:", text)]
        line = f":{text.count(chr(10), 0, found[-1]) + 1}" if found else ""
        raise InputError(f"{path}{line}: the key {shown(twice)} is given twice")
    return result


def _check_values(path: Path, data: object) -> None:
    """Refuse what JSON can hold and a report cannot: deep nesting, and halves of a UTF-16 pair."""
    level, depth = [data], 0
    while level:
        if depth > MAX_DEPTH:
            raise InputError(f"{path}: {TOO_DEEP}")
        inner: list[object] = []
        for value in level:
            if isinstance(value, dict):
                inner.extend(value.keys())
                inner.extend(value.values())
            elif isinstance(value, list):
                inner.extend(value)
            elif isinstance(value, str) and _HALF_PAIR.search(value):
                raise InputError(f"{path}: {value[:80]!r} is not Unicode text")
        level, depth = inner, depth + 1


def _parse_yaml(path: Path, text: str) -> Any:
    try:
        _check_structure(path, text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader with fewer scalar types
    except yaml.reader.ReaderError as error:
        where = f"{path}:{text.count(chr(10), 0, error.position) + 1}"
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise InputError(f"{where}: is not YAML: the character U+{code:04X} is not allowed") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise InputError(f"{path}{line}: is not YAML: {problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path}: is not YAML that planner reads: {error}") from error


def _check_structure(path: Path, text: str) -> None:
    """Refuse what would grow or nest without bound, before anything is built."""
    depth = aliases = documents = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.CSafeLoader)):
        tag = None
        if isinstance(event, yaml.ScalarEvent):
            tag = event.tag
        elif isinstance(event, yaml.CollectionStartEvent):
            tag = event.tag
            depth += 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
        if depth > MAX_DEPTH:
            what = TOO_DEEP
        elif aliases > MAX_ALIASES:
            what = f"more than {MAX_ALIASES} aliases"
        elif documents > 1:
            what = "more than one document"
        elif count > MAX_EVENTS:
            what = f"more than {MAX_EVENTS:,} values"
        elif tag is not None:
            what = f"the tag {tag}"
        else:
            continue
        line = event.start_mark.line + 1 if event.start_mark else 1
        raise InputError(f"{path}:{line}: {what}; planner does not read that")


NUMBER_TAG = "tag:planner,2026:number"
NUMBER = re.compile(r"^[-+]?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{0,30})?(?:[eE][-+]?[0-9]{1,4})?$")
"""Plain scalars that are numbers here; YAML 1.1 takes some of them, such as 1e9, for text."""


class _Loader(yaml.CSafeLoader):
    """Safe YAML whose plain scalars are only null, true/false, decimal numbers and text.

    YAML 1.1's `no`, `1:30`, octal 010 and timestamps stay text, and 989e12 is a number.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as in the base

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is not plain text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {shown(key.value)} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _number(_: yaml.CSafeLoader, node: yaml.ScalarNode) -> float | int:
    text: str = node.value
    return float(text) if re.search(r"[.eE]", text) else int(text)


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(NUMBER_TAG, NUMBER, list("-+0123456789"))
_Loader.add_constructor(NUMBER_TAG, _number)


def validate(cls: type[AnyModel], fields: Mapping[str, Any], origin: Origin) -> AnyModel:
    """The pydantic model that the fields describe.

    raises: InputError with one message per problem, each at its file and line
    """
    try:
        return cls.model_validate(fields)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        messages = [_describe(dict(problem), origin) for problem in found[:MAX_PROBLEMS]]
        if len(found) > MAX_PROBLEMS:
            messages.append(f"{origin.at()}: and {len(found) - MAX_PROBLEMS:,} more problems")
        if any(problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1 for problem in found):
            accepted = (name for name, field in cls.model_fields.items() if not field.exclude)
            messages.append(f"{origin.at()}: accepted fields: {', '.join(accepted)}")
        raise InputError(*messages) from None


def _describe(problem: dict[str, Any], origin: Origin) -> str:
    """One pydantic problem as 'file:line: field: what is wrong, what was given'."""
    path = tuple(str(part) for part in problem["loc"])
    message = _MESSAGES.get(problem["type"], problem["msg"])
    message = message.removeprefix("Value error, ")
    given = problem.get("input")
    if problem["type"] in ("missing", "extra_forbidden") or isinstance(given, (dict, list)) or given is None:
        return f"{origin.at(*path)}: {message}"
    if isinstance(given, float) and not math.isfinite(given):
        message = "a finite number is needed"
    return f"{origin.at(*path)}: {message}, not {shown(given)}"


_MESSAGES = {
    "missing": "missing, and needed",
    "extra_forbidden": "is not a field that planner knows here",
    "int_type": "an integer is needed",
    "string_type": "text is needed",
    "string_pattern_mismatch": "control characters are not accepted",
    "decimal_parsing": "a number is needed",
    "finite_number": "a finite number is needed",
    "none_required": "must be absent",
}


class _Dumper(yaml.CSafeDumper):
    """Quotes text that planner's own reader would take for a number, beside what YAML 1.1 would."""


_Dumper.add_implicit_resolver(NUMBER_TAG, NUMBER, list("-+0123456789"))


def to_yaml(fields: object, *, flow_leaves: bool = False) -> str:
    """YAML in the order of the fields, which planner reads back to equal ones.

    flow_leaves: innermost lists and mappings on one line each
    """
    dumped: str = yaml.dump(
        fields,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=116,
        default_flow_style=None if flow_leaves else False,
    )
    return dumped
