"""The start-up logs of vLLM 0.19 on H100 as scenarios."""

import csv
from typing import Any

from planner.inputs import Scenario
from planner.units import GIB
from tests.scenarios import ORACLES, scenario, vendor_model

FILE = ORACLES / "vllm_0.19_h100_memory.csv"
Row = dict[str, str]


def rows() -> list[Row]:
    """Every logged start-up."""
    lines = [line for line in FILE.read_text("utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def model_of(row: Row) -> str:
    """The oracle's name of the row's config."""
    return row["config"].replace("__", "/")


def one(model: str, **fields: str) -> Row:
    """The single row of a model with these fields."""
    (row,) = (r for r in rows() if r["model"] == model and all(r[k] == v for k, v in fields.items()))
    return row


def logged_bytes(row: Row) -> int:
    """The KV pool that the engine logged [B]."""
    return int(float(row["kv_gib"]) * GIB)


def scenario_of(row: Row, kv_cache_bytes: int | None = None) -> Scenario:
    """What the engine was started with; with kv_cache_bytes the pool is given instead of computed."""
    asked: dict[str, Any] = {
        "engine": "vllm-0.19",
        "engine_options.gpu_memory_utilization": row["gpu_memory_utilization"],
        "parallelism.tp": int(row["tp"]),
        "parallelism.pp": int(row["pp"]),
        "context_tokens": int(row["max_model_len"]),
        "kv_cache.dtype": {"bf16": "bfloat16", "fp32": "float32"}.get(row["kv_dtype"], row["kv_dtype"]),
    }
    if row["weights_dtype"] == "float32":
        asked["engine_options.dtype"] = "float32"
    if row["weights_dtype"] == "fp8":
        asked["engine_options.quantization"] = "fp8"
    if kv_cache_bytes is not None:
        asked["engine_options.kv_cache_bytes"] = kv_cache_bytes
    return scenario(vendor_model(model_of(row)), row["gpu"], asked)
