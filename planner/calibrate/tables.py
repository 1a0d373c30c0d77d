"""Public tables of measured kernels (CSV, plain or gzipped): read row by row, refused at file and line."""

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.calibrate.points import (
    DTYPE_BYTES,
    CollectivePoint,
    DecodePoint,
    GemmPoint,
    MoePoint,
    Point,
    PrefillPoint,
)
from planner.calibrate.routing import POWER_LAW
from planner.errors import InputError
from planner.printable import shown

MAX_ROWS = 1_000_000
MAX_LINE = 2000
MAX_BYTES = 256 * 2**20
"""Unpacked, of one table."""
MAX_PROBLEMS = 20
MAX_EXPERTS = 4096
HEAD_DIM = 128
"""Of attention tables without a head_dim column."""
LEAST_KV_TOKENS, MOST_BATCH = 128, 512
SELECTION = (
    f"attention over at least {LEAST_KV_TOKENS} tokens, batches of at most {MOST_BATCH}; of several versions of an "
    "engine or library, the newest that has the family and key"
)
MAX_COUNT = 2**40
LEAST_US, MOST_US = 1e-3, 1e9
"""No kernel takes less than a nanosecond or more than a quarter of an hour [us]."""
_COUNT = re.compile(r"[0-9]{1,13}(?:\.0)?")
_TIME = re.compile(r"[0-9]{0,20}\.?[0-9]{0,30}(?:[eE][+-]?[0-9]{1,3})?")
_TEXT = re.compile(r"[A-Za-z0-9._+-]{1,100}")

COMMON = ("gpu", "engine", "ver", "lat_us")
COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "decode_attention": (("kv", "q_heads", "kv_heads", "batch", "kv_len"), ("kernel_source", "head_dim", "bw_frac")),
    "prefill_attention": (
        ("attn_dtype", "kv_cache_dtype", "q_heads", "kv_heads", "batch", "seq"),
        ("kernel_source", "head_dim", "prior_tokens", "tflops", "peak_frac"),
    ),
    "gemm": (("gemm_dtype", "n", "k", "m"), ("kernel_source",)),
    "moe": (
        (
            "moe_dtype",
            "distribution",
            "hidden_size",
            "inter_size",
            "topk",
            "num_experts",
            "moe_tp_size",
            "moe_ep_size",
            "num_tokens",
        ),
        ("kernel_source",),
    ),
    "collective": (("kind", "op", "dt", "num_gpus", "elements"), ()),
}
"""Family -> (columns that its header must have beside COMMON, columns it may have)."""


@dataclass(frozen=True, slots=True)
class Row:
    """A measured point and who measured it on what."""

    gpu: str
    engine: str
    version: str
    family: str
    point: Point

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What shares a version: GPU, engine, family and the point's key."""
        return self.gpu, self.engine, self.family, self.point.key


class _BadRowError(Exception):
    """What is wrong with one row."""


def read_tables(paths: Iterable[Path]) -> list[Row]:
    """Rows of several tables, each of any family.

    raises: InputError with the problems of every table
    """
    rows: list[Row] = []
    problems: list[str] = []
    for path in paths:
        try:
            rows.extend(read_table(path))
        except InputError as error:
            problems.extend(error.problems)
    if problems:
        raise InputError(*problems)
    return rows


def read_table(path: Path) -> list[Row]:
    """Rows of one table; its header tells the family.

    raises: InputError with file and line of each bad row, at most MAX_PROBLEMS of them
    """
    lines = enumerate(_lines(path), start=1)
    _, header = next(lines, (1, ""))
    try:
        columns = _cells(header)
    except _BadRowError as error:
        raise InputError(f"{path}:1: the header {error}") from error
    family = _family(path, columns)
    rows: list[Row] = []
    problems: list[str] = []
    for number, line in lines:
        if number > MAX_ROWS:
            raise InputError(f"{path}:{number}: more than {MAX_ROWS:,} rows; planner does not read that")
        try:
            if line.strip():
                rows.append(_row(family, columns, _cells(line)))
        except _BadRowError as error:
            problems.append(f"{path}:{number}: {error}")
            if len(problems) > MAX_PROBLEMS:
                raise InputError(*problems[:MAX_PROBLEMS], f"{path}: and more bad rows") from None
    if problems:
        raise InputError(*problems)
    return rows


def selected(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows within SELECTION's lengths and batches."""
    for row in rows:
        point = row.point
        if isinstance(point, DecodePoint) and not (point.kv_tokens >= LEAST_KV_TOKENS and point.batch <= MOST_BATCH):
            continue
        if isinstance(point, PrefillPoint) and not (point.seq >= LEAST_KV_TOKENS and point.batch <= MOST_BATCH):
            continue
        yield row


def newest(rows: Iterable[Row]) -> list[Row]:
    """Rows of the newest version of each key."""
    rows = list(rows)
    versions: dict[tuple[str, str, str, str], str] = {}
    for row in rows:
        versions[row.key] = max(versions.get(row.key, row.version), row.version, key=version_order)
    return [row for row in rows if row.version == versions[row.key]]


def version_order(version: str) -> tuple[int, ...]:
    """A key that sorts versions: 1.2.0rc5 before 1.2.0 before 1.2.0.post1."""
    parts = [-1 if part in ("rc", "a", "b", "dev") else 0 if part.isalpha() else int(part) for part in _parts(version)]
    return tuple(parts[:12] + [0] * (12 - len(parts)))


def _parts(version: str) -> list[str]:
    return re.findall(r"[0-9]+|[a-z]+", version.lower())


def _lines(path: Path) -> Iterator[str]:
    """Decoded lines of bounded length; a gzipped table is unpacked on the way.

    raises: InputError for what is no such file
    """
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise InputError(f"{path}: is not a regular file; a table is needed")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            total = 0
            while line := file.readline(MAX_LINE + 1):
                total += len(line)
                if len(line) > MAX_LINE or total > MAX_BYTES:
                    raise InputError(f"{path}: a line of more than {MAX_LINE} bytes, or more than {MAX_BYTES:,} in all")
                yield line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start} of a line)") from error
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader(io.StringIO(line.rstrip("\r\n"))), [])
    except csv.Error as error:
        raise _BadRowError(f"is not CSV: {error}") from error


def _family(path: Path, columns: list[str]) -> str:
    """The family whose columns a header names."""
    family = next((name for name, (needed, _) in COLUMNS.items() if set(needed) <= set(columns)), None)
    if family is None:
        known = "; ".join(f"{name}: {', '.join(needed)}" for name, (needed, _) in COLUMNS.items())
        raise InputError(f"{path}:1: the header fits no family of kernels; needed are {', '.join(COMMON)} and {known}")
    accepted = {*COMMON, *COLUMNS[family][0], *COLUMNS[family][1]}
    problems = [f"the column {shown(name)} is unknown" for name in columns if name not in accepted]
    problems += [f"the column {name} is missing" for name in COMMON if name not in columns]
    problems += [f"the column {name} is given twice" for name in sorted({c for c in columns if columns.count(c) > 1})]
    if problems:
        raise InputError(*(f"{path}:1: {problem}" for problem in problems[:MAX_PROBLEMS]))
    return family


def _row(family: str, columns: list[str], cells: list[str]) -> Row:
    if len(cells) != len(columns):
        raise _BadRowError(f"{len(cells)} values where the header has {len(columns)}")
    fields = dict(zip(columns, cells, strict=True))
    gpu, engine, version = (_text(fields, name) for name in ("gpu", "engine", "ver"))
    return Row(gpu, engine, version, family, _POINTS[family](fields))


def _decode(fields: Mapping[str, str]) -> Point:
    heads = _heads(fields)
    batch, kv_tokens = _count(fields, "batch"), _count(fields, "kv_len")
    return DecodePoint(_dtype(fields, "kv"), *heads, batch, kv_tokens, _seconds(fields), _kernel(fields))


def _prefill(fields: Mapping[str, str]) -> Point:
    dtypes = _dtype(fields, "attn_dtype"), _dtype(fields, "kv_cache_dtype")
    sizes = _count(fields, "batch"), _count(fields, "seq")
    prior = _count(fields, "prior_tokens", least=0) if "prior_tokens" in fields else 0
    return PrefillPoint(*dtypes, *_heads(fields), *sizes, _seconds(fields), prior, _kernel(fields))


def _gemm(fields: Mapping[str, str]) -> Point:
    n, k, m = (_count(fields, name) for name in "nkm")
    return GemmPoint(_dtype(fields, "gemm_dtype"), n, k, m, _seconds(fields), _kernel(fields))


def _moe(fields: Mapping[str, str]) -> Point:
    distribution = _text(fields, "distribution")
    if distribution != "balanced" and not POWER_LAW.fullmatch(distribution):
        raise _BadRowError(f"distribution: balanced or power_law_A is needed, not {shown(distribution)}")
    names = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "num_tokens")
    hidden, inter, topk, experts, tp, ep, tokens = (_count(fields, name) for name in names)
    if not (topk <= experts <= MAX_EXPERTS and ep <= experts):
        raise _BadRowError(
            f"{topk} of {experts} experts on {ep} ranks: at most {MAX_EXPERTS} experts, topk, ep <= experts"
        )
    shape = (hidden, inter, topk, experts, tp, ep, tokens)
    return MoePoint(_dtype(fields, "moe_dtype"), distribution, *shape, _seconds(fields), _kernel(fields))


def _collective(fields: Mapping[str, str]) -> Point:
    dtype = _dtype(fields, "dt")
    size = max(1, int(_count(fields, "elements") * DTYPE_BYTES.get(dtype, 2.0)))
    ranks = _count(fields, "num_gpus", least=2)
    return CollectivePoint(_text(fields, "op"), dtype, ranks, size, _seconds(fields), _text(fields, "kind"))


_POINTS = {
    "decode_attention": _decode,
    "prefill_attention": _prefill,
    "gemm": _gemm,
    "moe": _moe,
    "collective": _collective,
}


def _heads(fields: Mapping[str, str]) -> tuple[int, int, int]:
    query_heads, kv_heads = _count(fields, "q_heads"), _count(fields, "kv_heads")
    if query_heads % kv_heads:
        raise _BadRowError(f"q_heads: {query_heads} is no multiple of the {kv_heads} KV heads")
    return query_heads, kv_heads, _count(fields, "head_dim") if "head_dim" in fields else HEAD_DIM


def _count(fields: Mapping[str, str], name: str, least: int = 1) -> int:
    text = fields[name]
    value = int(text.removesuffix(".0")) if _COUNT.fullmatch(text) else -1
    if not least <= value <= MAX_COUNT:
        raise _BadRowError(f"{name}: an integer from {least} to {MAX_COUNT} is needed, not {shown(text)}")
    return value


def _seconds(fields: Mapping[str, str]) -> float:
    text = fields["lat_us"]
    try:
        microseconds = float(text) if _TIME.fullmatch(text) else math.nan
    except ValueError:
        microseconds = math.nan
    if not LEAST_US <= microseconds <= MOST_US:
        raise _BadRowError(
            f"lat_us: a positive time from {LEAST_US:g} to {MOST_US:g} microseconds is needed, not {shown(text)}"
        )
    return microseconds * 1e-6


def _text(fields: Mapping[str, str], name: str) -> str:
    if not _TEXT.fullmatch(fields[name]):
        raise _BadRowError(f"{name}: a short name is needed, not {shown(fields[name])}")
    return fields[name]


def _dtype(fields: Mapping[str, str], name: str) -> str:
    """Any short name: points of a dtype that planner has no size for are left out later, and said so."""
    return _text(fields, name)


def _kernel(fields: Mapping[str, str]) -> str:
    return _text(fields, "kernel_source") if fields.get("kernel_source") else ""
