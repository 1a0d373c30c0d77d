"""The worked example of the documentation, figure by figure: a private assistant from 16K to 32K of context."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest

from planner.compare import compare
from planner.kv_cache import CacheSpec, Flight, Kind, kv_bytes_per_token, reserved_blocks
from planner.plan import estimate
from planner.render.tables import value
from planner.report import Report
from planner.report_memory import score_matrix_bytes
from planner.units import GIB
from tests.scenarios import example, report

ROWS: tuple[tuple[str, Any, Any], ...] = (
    ("kv_cache.bytes_per_token", 2 * 32 * 8 * 128 * 2, 131_072),
    ("kv_cache.bytes_per_request", 2 * GIB, 4 * GIB),
    ("kv_cache.held_bytes_per_request", 2 * GIB, 4 * GIB),
    ("kv_cache.blocks_per_request", 16_384 // 16, 32_768 // 16),
    ("kv_cache.wasted_tokens_per_request", 0, 0),
    ("kv_cache.score_matrix_bytes", 16 * GIB, 64 * GIB),
    ("memory.device_bytes", 80 * GIB, 80 * GIB),
    ("memory.kv_budget_bytes", (80 - 40 - 8 - 8) * GIB, 24 * GIB),
    ("capacity.num_blocks", 12_288, 12_288),
    ("capacity.requests_per_replica", 12, 6),
    ("capacity.slots_per_replica", 12, 6),
    ("fleet.active_replicas", 5, 10),
    ("fleet.spare_replicas", 1, 2),
    ("fleet.devices", 6, 12),
    ("fleet.billed_devices", 6, 12),
    ("cost.monthly_usd", Decimal("14900.00"), Decimal("25700.00")),
    ("cost.per_1000_submitted_usd", Decimal("149.00"), Decimal("257.00")),
    ("cost.per_1000_successful_usd", Decimal("156.84"), Decimal("270.53")),
)
LINES = {
    "16k": {"devices": Decimal("10800.00"), "other monthly allowances": Decimal("4100.00")},
    "32k": {"devices": Decimal("21600.00"), "other monthly allowances": Decimal("4100.00")},
}
VLLM: Mapping[str, Any] = {"engine": "vllm-0.33"}
ONE_OF = {"16k": estimate(example("16k")), "32k": estimate(example("32k"))}


@pytest.mark.parametrize(("path", "at_16k", "at_32k"), ROWS, ids=[row[0] for row in ROWS])
def test_every_figure(path: str, at_16k: object, at_32k: object) -> None:
    assert value(ONE_OF["16k"], path) == at_16k
    assert value(ONE_OF["32k"], path) == at_32k


@pytest.mark.parametrize("name", ["16k", "32k"])
def test_monthly_lines(name: str) -> None:
    cost = ONE_OF[name].cost
    assert cost is not None
    assert {line.name: line.monthly_usd for line in cost.lines} == LINES[name]
    assert cost.monthly_usd == sum(LINES[name].values())


def test_doubling_the_context_adds_10_800_dollars_a_month() -> None:
    comparison = compare([ONE_OF["16k"], ONE_OF["32k"]])
    changed = {change.path: change for change in comparison.changes if change.path != "cost.lines"}
    assert changed["cost.monthly_usd"].difference == "+$10,800.00"
    assert changed["cost.monthly_usd"].percent == "+72 %"  # 10,800 / 14,900
    assert changed["cost.per_1000_successful_usd"].difference == "+$113.69"  # 270.53 - 156.84
    assert "kv_cache.bytes_per_token" not in changed
    assert comparison.verdict.startswith("+$10,800.00 a month (+72 %), +6 devices; binds now: kv_memory")


@pytest.mark.parametrize(("name", "requests"), [("16k", 11), ("32k", 5)])
def test_the_null_block_of_vllm_costs_a_request(name: str, requests: int) -> None:
    capacity = estimate(example(name, VLLM)).capacity
    assert (capacity.num_blocks, capacity.usable_blocks) == (12_288, 12_287)
    assert capacity.requests_per_replica == requests


def test_pages_of_16_tokens() -> None:
    blocks = reserved_blocks(CacheSpec(Kind.FULL, 16, 1), 101, Flight(0, 0))
    assert (blocks, blocks * 16, blocks * 16 - 101) == (7, 112, 11)
    short = {"workload": {"name": "short", "context_tokens": 101, "concurrency": 1, "source": "test"}}
    cache = estimate(example("16k", {**short, "context_tokens": 101})).kv_cache
    assert (cache.blocks_per_request, cache.wasted_tokens_per_request) == (7, 11)


def test_small_cache() -> None:
    """2 x 4 layers x 100 positions x 2 KV heads x 16 x 2 B."""
    assert 4 * 100 * kv_bytes_per_token(2, 16, 16, "bfloat16") == 51_200


def test_qwen3_8b_at_100_000_tokens() -> None:
    """36 layers, 8 KV heads of 128: 13.73 GiB; 100,000 is a whole number of 16-token blocks."""
    full: Report = report("qwen3-8b", overrides={"context_tokens": 40_000})
    assert full.kv_cache.bytes_per_token * 100_000 == 14_745_600_000
    assert round(14_745_600_000 / GIB, 2) == 13.73
    assert full.kv_cache.bytes_per_request == 40_000 * 147_456


def test_score_matrix_of_all_heads_and_one_layer() -> None:
    assert score_matrix_bytes(32, 16_384) == 32 * 16_384 * 16_384 * 2 == 16 * GIB


def test_a_shared_prefix_saves_prompt_positions() -> None:
    """800 of 1,000 requests reuse 8,000 tokens: 6.4 million positions avoid prefill."""
    asked = {"workload.requests_per_month": 1000, "workload.prefix.shared_tokens": 8000}
    prefix = estimate(example("16k", {**asked, "workload.prefix.request_share": "0.8"})).prefix
    assert prefix is not None
    assert prefix.requests_per_month == 800
    assert prefix.saved_positions_per_month == 6_400_000
