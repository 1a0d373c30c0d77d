"""KV cache blocks, reservations and capacity against what vLLM 0.33's own start-up code computes."""

import json
from typing import Any

import pytest

from planner.deployment import deploy
from planner.errors import InputError
from planner.inputs import Scenario
from planner.kv_cache import Pool
from planner.plan import estimate
from planner.rank import governing_rank
from planner.units import GIB
from tests.scenarios import ORACLES, scenario, vendor_model

ORACLE: dict[str, Any] = json.loads((ORACLES / "engine_kv.json").read_text("utf-8"))
RUNS: list[dict[str, Any]] = [row for row in ORACLE["rows"] if "refusal" not in row]
REFUSALS: list[dict[str, Any]] = [row for row in ORACLE["rows"] if "refusal" in row]
BUDGET = 24 * GIB


def name_of(row: dict[str, Any]) -> str:
    return f"{row['model']} on {row['on']} tp{row['tp']} block {row['block']} {row['kv_dtype']}"


def scenario_of(row: dict[str, Any], context: int = 1) -> Scenario:
    asked = {
        "parallelism.tp": row["tp"],
        "kv_cache.dtype": row["kv_dtype"],
        "engine_options.kv_cache_bytes": BUDGET,
        "context_tokens": context,
    }
    block = {"kv_cache.block_tokens": row["block"]} if row["block"] else {}
    return scenario(vendor_model(row["model"]), row["on"], asked | block)


def pool_of(row: dict[str, Any]) -> Pool:
    return governing_rank(deploy(scenario_of(row))).pool


def test_oracle_says_where_it_comes_from() -> None:
    assert ORACLE["source"].startswith("computed with the public package vLLM 0.33.0")
    assert ORACLE["licence"]
    assert ORACLE["as_of"] == "2026-11-29"
    assert len({row["model"] for row in RUNS}) == 38


@pytest.mark.parametrize("row", RUNS, ids=name_of)
def test_pool_is_laid_out_as_the_engine_does(row: dict[str, Any]) -> None:
    pool = pool_of(row)
    assert [group.block_tokens for group in pool.groups] == [row["block_size"]]
    assert pool.bytes_per_block == row["pool_bytes_per_block"]
    assert pool.num_blocks == row.get("num_blocks_24gib", BUDGET // row["pool_bytes_per_block"])


@pytest.mark.parametrize("row", RUNS, ids=name_of)
def test_requests_take_what_the_engine_reserves_and_holds(row: dict[str, Any]) -> None:
    pool = pool_of(row)
    for length, (reserved, reserved_bytes, held, held_bytes, concurrency, starts) in row["lengths"].items():
        tokens = int(length)
        assert pool.reserved_blocks(tokens) == reserved
        assert pool.reserved_blocks(tokens) * pool.bytes_per_block == reserved_bytes
        assert pool.held_blocks(tokens) * pool.bytes_per_block == held_bytes
        if held is not None:
            assert pool.held_blocks(tokens) == held
            assert pool.num_blocks / pool.reserved_blocks(tokens) == pytest.approx(concurrency, abs=0.00005001)
            assert (pool.requests(tokens) >= 1) == starts


@pytest.mark.parametrize("row", [row for row in RUNS if "num_blocks_24gib" in row], ids=name_of)
def test_reports_say_the_same_within_the_model_positions(row: dict[str, Any]) -> None:
    positions = deploy(scenario_of(row)).stack.max_positions
    tokens = max(int(length) for length in row["lengths"] if int(length) <= positions)
    reserved, reserved_bytes, _, held_bytes, concurrency, starts = row["lengths"][str(tokens)]
    report = estimate(scenario_of(row, tokens))
    assert report.kv_cache.blocks_per_request == reserved
    assert report.kv_cache.bytes_per_request == reserved_bytes
    assert report.kv_cache.held_bytes_per_request == held_bytes
    assert report.capacity.num_blocks == row["num_blocks_24gib"]
    assert report.capacity.max_concurrency == pytest.approx(concurrency, abs=0.00005001)
    assert report.fits == starts
    assert report.kv_cache.by_context[-1].reserved_bytes == reserved_bytes


@pytest.mark.parametrize("row", REFUSALS, ids=name_of)
def test_what_the_engine_refuses_is_refused(row: dict[str, Any]) -> None:
    says_heads = "attention heads" in row["refusal"]
    expected = "does not divide the model's .* attention heads" if says_heads else "refuses fp8 for a model with ALiBi"
    with pytest.raises(InputError, match=expected):
        deploy(scenario_of(row))
