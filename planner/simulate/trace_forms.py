"""The forms that public traces of requests have: told by a file's first line, each line read strictly.

A reader turns a block of whole lines into rows at once, or into None where any line of it is not a row; what is wrong
with that line is asked separately.
"""

import json
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from planner.printable import escaped, shown
from planner.simulate.requests import MOST_TOKENS

Row = tuple[float, int, int, tuple[int, ...], str]
"""Time of arrival on the file's own clock [s], input and output tokens, hash ids, scope."""

MOST_SECONDS = 1e12
MOST_SCOPE = 200
MOONCAKE_CHUNK_TOKENS = 512
MOST_MINUTES = 20_000
"""Kept at once of a trace, which may be years long."""
COUNT = f"a whole number from 0 to {MOST_TOKENS:,}"


class BadLineError(Exception):
    """What is wrong with one line, as 'field: what is wrong, what is accepted'."""


class Reader(Protocol):
    """One reading of a file from its first line to its last."""

    def rows(self, block: bytes) -> list[Row] | None:
        """Of whole lines, in their order; None where a line is not a row."""

    def problem(self, line: bytes) -> str | None:
        """Of a line that is not a row: 'field: what is wrong, what is accepted'."""


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of trace file."""

    name: str
    shape: str
    """What its lines look like, for messages."""
    fits: Callable[[bytes], bool]
    """Whether a file with this first line is of this form."""
    reader: Callable[[bytes], Reader]
    """For a file with this first line."""
    has_header: bool = False
    chunk_tokens: int = 0
    in_order: bool = True
    """False where the writer lists requests in another order than they came."""


TIME_AZURE = rb"([0-9T :-]{16}):([0-5][0-9](?:\.[0-9]{1,9})?)(Z|[+-][0-9]{2}:[0-9]{2}|)"
TIME_SECONDS = rb"([0-9]{1,12}(?:\.[0-9]{1,9})?)"
TOKENS = rb"([0-9]{1,9})"


class CsvReader:
    """Lines of cells in the order of a header, each cell by its own pattern; cells are not quoted."""

    def __init__(self, wanted: dict[str, tuple[bytes, str]], header: bytes) -> None:
        self.header = _columns(header)
        self.cells = [wanted.get(name, (b"[^,\n]*", "")) for name in self.header]
        self.row = re.compile(b"^" + b",".join(pattern for pattern, _ in self.cells) + rb"\r?$", re.MULTILINE)

    def found(self, block: bytes) -> list[Any] | None:
        """The wanted cells of every line."""
        found = self.row.findall(block)
        return found if len(found) == block.count(b"\n") + (not block.endswith(b"\n")) else None

    def problem(self, line: bytes) -> str | None:
        """Of a line that is not a row: what is wrong with which cell."""
        given = line.removesuffix(b"\r").split(b",")
        if len(given) != len(self.header):
            return f"{len(given)} columns where the header has {len(self.header)}"
        for name, cell, (pattern, accepted) in zip(self.header, given, self.cells, strict=True):
            if not re.fullmatch(pattern, cell):
                return f"{name}: {shown_cell(cell)} is not {accepted}"
        return None


class Minutes(dict[bytes, int]):
    """Seconds from the first minute that was asked for to another, each worked out once."""

    origin_s: int | None = None

    def __missing__(self, minute: bytes) -> int:
        at = datetime.fromisoformat(minute.decode("ascii"))
        minute_s = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
        self.origin_s = minute_s if self.origin_s is None else self.origin_s
        if len(self) >= MOST_MINUTES:
            self.clear()
        self[minute] = minute_s - self.origin_s
        return self[minute]


class AzureReader(CsvReader):
    """Dates and times with up to nine decimals; times without a zone are taken for UTC."""

    def __init__(self, wanted: dict[str, tuple[bytes, str]], header: bytes) -> None:
        super().__init__(wanted, header)
        self.minutes = Minutes()

    def rows(self, block: bytes) -> list[Row] | None:
        """Of whole lines; times are seconds since the minute of the file's first."""
        found, minutes = self.found(block), self.minutes
        if found is None:
            return None
        try:
            return [
                (minutes[minute + zone] + float(seconds), int(context), int(generated), (), "")
                for minute, seconds, zone, context, generated in found
            ]
        except ValueError:  # no such day or hour
            return None

    def problem(self, line: bytes) -> str | None:
        """Of a line that is not a row: what is wrong with which cell; if with none, no such day or hour exists."""
        return super().problem(line) or f"{AZURE[0]}: {shown_cell(line)} begins with no date and time that exist"


class BurstReader(CsvReader):
    """Seconds since the trace began."""

    def rows(self, block: bytes) -> list[Row] | None:
        """Of whole lines."""
        found = self.found(block)
        return None if found is None else [(float(t), int(i), int(o), (), "") for t, i, o in found]


def _columns(header: bytes) -> list[str]:
    return header.decode("utf-8", "replace").strip().split(",")


def _has_columns(wanted: tuple[str, ...], header: bytes) -> bool:
    """Whether a header has these columns, each once and in this order, among others."""
    return [name for name in _columns(header) if name in wanted] == list(wanted)


class JsonReader:
    """One JSON object a line, with a time and two counts under given names; whatever else it holds is ignored."""

    def __init__(self, names: tuple[str, str, str], per_s: int, chunk_tokens: int, _: bytes) -> None:
        self.time, self.input, self.output = names
        self.per_s = per_s
        self.chunk_tokens = chunk_tokens

    def rows(self, block: bytes) -> list[Row] | None:
        """Of whole lines."""
        try:
            return [self.row(line) for line in block.decode("utf-8").removesuffix("\n").split("\n")]
        except (BadLineError, UnicodeDecodeError):
            return None

    def problem(self, line: bytes) -> str | None:
        """Of a line that is not a row: what is wrong with which field."""
        try:
            self.row(line.decode("utf-8"))
        except BadLineError as error:
            return str(error)
        except UnicodeDecodeError as error:
            return f"is not UTF-8 text (byte {error.start})"
        return None

    def fields(self, record: dict[str, Any]) -> dict[str, Any]:
        """What a line holds, by the names that this reader was given."""
        return record

    def row(self, line: str) -> Row:
        """raises: BadLineError that says which field is wrong"""
        record = self.fields(record_of(line))
        try:
            time, given, produced = record[self.time], record[self.input], record[self.output]
        except KeyError as error:
            raise BadLineError(f"{error.args[0]}: missing, and needed") from None
        if type(time) not in (int, float) or not 0 <= time < MOST_SECONDS * self.per_s:
            raise BadLineError(f"{self.time}: {shown(time)} is not a number from 0 to {MOST_SECONDS * self.per_s:g}")
        for name, count in ((self.input, given), (self.output, produced)):
            if type(count) is not int or not 0 <= count <= MOST_TOKENS:
                raise BadLineError(f"{name}: {shown(count)} is not {COUNT}")
        ids = record.get("hash_ids") if self.chunk_tokens else None
        scope = record.get("scope", record.get("tenant"))
        return (
            time / self.per_s,
            given,
            produced,
            () if ids is None or ids == [] else self.checked_ids(ids, given),
            "" if scope is None else _scope(scope),
        )

    def checked_ids(self, ids: object, input_tokens: int) -> tuple[int, ...]:
        """raises: BadLineError where they are not ids of at most as many chunks as the prompt has"""
        if not isinstance(ids, list) or set(map(type, ids)) != {int} or not _are_ids(ids):
            raise BadLineError(f"hash_ids: {shown(ids)} is not a list of whole numbers from 0 to 2^64 - 1")
        if len(ids) > -(-input_tokens // self.chunk_tokens):
            raise BadLineError(
                f"hash_ids: {len(ids):,} ids for {input_tokens:,} tokens; at most one for every {self.chunk_tokens} "
                "tokens begun is accepted"
            )
        return tuple(ids)


class AiperfReader(JsonReader):
    """Records of a benchmark's requests, whose fields lie two or three deep; one that failed has an error."""

    def fields(self, record: dict[str, Any]) -> dict[str, Any]:
        """The values at the dotted names; a request that failed has no tokens."""
        found = {
            name: value for name in (self.time, self.input, self.output) if (value := _at(record, name)) is not None
        }
        return found | {self.input: 0, self.output: 0} if record.get("error") else found


def _at(record: Any, name: str) -> Any:
    """The value at a dotted name, or None."""
    for part in name.split("."):
        record = record.get(part) if isinstance(record, dict) else None
    return record


def _are_ids(numbers: list[int]) -> bool:
    try:
        array("Q", numbers)  # the quickest check of the range of all
    except OverflowError:
        return False
    return True


def record_of(line: str) -> dict[str, Any]:
    """The JSON object of a line.

    raises: BadLineError where it is none, has a key twice, or a number that is none
    """
    try:
        record, end = _DECODER.raw_decode(line.strip())
    except json.JSONDecodeError as error:
        raise BadLineError(f"is not JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise BadLineError("is nested too deep to be read") from None
    except ValueError:  # the only other one that json raises
        raise BadLineError("holds an integer of thousands of digits") from None
    if not isinstance(record, dict) or end < len(line.strip()):
        raise BadLineError(f"{shown(line)} is not one JSON object")
    return record


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise BadLineError(f"{shown(next(name for name in names if names.count(name) > 1))}: given twice")
    return record


def _not_a_number(text: str) -> Any:
    raise BadLineError(f"holds {text}, which is not a number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_not_a_number)


def _scope(scope: object) -> str:
    if type(scope) not in (int, str) or len(str(scope)) > MOST_SCOPE:
        raise BadLineError(f"scope: {shown(scope)} is not text of at most {MOST_SCOPE} characters")
    return str(scope)


def _has_fields(wanted: tuple[str, ...], line: bytes) -> bool:
    """Whether a line is an object with these fields."""
    try:
        return set(wanted) <= set(record_of(line.decode("utf-8")))
    except (BadLineError, UnicodeDecodeError):
        return False


def shown_cell(cell: bytes) -> str:
    """What a cell or line of bytes holds, as a message shows it."""
    text = escaped(cell[:80].decode("utf-8", "replace"))
    return f"'{text}'" if len(cell) <= 80 else f"'{text}'..."


AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURST = ("Timestamp", "Request tokens", "Response tokens")
MOONCAKE = ("timestamp", "input_length", "output_length")
VLLM = ("arrival_time", "input_toks", "output_toks")
AIPERF = (
    "metadata.request_start_ns",
    "metrics.input_sequence_length.value",
    "metrics.output_sequence_length.value",
)
DATE = "a date and time such as 2023-11-16 18:15:46.6805900 or 2024-05-10 00:00:00.009930+00:00"
SECONDS = "a number of seconds such as 45 or 0.123"


def _wanted(names: tuple[str, ...], time: bytes, accepted: str) -> dict[str, tuple[bytes, str]]:
    return dict.fromkeys(names, (TOKENS, COUNT)) | {names[0]: (time, accepted)}


FORMS = (
    Form(
        "azure",
        f"CSV with the columns {', '.join(AZURE)}",
        partial(_has_columns, AZURE),
        partial(AzureReader, _wanted(AZURE, TIME_AZURE, DATE)),
        has_header=True,
    ),
    Form(
        "burstgpt",
        f"CSV with the columns {', '.join(BURST)} among others, in seconds",
        partial(_has_columns, BURST),
        partial(BurstReader, _wanted(BURST, TIME_SECONDS, SECONDS)),
        has_header=True,
    ),
    Form(
        "mooncake",
        f"JSON lines with {', '.join(MOONCAKE)} and maybe hash_ids, in milliseconds and chunks of 512 tokens",
        partial(_has_fields, MOONCAKE),
        partial(JsonReader, MOONCAKE, 1000, MOONCAKE_CHUNK_TOKENS),
        chunk_tokens=MOONCAKE_CHUNK_TOKENS,
    ),
    Form(
        "vllm",
        f"JSON lines with {', '.join(VLLM)}, in seconds",
        partial(_has_fields, VLLM),
        partial(JsonReader, VLLM, 1, 0),
        in_order=False,
    ),
    Form(
        "aiperf",
        f"JSON lines with {', '.join(AIPERF)}, as AIPerf exports a run's requests",
        partial(_has_fields, ("metadata", "metrics")),
        partial(AiperfReader, AIPERF, 1_000_000_000, 0),
        in_order=False,
    ),
)
