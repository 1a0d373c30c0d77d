"""Groups, blocks, bytes and refusals against what vLLM 0.33's own start-up code and scheduler compute."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.catalog import DEFAULT_ENGINE
from planner.deployment import deploy
from planner.errors import InputError
from planner.plan import estimate
from planner.validate import ACCELERATORS, ORACLE_POOL_BYTES, OracleRow, Score, oracle_rows, score_memory
from tests.scenarios import ENGINE, scenario, vendor_model

OTHER = "other_hardware_and_dtypes"
ROWS = list(oracle_rows(ENGINE))
MODELS = list(ENGINE["models"])
REFUSED = [row for row in ROWS if "lengths" not in row.figures]
ARTEFACT = "bigcode/starcoder on h100, tp 8, KV auto: weights 4,080,164,864 B, the engine 25,221,177,344 B"
NO_KERNEL = "have no kernel for this model's attention"
REASONS = (
    ("attention heads", r"does not divide the model's \d+ attention heads"),
    ("No valid attention backend", NO_KERNEL),
    ("ZeroDivisionError", NO_KERNEL),  # DeepSeek-V4's only block is 256 tokens
    ("does not support fp8 kv-cache", "refuses fp8 for a model with ALiBi"),
    ("", "engine vllm-0.33 does not serve .*; engine generic plans it"),
)
"""What the engine says, and what planner says of the same; the last for architectures that it does not load."""


def part(model: str) -> Mapping[str, Any]:
    """The oracle of one model."""
    others = {hardware: [row for row in rows if row["model"] == model] for hardware, rows in ENGINE[OTHER].items()}
    return {"models": {model: ENGINE["models"][model]}, OTHER: others}


@cache
def score_of(model: str, configs: Path) -> Score:
    """The rows of one model, scored once."""
    return score_memory(part(model), configs, DEFAULT_ENGINE)


@pytest.mark.parametrize("model", MODELS)
def test_every_row_of_a_model_is_equal(model: str, vendor_configs: Path) -> None:
    score = score_of(model, vendor_configs)
    assert score.mismatches == []
    assert score.equal == score.rows >= 2
    assert score.weights_mismatches in ([], [ARTEFACT])


def test_all_rows_are_equal(vendor_configs: Path) -> None:
    scores = [score_of(model, vendor_configs) for model in MODELS]
    assert sum(score.rows for score in scores) == sum(score.equal for score in scores) == len(ROWS) == 941
    assert sum(score.refused for score in scores) == len(REFUSED) == 148
    assert [found for score in scores for found in score.weights_mismatches] == [ARTEFACT]
    assert sum(score.weights_rows for score in scores) == 234
    assert sum(score.weights_equal for score in scores) >= 229


@pytest.mark.parametrize("model", MODELS)
def test_reports_say_the_same_within_the_model_positions(model: str) -> None:
    run = next((run for run in ENGINE["models"][model]["variants"] if "lengths" in run), None)
    if run is None:
        return  # refused in every variant, as other tests say
    asked = {"parallelism.tp": run["tp"], "engine_options.kv_cache_bytes": ORACLE_POOL_BYTES}
    positions = deploy(scenario(vendor_model(model), overrides={**asked, "context_tokens": 1})).stack.max_positions
    tokens = max(int(length) for length in run["lengths"] if int(length) <= positions)
    at = run["lengths"][str(tokens)]
    report = estimate(scenario(vendor_model(model), overrides={**asked, "context_tokens": tokens}))
    cache = report.kv_cache
    assert [group.reserved_blocks for group in cache.groups] == at["reserved_blocks"]
    assert (cache.blocks_per_request, cache.bytes_per_request) == (sum(at["reserved_blocks"]), at["reserved_bytes"])
    if at["held_bytes"] is not None:
        assert cache.held_bytes_per_request == at["held_bytes"]
        assert [group.held_blocks for group in cache.groups] == at["held_blocks"]
    assert cache.bytes_per_block == run["pool_bytes_per_block"]
    assert cache.block_tokens == run["block_size"]
    assert cache.state_bytes_per_request == run["state_bytes_per_request"]
    assert report.capacity.num_blocks == at["num_blocks_24GiB"]
    assert report.capacity.max_concurrency == pytest.approx(at["max_concurrency_24GiB"], abs=0.00005001)
    assert report.fits == at["starts_24GiB"]
    last = cache.by_context[-1]
    assert (last.context_tokens, last.reserved_bytes) == (tokens, cache.bytes_per_request)
    assert last.held_bytes == cache.held_bytes_per_request


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.label)
def test_what_the_engine_refuses_is_refused_for_its_reason(row: OracleRow) -> None:
    asked: dict[str, Any] = {"parallelism.tp": row.tp, "kv_cache.dtype": row.kv_dtype}
    if row.block_tokens:
        asked["kv_cache.block_tokens"] = row.block_tokens
    with pytest.raises(InputError) as caught:
        deploy(scenario(vendor_model(row.model), ACCELERATORS[row.hardware], asked))
    ours = next(ours for theirs, ours in REASONS if theirs in row.figures["vllm_error"])
    assert re.search(ours, str(caught.value))


@pytest.mark.parametrize("model", sorted({row.model for row in REFUSED if "attention heads" in str(row.figures)}))
def test_generic_refuses_what_no_engine_can_divide(model: str) -> None:
    asked = {"engine": "generic", "memory": {"workspace_gib": 1, "reserve_gib": 1}, "parallelism.tp": 8}
    with pytest.raises(InputError, match="attention heads"):
        deploy(scenario(vendor_model(model), overrides=asked))


NOT_SERVED = sorted(name for name, row in ENGINE["models"].items() if all("lengths" not in r for r in row["variants"]))


@pytest.mark.parametrize("model", NOT_SERVED)
def test_generic_plans_what_this_version_of_the_engine_does_not_serve(model: str) -> None:
    tp = 1 if model.endswith("FP8") else 4  # TP cuts the 128-wide blocks of its shared expert
    asked = {"engine": "generic", "memory": {"workspace_gib": 1, "reserve_gib": 1}, "parallelism.tp": tp}
    report = estimate(scenario(vendor_model(model), "b300-sxm", asked))
    assert report.fits
    assert report.kv_cache.bytes_per_request > 0


def test_nine_models_are_not_served() -> None:
    assert len(NOT_SERVED) == 9
