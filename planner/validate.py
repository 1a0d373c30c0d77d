"""Holding planner against figures that an engine computed or logged: what agrees, what is refused, what differs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.catalog import load_scenario
from planner.deployment import deploy
from planner.errors import InputError, PlannerError
from planner.origin import Origin
from planner.pool import Pool
from planner.printable import shown
from planner.rank import Rank, governing_rank
from planner.units import GIB

ORACLE_POOL_BYTES = 24 * GIB
"""The pool that an oracle's num_blocks_24GiB and max_concurrency_24GiB are given for."""
ACCELERATORS = {"h100": "h100-sxm", "b200": "b200-sxm", "a100": "a100-sxm-80gb", "kvdtypes": "h100-sxm"}
AT_LENGTH = (
    "reserved_blocks",
    "reserved_bytes",
    "held_bytes",
    "num_blocks_24GiB",
    "max_concurrency_24GiB",
    "starts_24GiB",
)
"""What an oracle's row may give for a length."""
WEIGHTS_WITHIN, QUANTISED_WEIGHTS_WITHIN = 0.001, 0.01
WORKLOAD = {"name": "validation", "context_tokens": 1, "concurrency": 1, "source": "none: figures are per request"}
PRICE = {"usd_per_hour": 1, "source": "none: nothing is priced"}


@dataclass(slots=True)
class Score:
    """How many rows agree, and each that does not."""

    rows: int = 0
    equal: int = 0
    refused: int = 0
    """Rows that planner refuses; right (and equal) where the engine refuses them too."""
    mismatches: list[str] = field(default_factory=list)
    weights_rows: int = 0
    weights_equal: int = 0
    """To the byte; further ones within 0.1 % (1 % quantised) are neither equal nor a mismatch."""
    weights_mismatches: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OracleRow:
    """One run of the engine: its options and the figures it computed."""

    field: str
    """Where the oracle has it."""
    model: str
    hardware: str
    tp: int
    block_tokens: int | None
    kv_dtype: str
    figures: Mapping[str, Any]

    @property
    def label(self) -> str:
        """How a mismatch names it."""
        block = f", block {self.block_tokens}" if self.block_tokens else ""
        return f"{self.model} on {self.hardware}, tp {self.tp}, KV {self.kv_dtype}{block}"


def score_memory(
    oracle: Mapping[str, Any],
    configs: Path,
    engine: str,
    progress: Callable[[int, int], None] | None = None,
    file: str = "oracle",
) -> Score:
    """The planner's groups, blocks and bytes against an engine's own, row by row.

    oracle: `models` (name -> variants) and `other_hardware_and_dtypes`, as in kv_engine_oracle.json
    configs: a folder of checkpoint folders named ORG__NAME
    file: what messages call the oracle
    raises: InputError where the oracle has not that form, or nothing to compare
    """
    check_configs(configs)
    rows = list(oracle_rows(oracle, file))
    if not rows:
        raise InputError(f"{file}: models: no variants, so nothing is compared")
    score = Score()
    for done, row in enumerate(rows):
        if progress:
            progress(done, len(rows))
        _score_row(row, configs, engine, score)
    return score


def check_configs(configs: Path) -> None:
    """Refuse what is no folder of checkpoint folders.

    raises: InputError
    """
    if not configs.is_dir():
        raise InputError(f"{configs}: no such folder; --configs holds a folder per model, named ORG__NAME")


def oracle_rows(oracle: Mapping[str, Any], file: str = "oracle") -> Iterator[OracleRow]:
    """Every row of an oracle file.

    raises: InputError where the oracle has not that form, or a row has nothing to compare
    """
    models = oracle.get("models")
    if not isinstance(models, Mapping):
        raise InputError(f"{file}: the oracle has no `models`: a mapping of names to variants is needed")
    try:
        rows = [*_model_rows(models), *_other_rows(oracle.get("other_hardware_and_dtypes") or {})]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: the oracle has not the form of one: {error!r}") from error
    for row in rows:
        if not _is_whole(row):
            raise InputError(
                f"{file}: the oracle has not the form of one: {shown(row.model)} has a row that cannot be read"
            )
        if not _has_figures(row.figures):
            raise InputError(
                f"{file}: {row.field}: nothing to compare: needed are `lengths` with {', '.join(AT_LENGTH)} or some of "
                "them, or the `vllm_error` of an engine that refuses it"
            )
        yield row


def _model_rows(models: Mapping[str, Any]) -> Iterator[OracleRow]:
    for name, model in models.items():
        for number, variant in enumerate(model.get("variants", [])):
            block = variant.get("block_size_arg", "default")
            asked = None if block == "default" else int(block)
            kv_dtype = str(variant.get("kv_dtype_arg", "auto"))
            kv_dtype = "auto" if "auto" in kv_dtype else kv_dtype
            yield OracleRow(f"models.{name}.variants[{number}]", name, "h100", variant["tp"], asked, kv_dtype, variant)


def _other_rows(others: Mapping[str, Any]) -> Iterator[OracleRow]:
    for hardware, entries in others.items():
        for number, entry in enumerate(entries):
            block, kv_dtype = entry["requested_block_size"], entry["requested_kv_dtype"]
            yield OracleRow(
                f"other_hardware_and_dtypes.{hardware}[{number}]",
                entry["model"],
                hardware,
                entry["tp"],
                block,
                kv_dtype,
                entry,
            )


def _is_whole(row: OracleRow) -> bool:
    """Whether the fields that are compared are of their types."""
    figures, lengths = row.figures, row.figures.get("lengths", {})
    sizes = (figures.get("rank0_param_bytes"), figures.get("rank0_params"))
    groups = figures.get("groups") or []
    return (
        isinstance(row.model, str)
        and isinstance(lengths, Mapping)
        and all(str(n).isdecimal() and int(n) > 0 and isinstance(at, Mapping) for n, at in lengths.items())
        and all(size is None or (type(size) is int and size >= 0) for size in sizes)
        and isinstance(groups, list)
        and all(isinstance(group, list) and len(group) > 2 for group in groups)
    )


def _has_figures(figures: Mapping[str, Any]) -> bool:
    """Whether a row says what the engine computed at some length, or that it refuses."""
    at_lengths = figures.get("lengths", {}).values()
    return "vllm_error" in figures or any(at.get(name) is not None for at in at_lengths for name in AT_LENGTH)


def _score_row(row: OracleRow, configs: Path, engine: str, score: Score) -> None:
    score.rows += 1
    serves = "lengths" in row.figures
    if not _folder(row, configs).is_dir():
        score.mismatches.append(f"{row.label}: {_folder(row, configs)}: no such folder")
        return
    try:
        rank, block_tokens = _planned(row, configs, engine)
    except PlannerError as error:
        score.refused += 1
        score.equal += not serves
        if serves:
            score.mismatches.append(f"{row.label}: refused, and the engine serves it: {error.problems[0]}")
        return
    if not serves:
        reason = " ".join(str(row.figures.get("vllm_error", "")).split())[:100]
        score.mismatches.append(f"{row.label}: planned, and the engine refuses it: {reason}")
        return
    differences = list(_differences(row.figures, rank.pool, block_tokens))
    score.equal += not differences
    score.mismatches.extend(f"{row.label}: {difference}" for difference in differences)
    _score_weights(row, rank, score)


def _folder(row: OracleRow, configs: Path) -> Path:
    return configs / row.model.replace("/", "__")


def _planned(row: OracleRow, configs: Path, engine: str) -> tuple[Rank, int]:
    """(the governing rank of a replica so run, its scheduler's block)."""
    overrides = {
        "model": str(_folder(row, configs).resolve()),
        "accelerator": ACCELERATORS.get(row.hardware, row.hardware),
        "engine": engine,
        "workload": WORKLOAD,
        "price": PRICE,
        "parallelism.tp": row.tp,
        "kv_cache.dtype": row.kv_dtype,
        "engine_options.kv_cache_bytes": ORACLE_POOL_BYTES,
    }
    if row.block_tokens:
        overrides["kv_cache.block_tokens"] = row.block_tokens
    deployment = deploy(load_scenario({}, Origin("validation"), overrides))
    return governing_rank(deployment), deployment.block_tokens


def _differences(figures: Mapping[str, Any], pool: Pool, block_tokens: int) -> Iterator[str]:
    """What planner and the engine give differently for one row."""
    yield from _unequal("pool bytes per block", pool.bytes_per_block, figures.get("pool_bytes_per_block"))
    yield from _unequal("block size", block_tokens, figures.get("block_size"))
    state = sum(group.layers * group.spec.state_bytes for group in pool.groups)
    yield from _unequal("state bytes per request", state, figures.get("state_bytes_per_request"))
    if figures.get("groups"):
        ours = [[group.layers, group.spec.block_tokens] for group in pool.groups]
        yield from _unequal("groups (layers, block)", ours, [[g[0], g[2]] for g in figures["groups"]])
    for length, at in figures["lengths"].items():
        yield from _differences_at(int(length), at, pool)


def _differences_at(tokens: int, at: Mapping[str, Any], pool: Pool) -> Iterator[str]:
    reserved = [pool.reserved(group, tokens) for group in pool.groups]
    yield from _unequal(f"reserved blocks at {tokens}", reserved, at.get("reserved_blocks"))
    yield from _unequal(f"reserved bytes at {tokens}", pool.reserved_bytes(tokens), at.get("reserved_bytes"))
    yield from _unequal(f"held bytes at {tokens}", pool.held_bytes(tokens), at.get("held_bytes"))
    yield from _unequal("blocks in 24 GiB", pool.num_blocks, at.get("num_blocks_24GiB"))
    concurrency = round(pool.num_blocks / pool.reserved_blocks(tokens), 4)
    yield from _unequal(f"maximum concurrency at {tokens}", concurrency, at.get("max_concurrency_24GiB"))
    starts = pool.usable_blocks >= pool.reserved_blocks(tokens)
    yield from _unequal(f"starts at {tokens}", starts, at.get("starts_24GiB"))


def _unequal(what: str, ours: object, theirs: object) -> Iterator[str]:
    """Nothing where they agree or the oracle has no figure."""
    if theirs is not None and ours != theirs:
        yield f"{what}: {ours}, the engine {theirs}"


def _score_weights(row: OracleRow, rank: Rank, score: Score) -> None:
    theirs, ours = row.figures.get("rank0_param_bytes"), rank.memory.weights.bytes
    if not theirs or row.figures.get("same_as_default") or row.kv_dtype != "auto":
        return
    score.weights_rows += 1
    score.weights_equal += ours == theirs
    within = WEIGHTS_WITHIN if row.figures.get("rank0_params", 0) * 2 == theirs else QUANTISED_WEIGHTS_WITHIN
    if abs(ours / theirs - 1) > within:
        score.weights_mismatches.append(f"{row.label}: weights {ours:,} B, the engine {theirs:,} B")
