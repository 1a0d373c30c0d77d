"""Start-up figures that engines log: a table of them (CSV), or the lines a vLLM server prints."""

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from planner.errors import InputError

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
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = list(_csv_rows(lines, file) if lines and "," in lines[0] and "kv_gib" in lines[0] else _log_rows(lines))
    if not rows:
        raise InputError(
            f"{file}: holds no start-up figures; a CSV with {', '.join(COLUMNS)} or a vLLM server's log is needed"
        )
    return rows


def _csv_rows(lines: list[str], file: str) -> Iterator[LogRow]:
    reader = csv.DictReader(lines)
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"{file}:1: columns missing: {', '.join(missing)}")
    for number, row in enumerate(reader, 2):
        if number > MAX_ROWS:
            raise InputError(f"{file}: more than {MAX_ROWS:,} rows")
        weights = row.get("weights_dtype") or "auto"
        yield LogRow(
            line=number,
            model=row["config"],
            gpu=row["gpu"],
            engine=row["engine"],
            utilization=_number(row, "gpu_memory_utilization", file, number)
            if row.get("gpu_memory_utilization")
            else None,
            tp=int(_number(row, "tp", file, number)),
            pp=int(_number(row, "pp", file, number)),
            max_model_len=int(_number(row, "max_model_len", file, number)),
            kv_dtype={"bf16": "bfloat16", "fp16": "float16", "fp32": "auto"}.get(row["kv_dtype"], row["kv_dtype"]),
            dtype=weights if weights in ("float32", "float16", "bfloat16") else "auto",
            quantization="fp8" if weights == "fp8" else None,
            kv_gib=_number(row, "kv_gib", file, number),
            blocks=int(_number(row, "kv_blocks", file, number)) if row.get("kv_blocks") else None,
            concurrency=_number(row, "max_conc", file, number),
        )


def _number(row: dict[str, str], column: str, file: str, line: int) -> Decimal:
    try:
        value = Decimal(row[column])
    except (InvalidOperation, TypeError):
        raise InputError(f"{file}:{line}: {column}: a number is needed, not {row[column]!r}") from None
    if not value.is_finite() or not 0 < value < 10**12:
        raise InputError(f"{file}:{line}: {column}: {row[column]} is out of range")
    return value


_CONFIG = re.compile(r"Initializing a V1 LLM engine \(v([\w.+-]+)\) with config: model=['\"]([^'\"]+)['\"]")
_OPTIONS: dict[str, Callable[[str], object]] = {
    r"max_seq_len=(\d{1,9})": int,
    r"tensor_parallel_size=(\d{1,4})": int,
    r"pipeline_parallel_size=(\d{1,4})": int,
    r"kv_cache_dtype=(\w+)": str,
    r"dtype=torch\.(\w+)": str,
    r"quantization=(\w+)": str,
}
_UTILIZATION = re.compile(r"gpu_memory_utilization['\"]?[:=]\s*([\d.]{1,8})")
_AVAILABLE = re.compile(r"Available KV cache memory: ([\d.]{1,9}) GiB")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]{1,12}) tokens per request: ([\d.]{1,12})x")


def _log_rows(lines: list[str]) -> Iterator[LogRow]:
    """One row per engine that the log starts: its config line, then its memory, then its concurrency."""
    config: tuple[str, str, dict[str, object]] | None = None
    utilization: Decimal | None = None
    available: Decimal | None = None
    for number, line in enumerate(lines, 1):
        if found := _UTILIZATION.search(line[:20_000]):
            utilization = Decimal(found[1])
        if found := _CONFIG.search(line[:20_000]):
            options = {key: (kind(m[1]) if (m := re.search(key, line)) else None) for key, kind in _OPTIONS.items()}
            config, available = (found[1], found[2], options), None
        if found := _AVAILABLE.search(line[:20_000]):
            # ranks log one line each and the fullest governs
            available = min(Decimal(found[1]), available) if available is not None else Decimal(found[1])
        if (found := _CONCURRENCY.search(line[:20_000])) and config and available is not None:
            yield _logged(number, config, utilization, available, Decimal(found[2]))
            available = None


def _logged(
    line: int,
    config: tuple[str, str, dict[str, object]],
    utilization: Decimal | None,
    available: Decimal,
    concurrency: Decimal,
) -> LogRow:
    version, model, options = config
    length, tp, pp, kv_dtype, dtype, quantization = options.values()
    return LogRow(
        line=line,
        model=model,
        gpu=None,
        engine="vllm-" + ".".join(version.split(".")[:2]),
        utilization=utilization,
        tp=int(str(tp or 1)),
        pp=int(str(pp or 1)),
        max_model_len=int(str(length or 0)),
        kv_dtype=str(kv_dtype or "auto"),
        dtype=str(dtype or "auto"),
        quantization=str(quantization) if quantization not in (None, "None") else None,
        kv_gib=available,
        blocks=None,
        concurrency=concurrency,
    )
