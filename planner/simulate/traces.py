"""Traces of real requests, replayed: streamed from the file each time, with memory flat however long it is.

trace = open_trace(Path("AzureLLMInferenceTrace_conv.csv"))
for request in trace.requests(): ...
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from operator import itemgetter, le
from pathlib import Path

from planner.documents import read_blocks
from planner.errors import InputError, nearest
from planner.printable import escaped, shown
from planner.simulate.requests import Request
from planner.simulate.trace_forms import FORMS, Form, Reader, Row, shown_cell

MAX_PROBLEMS = 20
MOST_SORTED = 1_000_000
"""Requests of a file that is not in order of arrival, which is sorted in memory."""
MOST_SHOWN_LINES = 10
MOST_BLANK_LINES = 10_000
BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Tally:
    """What one reading of a trace left out."""

    empty: int = 0
    """Requests without an input or without an output: those that failed."""
    bad: int = 0
    """Lines that are no request."""
    first_bad: list[int] = field(default_factory=list)
    """Numbers of the first few of those lines."""
    blank: int = 0

    def clear(self) -> None:
        """Begin another reading."""
        self.empty = self.bad = self.blank = 0
        self.first_bad.clear()

    def bad_line(self, number: int) -> None:
        """Count one."""
        self.bad += 1
        if self.bad <= MOST_SHOWN_LINES:
            self.first_bad.append(number)

    def blank_line(self, place: str) -> None:
        """Count one.

        raises: InputError where they are too many: a small packed file can hold billions
        """
        self.blank += 1
        if self.blank > MOST_BLANK_LINES:
            raise InputError(f"{place}: more than {MOST_BLANK_LINES:,} blank lines")

    def facts(self) -> tuple[str, ...]:
        """A line for each kind of which there were any."""
        lines = ", ".join(map(str, self.first_bad)) + (", ..." if self.bad > len(self.first_bad) else "")
        facts = (
            (self.empty, f"requests without an input or an output (they failed), left out: {self.empty:,}"),
            (self.bad, f"bad lines, left out: {self.bad:,} ({lines})"),
        )
        return tuple(fact for count, fact in facts if count)


@dataclass(frozen=True, slots=True)
class Trace:
    """A file of requests as a load."""

    path: Path
    form: Form
    skip_bad: bool = False
    """Leave out bad lines and count them, instead of refusing the file."""
    tally: Tally = field(default_factory=Tally, compare=False)
    """Of the last reading."""

    @property
    def name(self) -> str:
        """What a report calls it."""
        return escaped(self.path.name)

    @property
    def chunk_tokens(self) -> int:
        """Prompt tokens of each hash id; 0 where there are none."""
        return self.form.chunk_tokens

    def requests(self) -> Iterator[Request]:
        """From the file's first, whose arrival is at 0 s.

        raises: InputError with file and line of each bad line, at most MAX_PROBLEMS of them (nothing after the first is
            given out), and where a line is out of order
        """
        self.tally.clear()
        start_s, last_s, count = 0.0, -1.0, 0
        for first_line, rows in self._lists():
            if last_s < 0:
                start_s = last_s = rows[0][0]
            last_s = self._checked_order(first_line, rows, last_s)
            before = count
            for time_s, given, produced, hash_ids, scope in rows:
                if given and produced:
                    count += 1
                    yield Request(time_s - start_s, given, produced, hash_ids, scope)
            self.tally.empty += len(rows) - (count - before)
        if not count:
            raise InputError(f"{self.path}: holds no request with an input and an output", *self.tally.facts())

    def _checked_order(self, first_line: int, rows: list[Row], last_s: float) -> float:
        """When the last of rows came, none of which comes before the one above it.

        raises: InputError with the line that does
        """
        times = [last_s, *map(itemgetter(0), rows)]
        if not all(map(le, times, islice(times, 1, None))):
            for line, (above_s, at_s) in enumerate(pairwise(times), first_line):
                if at_s < above_s:
                    raise InputError(
                        f"{self.path}:{line}: comes {above_s - at_s:.6g} s before the request above it; lines must be "
                        "in order of arrival"
                    )
        return float(times[-1])

    def _lists(self) -> Iterator[tuple[int, list[Row]]]:
        """(number of the first line, rows) of lines that follow one another."""
        if self.form.in_order:
            return self._rows()
        rows = list(islice((row for _, rows in self._rows() for row in rows), MOST_SORTED + 1))
        if len(rows) > MOST_SORTED:
            raise InputError(
                f"{self.path}: more than {MOST_SORTED:,} requests; planner sorts no more of a {self.form.name} file"
            )
        return iter([(1, sorted(rows, key=itemgetter(0)))] if rows else [])

    def _rows(self) -> Iterator[tuple[int, list[Row]]]:
        problems: list[str] = []
        for line, reader, block in self._blocks():
            rows = reader.rows(block)
            for number, some in [(line, rows)] if rows else self._one_by_one(line, reader, block, problems):
                if not problems:
                    yield number, some
            if len(problems) >= MAX_PROBLEMS:
                break
        if problems:
            raise InputError(*problems[:MAX_PROBLEMS])

    def _blocks(self) -> Iterator[tuple[int, Reader, bytes]]:
        """(number of its first line, what reads it, whole lines)."""
        line, reader = 1, None
        for block in read_blocks(self.path):
            if reader is None:
                first, newline, after = block.removeprefix(BOM).partition(b"\n")
                reader = self.form.reader(first)
                line, block = (2, after) if self.form.has_header else (1, first + newline + after)
            if block:
                yield line, reader, block
            line += block.count(b"\n")

    def _one_by_one(
        self, line: int, reader: Reader, block: bytes, problems: list[str]
    ) -> Iterator[tuple[int, list[Row]]]:
        """The good lines of a block; the others are counted, or are problems."""
        for number, text in enumerate(block.removesuffix(b"\n").split(b"\n"), line):
            if not text.strip():
                self.tally.blank_line(f"{self.path}:{number}")
            elif rows := reader.rows(text):
                yield number, rows
            elif problem := reader.problem(text):
                if self.skip_bad:
                    self.tally.bad_line(number)
                else:
                    problems.append(f"{self.path}:{number}: {problem}")

    def facts(self) -> tuple[str, ...]:
        """What a report says of it; what was left out is known once it was read."""
        return (escaped(f"trace {self.path} ({self.form.name})"), *self.tally.facts())


def open_trace(path: Path, form: str | None = None, skip_bad: bool = False) -> Trace:
    """A trace of the named form, or of the one that its first line tells.

    raises: InputError where the file cannot be read or is of no form that planner knows
    """
    names = {known.name: known for known in FORMS}
    if form is not None and form not in names:
        raise InputError(f"trace format: {shown(form)} is not known{nearest(form, names)}")
    first = next(read_blocks(path), b"").removeprefix(BOM).partition(b"\n")[0]
    if form is not None and (names[form].fits(first) or not names[form].has_header):
        return Trace(path, names[form], skip_bad)
    found = next((known for known in FORMS if form is None and known.fits(first)), None)
    if found is None:
        what = "is empty" if not first.strip() else f"{shown_cell(first)} begins no trace that planner knows"
        accepted = [f"{path}:1: accepted: {known.name}: {known.shape}" for known in FORMS if form in (None, known.name)]
        raise InputError(f"{path}:1: {what}", *accepted)
    return Trace(path, found, skip_bad)
