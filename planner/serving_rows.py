"""Rows of measured serving: TTFT and TPOT of a benchmark, or saturated throughput; CSV that strangers wrote."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from io import StringIO
from itertools import islice
from typing import Any

from planner.errors import InputError
from planner.printable import shown

MAX_ROWS = 100_000
MAX_TEXT = 300
MOST_TOKENS, MOST_REQUESTS, MOST_RANKS = 2**24, 2**20, 4096
LEAST_FIGURE = Decimal("1e-6")
"""Of what is measured or predicted, in ms or tokens per second, except 0 for none: errors are shares of it."""
LATENCY_COLUMNS = ("id", "backend", "model_path", "system", "isl", "osl", "tp_size")
THROUGHPUT_COLUMNS = ("model", "gpu", "tp", "isl", "osl")
PLAIN = ("bfloat16", "bf16", "float16", "fp16")
BACKENDS = ("vllm", "sglang", "trtllm")
NVIDIAS_OWN = "nvidia-gap-analysis"
"""The source of NVIDIA's own rows, in aiconfigurator's file."""
MIXED_CHUNKS = ("0.5.6.post2", "0.5.8", "0.5.9", "0.5.10.post1", "0.5.11", "0.5.16")
"""SGLang's versions that aiconfigurator has deployed since it sets --enable-mixed-chunk, in January 2026.

source: ai-dynamo/aiconfigurator pull requests 257, 258 and 265, generator/rule_plugin/sglang.rule (agg
    enable_mixed_chunk = true), generator/config/backend_version_matrix.yaml (Dynamo 0.8.0 and later)
"""
_SPELLINGS = {"trt": "trtllm", "trt-llm": "trtllm", "tensorrt-llm": "trtllm", "tensorrtllm": "trtllm"}


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One run of a benchmark: what ran, how it was loaded, and what was measured."""

    line: int
    id: str
    source: str
    backend: str
    version: str
    model: str
    gpu: str
    precision: str
    """Of the weights: the engine's mode where the row has it, else the row's precision; empty: the checkpoint's own."""
    aggregated: bool
    isl: int
    osl: int
    range_ratio: float
    """Lengths are drawn between this share of the nominal ones and all of it."""
    concurrency: int
    """Of one replica."""
    tp: int
    pp: int
    dp: int
    moe_ep: int
    replicas: int
    measured: Mapping[str, float]
    """ttft_ms, tpot_ms or tokens_per_s, as far as the file has them."""
    peer: Mapping[str, float]
    """The same as another planner predicted them."""

    @property
    def mixed_chunks(self) -> bool:
        """SGLang was told to let prompts share their steps with decodes; by default its decodes wait."""
        return self.source == NVIDIAS_OWN and self.backend == "sglang" and self.version in MIXED_CHUNKS

    @property
    def saturated(self) -> bool:
        """All requests are sent at once, and throughput is what counts."""
        return self.concurrency == MOST_REQUESTS

    @property
    def mean_isl(self) -> int:
        """Mean input length [token]."""
        return max(1, round(self.isl * (1 + self.range_ratio) / 2))

    @property
    def mean_osl(self) -> int:
        """Mean output length [token]."""
        return max(1, round(self.osl * (1 + self.range_ratio) / 2))


def read_latency(text: str, file: str) -> list[ServingRow]:
    """Rows with TTFT and TPOT.

    raises: InputError with file and line of a row that cannot be read, or where there is none
    """
    return _read(text, file, LATENCY_COLUMNS, latency=True)


def read_throughput(text: str, file: str) -> list[ServingRow]:
    """Rows with output tokens per second of a saturated deployment.

    raises: InputError with file and line of a row that cannot be read, or where there is none
    """
    return _read(text, file, THROUGHPUT_COLUMNS, latency=False)


def _read(text: str, file: str, columns: tuple[str, ...], *, latency: bool) -> list[ServingRow]:
    rows = list(islice(_rows(text, file, columns, latency=latency), MAX_ROWS + 1))
    if len(rows) > MAX_ROWS:
        raise InputError(f"{file}: more than {MAX_ROWS:,} rows")
    if not rows:
        raise InputError(f"{file}: holds no rows; a CSV with {', '.join(columns)} is needed")
    return rows


def _rows(text: str, file: str, columns: tuple[str, ...], *, latency: bool) -> Iterator[ServingRow]:
    reader = csv.DictReader(StringIO(text, newline=""), restval="", strict=True)
    try:
        reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        header = [name for name in reader.fieldnames if name]
        missing = [name for name in columns if name not in header]
        if missing:
            raise InputError(f"{file}:1: columns missing: {', '.join(missing)}")
        if len(set(header)) < len(header):
            raise InputError(f"{file}:1: a column is named twice")
        for fields in reader:
            cells = _Cells(fields, f"{file}:{reader.line_num}")
            yield _latency_row(cells, reader.line_num) if latency else _throughput_row(cells, reader.line_num)
    except csv.Error as error:
        raise InputError(f"{file}:{max(1, reader.reader.line_num)}: is not CSV: {error}") from error


class _Cells:
    """The cells of one line, each checked as it is read."""

    def __init__(self, fields: dict[str | Any, str | Any], place: str) -> None:
        self._fields, self._place = fields, place
        if any(fields.get(None, ())):  # a column without a name, such as a data frame's index, is not read
            raise InputError(f"{place}: has more cells than the header")

    def text(self, column: str, *, needed: bool = False) -> str:
        value = (self._fields.get(column) or "").strip()
        if needed and not value:
            raise InputError(f"{self._place}: {column}: missing, and needed")
        if len(value) > MAX_TEXT:
            raise InputError(f"{self._place}: {column}: longer than {MAX_TEXT} characters")
        return value

    def number(self, column: str, least: float = 0.0, most: float = 1e12) -> Decimal | None:
        """None where the cell is empty or there is no such column."""
        value = self.text(column)
        if not value:
            return None
        try:
            number = Decimal(value)
        except InvalidOperation:
            raise InputError(f"{self._place}: {column}: a number is needed, not {shown(value)}") from None
        if not number.is_finite() or not least <= number <= most:
            raise InputError(
                f"{self._place}: {column}: {shown(value)} is out of range: accepted is {least:,.12g} to {most:,.13g}"
            )
        return number

    def whole(self, column: str, most: int, *, least: int = 1, default: int | None = None) -> int:
        """A whole number; the default where the cell is empty or 0."""
        number = self.number(column, 0 if default is not None else least, most)
        if not number:
            if default is None:
                raise InputError(f"{self._place}: {column}: missing, and needed")
            return default
        if number != int(number):
            raise InputError(f"{self._place}: {column}: a whole number is needed, not {shown(str(number))}")
        return int(number)

    def figures(self, names: Mapping[str, str]) -> dict[str, float]:
        """Those that are given and above 0."""
        found = {name: self.number(column) for name, column in names.items()}
        for name, value in found.items():
            if value and value < LEAST_FIGURE:
                given = f"{self._place}: {names[name]}: {shown(str(value))}"
                raise InputError(f"{given} is out of range: accepted is 0, for none, or at least {LEAST_FIGURE}")
        return {name: float(value) for name, value in found.items() if value}


def _latency_row(cells: _Cells, line: int) -> ServingRow:
    tp, dp, moe_ep = _ranks(cells)
    ratio = cells.number("range_ratio", 0, 1)
    return ServingRow(
        line=line,
        id=cells.text("id", needed=True),
        source=cells.text("src"),
        backend=_backend(cells.text("backend", needed=True)),
        version=cells.text("backend_version").lower().removeprefix("v"),
        model=cells.text("model_path", needed=True),
        gpu=cells.text("system", needed=True),
        precision=_weights(cells),
        aggregated=cells.text("mode").lower() in ("", "agg", "aggregated"),
        isl=cells.whole("isl", MOST_TOKENS),
        osl=cells.whole("osl", MOST_TOKENS),
        range_ratio=1.0 if ratio is None else float(ratio),
        concurrency=_load(cells, dp),
        tp=tp,
        pp=cells.whole("pp_size", MOST_RANKS, default=1),
        dp=dp,
        moe_ep=moe_ep,
        replicas=1,
        measured=cells.figures({"ttft_ms": "silicon_ttft_ms", "tpot_ms": "silicon_tpot_ms"}),
        peer=cells.figures({"ttft_ms": "aic_ttft_ms", "tpot_ms": "aic_tpot_ms"}),
    )


def _backend(named: str) -> str:
    """The engine, also where a router before it is named too."""
    name = named.lower().replace("_", "-").removeprefix("dynamo-")
    return _SPELLINGS.get(name, name)


def _ranks(cells: _Cells) -> tuple[int, int, int]:
    """(TP of attention, data-parallel ranks, ranks that experts are over).

    Some engines call all of a replica's devices its TP, over which the experts then are; attention is over fewer.
    """
    tp, dp = cells.whole("tp_size", MOST_RANKS), cells.whole("attention_dp_size", MOST_RANKS, default=1)
    moe_tp, moe_ep = (cells.whole(name, MOST_RANKS, default=1) for name in ("moe_tp_size", "moe_ep_size"))
    named_whole = dp > 1 and moe_tp * moe_ep == tp and tp % dp == 0
    return tp // dp if named_whole else tp, dp, moe_ep


def _weights(cells: _Cells) -> str:
    """What the weights are in: of a checkpoint that leaves all but its experts in 16 bits, what the experts are in."""
    gemm, experts = cells.text("gemm_quant_mode").lower(), cells.text("moe_quant_mode").lower()
    return (experts if gemm in PLAIN and experts else gemm) or cells.text("precision").lower()


def _load(cells: _Cells, dp: int) -> int:
    """Requests that a replica is kept busy with: its batch, which counts one data-parallel rank's where ranks share it.

    source: ai-dynamo/aiconfigurator, sdk/config_adapter/inferencex.py: concurrency // (replicas * attention_dp)
    """
    if not cells.number("batch_size", 0, MOST_REQUESTS - 1):
        return cells.whole("concurrency", MOST_REQUESTS - 1)
    batch = cells.whole("batch_size", MOST_REQUESTS - 1)
    everywhere = cells.whole("concurrency", MOST_REQUESTS - 1, default=batch)
    return batch * dp if everywhere >= batch * dp else batch


def _throughput_row(cells: _Cells, line: int) -> ServingRow:
    tp, pp = cells.whole("tp", MOST_RANKS), cells.whole("pp", MOST_RANKS, default=1)
    devices = cells.whole("n_gpus", 2**20, default=tp * pp)
    return ServingRow(
        line=line,
        id=cells.text("id") or f"line-{line}",
        source=cells.text("src"),
        backend=_backend(cells.text("backend") or "trtllm"),
        version=cells.text("version") or cells.text("backend_version"),
        model=cells.text("model", needed=True),
        gpu=cells.text("gpu", needed=True),
        precision=cells.text("precision").lower(),
        aggregated=True,
        isl=cells.whole("isl", MOST_TOKENS),
        osl=cells.whole("osl", MOST_TOKENS),
        range_ratio=1.0,
        concurrency=MOST_REQUESTS,
        tp=tp,
        pp=pp,
        dp=1,
        moe_ep=cells.whole("ep", MOST_RANKS, default=1),
        replicas=max(1, devices // (tp * pp)),
        measured=cells.figures({"tokens_per_s": "measured_output_tokens_per_s"}),
        peer=cells.figures({"tokens_per_s": "aic_output_tokens_per_s"}),
    )
