"""A recorded run of vLLM: each request's lengths and times as the engine logged them, one JSON object a line."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from planner.errors import InputError
from planner.printable import shown
from planner.simulate.trace_forms import BadLineError, record_of

MOST_REQUESTS = 10_000
"""Of a run: a fit replays it a few hundred times."""
MOST_TOKENS = 10**7
"""Of one request's input or output, longer than any context."""
MOST_SECONDS = 1e10
MAX_PROBLEMS = 20
CLOCKS = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
"""When a request came, on the wall clock; the others on the engine's own, in the order in which they must be."""
COUNTS = ("input_toks", "output_toks")


@dataclass(frozen=True, slots=True)
class Served:
    """One request, its times since the first arrival [s]."""

    line: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    first_s: float
    last_s: float

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run, in order of arrival."""

    requests: tuple[Served, ...]
    queue_delay_s: float
    """Mean time from arrival to the engine's queue beyond the shortest, which the clocks' offset hides."""


def read_run(text: str, file: str) -> Recorded:
    """The requests of a file's text.

    The wall clock is set against the engine's by the smallest difference of queued_ts and arrival_time: no request is
    queued before it arrives, and the quickest was queued at once.

    raises: InputError with file and line of each bad line, at most MAX_PROBLEMS of them
    """
    rows: list[tuple[int, dict[str, Any]]] = []
    problems: list[str] = []
    for number, line in _lines(text, file):
        try:
            rows.append((number, _checked(record_of(line))))
        except BadLineError as error:
            problems.append(f"{file}:{number}: {error}")
            if len(problems) >= MAX_PROBLEMS:
                break
    if problems:
        raise InputError(*problems)
    if not rows:
        raise InputError(f"{file}: is empty; a line for each request is needed, with {', '.join((*COUNTS, *CLOCKS))}")
    rows.sort(key=lambda row: row[1]["arrival_time"])
    offset = min(row["queued_ts"] - row["arrival_time"] for _, row in rows)
    delays = sum(row["queued_ts"] - row["arrival_time"] - offset for _, row in rows)
    start = rows[0][1]["arrival_time"]
    return Recorded(tuple(_served(line, row, start, offset) for line, row in rows), delays / len(rows))


def _lines(text: str, file: str) -> Iterator[tuple[int, str]]:
    count = 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            count += 1
            if count > MOST_REQUESTS:
                raise InputError(f"{file}:{number}: more than {MOST_REQUESTS:,} requests; planner replays no more")
            yield number, line


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    """raises: BadLineError for a field that is missing, out of range or out of order"""
    missing = [name for name in (*COUNTS, *CLOCKS) if row.get(name) is None]
    if missing:
        raise BadLineError(f"{', '.join(missing)}: missing, and needed")
    for name in COUNTS:
        if type(row[name]) is not int or not 1 <= row[name] <= MOST_TOKENS:
            raise BadLineError(f"{name}: {shown(row[name])} is not a whole number from 1 to {MOST_TOKENS:,}")
    for name in CLOCKS:
        if type(row[name]) not in (int, float) or not 0 <= row[name] <= MOST_SECONDS:
            raise BadLineError(f"{name}: {shown(row[name])} is not a number of seconds from 0 to {MOST_SECONDS:g}")
    for before, after in pairwise(CLOCKS[1:]):
        if row[after] < row[before]:
            raise BadLineError(f"{after}: {row[after]} is before {before}, {row[before]}")
    if row["first_token_ts"] == row["queued_ts"] or (
        row["output_toks"] > 1 and row["last_token_ts"] == row["first_token_ts"]
    ):
        raise BadLineError("last_token_ts: no time passed between queue, first token and last one")
    return row


def _served(line: int, row: Mapping[str, Any], start: float, offset: float) -> Served:
    return Served(
        line,
        row["arrival_time"] - start,
        row["input_toks"],
        row["output_toks"],
        row["first_token_ts"] - offset - start,
        row["last_token_ts"] - offset - start,
    )
