"""Start-up figures that engines log: a table of them (CSV), or the lines a vLLM server prints."""

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import islice

from planner.errors import InputError
from planner.printable import shown

MAX_ROWS = 100_000
COLUMNS = ("config", "gpu", "engine", "tp", "pp", "max_model_len", "kv_dtype", "kv_gib", "max_conc")


@dataclass(frozen=True, slots=True)
class LogRow:
    """What one start-up logged, and the options it ran with."""

    line: int
    model: str
    """Folder name, path or id of the model's config."""
    gpu: str | None
    engine: str | None
    utilization: Decimal | None
    tp: int
    pp: int
    max_model_len: int
    max_num_batched_tokens: int | None
    kv_dtype: str
    dtype: str
    quantization: str | None
    kv_gib: Decimal
    """Available KV cache memory [GiB]."""
    blocks: int | None
    concurrency: Decimal
    """Maximum concurrency at max_model_len, two decimals."""


def read_rows(text: str, file: str) -> list[LogRow]:
    """The rows of a CSV or of a server's log, told apart by the header.

    raises: InputError with file and line for a row that cannot be read, or where there is none
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if not line.startswith("#")]
    is_csv = bool(lines) and "," in lines[0][1] and "kv_gib" in lines[0][1]
    rows = list(islice(_csv_rows(lines, file) if is_csv else _log_rows(lines), MAX_ROWS + 1))
    if len(rows) > MAX_ROWS:
        raise InputError(f"{file}: more than {MAX_ROWS:,} rows")
    if not rows:
        raise InputError(
            f"{file}: holds no start-up figures; a CSV with {', '.join(COLUMNS)} or a vLLM server's log is needed"
        )
    return rows


def _csv_rows(lines: list[tuple[int, str]], file: str) -> Iterator[LogRow]:
    """Rows of a CSV; lines are numbered as in the file, whose comments are left out."""
    reader = csv.DictReader((line for _, line in lines), restval="", restkey="")
    try:
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{file}:{lines[0][0]}: columns missing: {', '.join(missing)}")
        for row in reader:
            yield _csv_row(row, file, lines[reader.line_num - 1][0])
    except csv.Error as error:
        raise InputError(f"{file}:{lines[reader.reader.line_num - 1][0]}: is not CSV: {error}") from error


def _csv_row(row: dict[str, str], file: str, number: int) -> LogRow:
    if not row["config"]:
        raise InputError(f"{file}:{number}: config: missing, and needed")
    weights = row.get("weights_dtype") or "auto"
    return LogRow(
        line=number,
        model=row["config"],
        gpu=row["gpu"] or None,
        engine=row["engine"] or None,
        utilization=_number(row, "gpu_memory_utilization", file, number) if row.get("gpu_memory_utilization") else None,
        tp=_whole(row, "tp", file, number),
        pp=_whole(row, "pp", file, number),
        max_model_len=_whole(row, "max_model_len", file, number),
        max_num_batched_tokens=None,
        kv_dtype={"bf16": "bfloat16", "fp16": "float16", "fp32": "auto", "": "auto"}.get(
            row["kv_dtype"], row["kv_dtype"]
        ),
        dtype=weights if weights in ("float32", "float16", "bfloat16") else "auto",
        quantization="fp8" if weights == "fp8" else None,
        kv_gib=_number(row, "kv_gib", file, number),
        blocks=_whole(row, "kv_blocks", file, number) if row.get("kv_blocks") else None,
        concurrency=_number(row, "max_conc", file, number),
    )


def _number(row: dict[str, str], column: str, file: str, line: int) -> Decimal:
    try:
        value = Decimal(row[column])
    except InvalidOperation:
        raise InputError(f"{file}:{line}: {column}: a number is needed, not {shown(row[column])}") from None
    if not value.is_finite() or not 0 < value < 10**12:
        raise InputError(f"{file}:{line}: {column}: {shown(row[column])} is out of range")
    return value


def _whole(row: dict[str, str], column: str, file: str, line: int) -> int:
    value = _number(row, column, file, line)
    if value != int(value):
        raise InputError(f"{file}:{line}: {column}: a whole number is needed, not {shown(row[column])}")
    return int(value)


_CONFIG = re.compile(r"Initializing a V1 LLM engine \(v([\w.+-]+)\) with config: model=['\"]([^'\"]+)['\"]")
_OPTIONS: dict[str, Callable[[str], object]] = {
    r"tensor_parallel_size=([1-9]\d{0,3})": int,
    r"pipeline_parallel_size=([1-9]\d{0,3})": int,
    r"kv_cache_dtype=(\w+)": str,
    r"dtype=torch\.(\w+)": str,
    r"quantization=([\w-]+)": str,
}
_UTILIZATION = re.compile(r"gpu_memory_utilization['\"]?[:=]\s*([01]?\.?\d{1,6})(?![\d.])", re.ASCII)
_BATCHED = re.compile(r"max_num_batched_tokens['\"]?[:=]\s*([1-9]\d{0,8})", re.ASCII)
_AVAILABLE = re.compile(r"Available KV cache memory: (\d{1,6}(?:\.\d{1,6})?) GiB", re.ASCII)
_CONCURRENCY = re.compile(
    r"Maximum concurrency for ([1-9][\d,]{0,12}) tokens per request: (\d{1,9}(?:\.\d{1,6})?)x", re.ASCII
)
_WHILE_LOADING = ("fp8",)
"""Quantisations that the engine itself can apply; others are the checkpoint's own, which its config describes."""
MAX_LINE = 20_000


def _log_rows(lines: list[tuple[int, str]]) -> Iterator[LogRow]:
    """One row per engine that the log starts: its config line, then its memory, then its concurrency."""
    config: tuple[str, str, dict[str, object]] | None = None
    utilization: Decimal | None = None
    available: Decimal | None = None
    batched: int | None = None
    for number, whole in lines:
        line = whole[:MAX_LINE]
        if found := _UTILIZATION.search(line):
            utilization = Decimal(found[1])
        if found := _BATCHED.search(line):
            batched = int(found[1])
        if found := _CONFIG.search(line):
            options = {key: (kind(m[1]) if (m := re.search(key, line)) else None) for key, kind in _OPTIONS.items()}
            config, available = (found[1], found[2], options), None
        if found := _AVAILABLE.search(line):
            # ranks log one line each and the fullest governs
            available = min(Decimal(found[1]), available) if available is not None else Decimal(found[1])
        if (found := _CONCURRENCY.search(line)) and config and available is not None:
            length = int(found[1].replace(",", ""))
            yield _logged(number, config, utilization, batched, available, length, Decimal(found[2]))
            available = None


def _logged(
    line: int,
    config: tuple[str, str, dict[str, object]],
    utilization: Decimal | None,
    batched: int | None,
    available: Decimal,
    length: int,
    concurrency: Decimal,
) -> LogRow:
    version, model, options = config
    tp, pp, kv_dtype, dtype, quantization = options.values()
    return LogRow(
        line=line,
        model=model,
        gpu=None,
        engine="vllm-" + ".".join(version.split(".")[:2]),
        utilization=utilization,
        tp=int(str(tp or 1)),
        pp=int(str(pp or 1)),
        max_model_len=length,
        max_num_batched_tokens=batched,
        kv_dtype=str(kv_dtype or "auto"),
        dtype=str(dtype or "auto"),
        quantization=str(quantization) if quantization in _WHILE_LOADING else None,
        kv_gib=available,
        blocks=None,
        concurrency=concurrency,
    )
