"""A deployment as the simulated engine needs it: its memory is the pool's own, its rules the engine's by version."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.deployment import Deployment, deploy
from planner.rank import governing_rank
from planner.simulate.rules import MOST_TOKENS, Memory
from planner.simulate.setting import NO_LIMIT, memory_of, reserves_prompt, setting_of
from tests.scenarios import ORACLES, scenario

MODELS = (
    "llama-3.1-8b",
    "gpt-oss-20b",
    "gemma-3-4b",
    "gemma-4-26b-a4b",
    "kimi-linear-48b-a3b",
    "qwen3.5-27b",
    "mimo-v2-flash",
)
"""Full attention, windows, latents and states, alone and together."""


def deployed(model: str, **overrides: Any) -> Deployment:
    return deploy(scenario(model, "b300-sxm", {"context_tokens": 16384, "workload.context_tokens": 16384, **overrides}))


@pytest.mark.parametrize("model", MODELS)
@given(tokens=st.integers(1, 16384))
def test_what_a_request_takes_is_what_the_pool_says_that_it_holds(model: str, tokens: int) -> None:
    """In blocks of vLLM's pool; a window or chunk is counted at its fullest, which it may be a block short of."""
    pool = governing_rank(deployed(model)).pool
    memory = memory_of(pool)
    held = sum(pool.held(group, tokens) for group in pool.groups)
    assert memory.units == pool.usable_blocks
    assert held <= memory.whole(tokens) <= held + 2 * sum(not group.growing for group in pool.groups)
    if all(group.growing for group in pool.groups):
        assert memory.whole(tokens) == held


@given(tokens=st.integers(1, 16384))
def test_other_engines_pools_are_the_same_to_the_byte(tokens: int) -> None:
    for engine in ("tensorrt-llm-1.0", "generic"):
        given_memory = {"memory.workspace_gib": 2, "memory.reserve_gib": 2} if engine == "generic" else {}
        pool = governing_rank(deployed("gpt-oss-20b", engine=engine, **given_memory)).pool
        assert memory_of(pool).whole(tokens) == pool.held_bytes(tokens)
        assert memory_of(pool).units == pool.kv_bytes
    slots = governing_rank(deployed("llama-3.1-8b", engine="sglang-0.5")).pool
    assert memory_of(slots).units // memory_of(slots).whole(tokens) == slots.requests(tokens)


def test_sglang_windows_bound_how_many_run() -> None:
    pool = governing_rank(deployed("gpt-oss-20b", engine="sglang-0.5")).pool
    most = memory_of(pool).most_requests
    assert most is not None
    assert most == pool.limits(NO_LIMIT)["windowed slots"]  # type: ignore[attr-defined]


memories = st.builds(
    Memory,
    units=st.integers(0, 5000),
    growing=st.lists(st.tuples(st.sampled_from([1, 16, 48, 832]), st.integers(1, 3)), min_size=1, max_size=3).map(
        tuple
    ),
    bounded=st.lists(st.tuples(st.sampled_from([16, 64]), st.integers(1, 2), st.integers(1, 9)), max_size=2).map(tuple),
    state_units=st.integers(0, 3),
)


@given(memory=memories, lengths=st.lists(st.integers(1, 20_000), min_size=1, max_size=20))
def test_requests_within_the_sure_tokens_fit(memory: Memory, lengths: list[int]) -> None:
    sure, margin = memory.sure_tokens()
    if sum(lengths) + margin * len(lengths) <= sure:
        assert sum(map(memory.whole, lengths)) <= memory.units


@given(memory=memories)
def test_the_longest_request_is_the_longest(memory: Memory) -> None:
    longest = memory.longest()
    assert longest == 0 or memory.whole(longest) <= memory.units
    assert memory.whole(longest + 1) > memory.units


def test_a_pool_without_growing_groups_holds_any_length() -> None:
    assert Memory(units=5, growing=(), state_units=2).longest() == MOST_TOKENS
    assert Memory(units=1, growing=(), state_units=2).longest() == 0


def test_rules_are_the_engines_own() -> None:
    vllm = setting_of(deployed("llama-3.1-8b")).rules
    assert (vllm.max_seqs, vllm.max_tokens, vllm.context_tokens) == (1024, 16384, 16384)
    assert (vllm.sees_late, vllm.mixes, vllm.reserves_prompt, vllm.reserves_answer) == (True, True, True, False)
    sglang = setting_of(deployed("llama-3.1-8b", engine="sglang-0.5")).rules
    assert (sglang.mixes, sglang.reserves_answer) == (False, False)
    trtllm = setting_of(deployed("llama-3.1-8b", engine="tensorrt-llm-1.0")).rules
    assert (trtllm.mixes, trtllm.reserves_answer) == (True, True)
    off = setting_of(deployed("llama-3.1-8b", **{"engine_options.prefix_caching": False}), max_queue=3, timeout_s=2.5)
    assert (off.rules.prefix_caching, off.rules.max_queue, off.rules.timeout_s) == (False, 3, 2.5)


def test_whole_prompts_are_reserved_from_the_version_that_does() -> None:
    recorded = json.loads((ORACLES / "traces" / "vllm_truth_RTX4090_Llama-3.1-8B.meta.json").read_text("utf-8"))
    settings = recorded["resolved_config"]["scheduler_config"]
    assert reserves_prompt("vllm", recorded["vllm_version"]) == settings["scheduler_reserve_full_isl"]
    assert not reserves_prompt("vllm", "0.18.0")
    assert reserves_prompt("sglang", "0.5")
