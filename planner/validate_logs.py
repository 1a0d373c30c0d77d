"""Holding planner against what engines logged at start-up: the pool from device memory, and what a pool holds."""

from dataclasses import dataclass, field
from pathlib import Path

from planner import hub
from planner.catalog import load_scenario, names
from planner.deployment import deploy
from planner.engine_logs import LogRow
from planner.errors import InputError, PlannerError
from planner.origin import Origin
from planner.rank import governing_rank
from planner.units import GIB
from planner.validate import PRICE, WORKLOAD

POOL_WITHIN_GIB = 1.0
CONCURRENCY_WITHIN = 0.001


@dataclass(slots=True)
class LogScore:
    """How far planner is from each logged start-up."""

    rows: int = 0
    refused: int = 0
    pool_within: int = 0
    """Pools within 1 GiB."""
    concurrency_rows: int = 0
    """Rows without pipeline parallelism."""
    concurrency_within: int = 0
    """Concurrency within 0.1 % (or the log's rounding) once the logged pool is given."""
    worst_pool_gib: float | None = None
    """Absent where no row could be scored."""
    lines: list[str] = field(default_factory=list)
    """One per row: both figures."""
    mismatches: list[str] = field(default_factory=list)


def score_logs(rows: list[LogRow], configs: Path | None, gpu: str | None, hub_cache: Path | None) -> LogScore:
    """Each logged start-up predicted twice: its pool from the device, and its concurrency from the logged pool.

    configs: a folder of checkpoint folders; absent: models are looked up by name, path or hub id
    gpu: for logs that do not name the device
    """
    score = LogScore()
    for row in rows:
        score.rows += 1
        try:
            _score_row(row, configs, gpu, hub_cache, score)
        except PlannerError as error:
            score.refused += 1
            score.mismatches.append(f"line {row.line}, {row.model}: refused: {error.problems[0]}")
    return score


def _score_row(row: LogRow, configs: Path | None, gpu: str | None, hub_cache: Path | None, score: LogScore) -> None:
    if not row.kv_gib:
        raise InputError("the log's KV cache memory is 0.00 GiB: no pool to compare with")
    overrides = _overrides(row, configs, gpu)
    predicted = governing_rank(deploy(load_scenario({}, Origin("log"), overrides, hub_cache=hub_cache)))
    pool_gib = predicted.memory.kv_budget.bytes / GIB
    overrides["engine_options.kv_cache_bytes"] = int(row.kv_gib * GIB)
    given = governing_rank(deploy(load_scenario({}, Origin("log"), overrides, hub_cache=hub_cache))).pool
    concurrency = given.num_blocks / given.reserved_blocks(row.max_model_len)
    score.lines.append(
        f"line {row.line}, {row.model} tp {row.tp} pp {row.pp}: pool {pool_gib:.2f} GiB (logged {row.kv_gib}), "
        f"concurrency {concurrency:.2f} (logged {row.concurrency})"
    )
    difference = pool_gib - float(row.kv_gib)
    score.worst_pool_gib = max(score.worst_pool_gib or 0.0, abs(difference))
    score.pool_within += abs(difference) <= POOL_WITHIN_GIB
    if abs(difference) > POOL_WITHIN_GIB:
        score.mismatches.append(f"line {row.line}, {row.model}: pool {difference:+.2f} GiB off")
    # the log rounds its pool and its concurrency to two decimals
    allowed = float(row.concurrency) * (CONCURRENCY_WITHIN + 0.005 / float(row.kv_gib)) + 0.005
    if row.pp > 1:
        return  # the logged pool is one stage's, and the fullest stage decides the concurrency
    score.concurrency_rows += 1
    score.concurrency_within += abs(concurrency - float(row.concurrency)) <= allowed
    if abs(concurrency - float(row.concurrency)) > allowed:
        score.mismatches.append(
            f"line {row.line}, {row.model}: concurrency {concurrency:.2f}, logged {row.concurrency}"
        )


def _overrides(row: LogRow, configs: Path | None, gpu: str | None) -> dict[str, object]:
    device = row.gpu or gpu
    if device is None:
        raise InputError("the log does not name the device: give --gpu")
    engine = row.engine if row.engine in names("engine") else nearest_engine(row.engine)
    overrides: dict[str, object] = {
        "model": _model_ref(row.model, configs),
        "accelerator": device,
        "engine": engine,
        "workload": WORKLOAD,
        "price": PRICE,
        "parallelism.tp": row.tp,
        "parallelism.pp": row.pp,
        "kv_cache.dtype": row.kv_dtype,
        "engine_options.dtype": row.dtype,
    }
    if row.utilization is not None:
        overrides["engine_options.gpu_memory_utilization"] = row.utilization
    if row.max_num_batched_tokens is not None:
        overrides["engine_options.max_num_batched_tokens"] = row.max_num_batched_tokens
    if row.quantization is not None:
        overrides["engine_options.quantization"] = row.quantization
    return overrides


def nearest_engine(engine: str | None) -> str:
    """The newest shipped version of the engine that is not newer than the log's, else the oldest."""
    shipped = [name for name in names("engine") if name.startswith("vllm-")]
    older = [name for name in shipped if engine and _version(name) <= _version(engine)]
    return max(older, key=_version) if older else min(shipped, key=_version)


def _version(engine: str) -> tuple[int, ...]:
    return tuple(int(part) for part in engine.removeprefix("vllm-").split(".") if part.isdecimal())


def _model_ref(model: str, configs: Path | None) -> str:
    """The model's folder among the configs, else what the log calls it."""
    if configs is not None:
        for name in (model, model.replace("/", "__")):
            if (configs / name).is_dir():
                return str((configs / name).resolve())
    if "/" not in model and not hub.HUB_ID.fullmatch(model) and model not in names("model"):
        raise InputError(f"{model} is neither a folder of --configs nor a shipped model")
    return model
