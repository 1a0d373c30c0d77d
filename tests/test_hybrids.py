"""Laws of models whose layers do not all grow with the context, engine by engine, over everything shipped."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from planner import catalog
from planner.cache_groups import Group
from planner.deployment import deploy
from planner.errors import InputError
from planner.kv_cache import Kind
from planner.plan import estimate
from planner.pool import BlockPool, PlainPool, Pool, TokenPool
from planner.rank import governing_rank
from planner.report import Report
from planner.units import GIB, ceil_div
from tests.scenarios import ENGINE, report, scenario, vendor_model

ENGINES = ("vllm-0.33", "vllm-0.19", "sglang-0.5", "tensorrt-llm-1.0", "generic")
LENGTHS = (1, 100, 128, 512, 1024, 1025, 4096, 8192, 16_384, 30_000, 131_072)
TERMS = {"workspace_gib": 1, "reserve_gib": 1}


def asked(engine: str, kv_bytes: int = 64 * GIB) -> dict[str, Any]:
    memory = {"memory": TERMS} if engine == "generic" else {}
    return {"engine": engine, "context_tokens": 1, "engine_options.kv_cache_bytes": kv_bytes, **memory}


def pool_of(model: str | dict[str, Any], engine: str = "vllm-0.33", **overrides: Any) -> Pool:
    return governing_rank(deploy(scenario(model, overrides={**asked(engine), **overrides}))).pool


def kinds(model: str) -> set[Kind]:
    return {group.spec.kind for group in pool_of(model, "generic").groups}


HYBRIDS = [name for name in catalog.names("model") if kinds(name) - {Kind.FULL, Kind.MLA}]
PLAIN = [name for name in catalog.names("model") if name not in HYBRIDS]
WINDOWED = [name for name in HYBRIDS if Kind.WINDOW in kinds(name)]


def test_hybrids_are_shipped() -> None:
    assert len(HYBRIDS) >= 20
    assert len(WINDOWED) >= 10


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", HYBRIDS)
def test_more_context_takes_no_less(model: str, engine: str) -> None:
    pool = pool_of(model, engine)
    reserved = [pool.reserved_bytes(tokens) for tokens in LENGTHS]
    assert reserved == sorted(reserved)
    blocks = [pool.reserved_blocks(tokens) for tokens in LENGTHS]
    assert blocks == sorted(blocks)
    requests = [pool.requests(tokens) for tokens in LENGTHS]
    assert requests == sorted(requests, reverse=True)
    for tokens in LENGTHS:
        assert 0 < pool.held_bytes(tokens) <= pool.reserved_bytes(tokens)
    # by where in its block a window starts, it holds one more or fewer
    slack = sum(pool.bytes_per_block for group in pool.groups if group.spec.kind is Kind.WINDOW)
    chunked = any(group.spec.kind is Kind.CHUNK for group in pool.groups)  # a new chunk leaves the last one's blocks
    for tokens, more in pairwise(LENGTHS):
        assert chunked or pool.held_bytes(tokens) <= pool.held_bytes(more) + slack


@pytest.mark.parametrize("model", WINDOWED)
def test_a_request_beyond_its_windows_holds_less_than_is_reserved(model: str) -> None:
    """By the tokens in flight, which the window is planned with."""
    pool = pool_of(model)
    windows = [group for group in pool.groups if group.spec.kind is Kind.WINDOW]
    longest = max(group.spec.span_tokens for group in windows)
    for tokens in (2 * longest + 64, 4 * longest + 64):
        assert all(pool.held(group, tokens) < pool.reserved(group, tokens) for group in windows)
        assert pool.held_bytes(tokens) < pool.reserved_bytes(tokens)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", HYBRIDS)
def test_more_memory_never_holds_fewer_requests(model: str, engine: str) -> None:
    pool = pool_of(model, engine)
    assert isinstance(pool, BlockPool | PlainPool | TokenPool)
    for tokens in (128, 8192):
        sizes = [replace(pool, kv_bytes=n * GIB) for n in (0, 1, 2, 8, 33, 64)]
        requests = [each.requests(tokens) for each in sizes]
        assert requests == sorted(requests)
        assert requests[0] == 0 < requests[-1]
        decoding = [each.decoding(tokens) for each in sizes]
        assert decoding == sorted(decoding)
        assert all(few <= many and bool(few) == bool(many) for few, many in zip(requests, decoding, strict=True))


def plain_bytes(group: Group, tokens: int) -> int:
    """What the definition of the kind says that a group holds."""
    spec = group.spec
    if spec.kind is Kind.STATE:
        return group.page_bytes
    span = spec.span_tokens or tokens
    return ceil_div(span if spec.kind is Kind.CROSS else min(tokens, span), spec.block_tokens) * group.page_bytes


@pytest.mark.parametrize("model", HYBRIDS)
def test_the_plain_formula_holds_the_span_of_each_kind(model: str) -> None:
    pool = pool_of(model, "generic")
    for tokens in LENGTHS:
        expected = sum(plain_bytes(group, tokens) for group in pool.groups)
        assert pool.held_bytes(tokens) == pool.reserved_bytes(tokens) == pool.prefill_bytes(tokens) == expected
        assert pool.requests(tokens) == 64 * GIB // expected


@pytest.mark.parametrize("model", HYBRIDS)
def test_one_pool_for_all_kinds_takes_no_less_than_the_growing_layers_need(model: str) -> None:
    """vLLM's block ids cost as much as the fullest group's block, whichever group takes them."""
    vllm, plain = pool_of(model), pool_of(model, "generic")
    states = [sum(group.layers * group.spec.state_bytes for group in pool.groups) for pool in (vllm, plain)]
    assert states[0] == states[1]
    for tokens in (16_384, 131_072):
        growing = sum(plain_bytes(group, tokens) for group in plain.groups if group.growing)
        assert vllm.held_bytes(tokens) >= growing


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["gpt-oss-120b", "qwen3.5-27b", "gemma-3-4b", "llama-4-scout-17b-16e"])
def test_reports_of_hybrids_are_whole(model: str, engine: str) -> None:
    overrides = {**asked(engine), "context_tokens": 8192}
    found = estimate(scenario(model, overrides=overrides))
    cache = found.kv_cache
    assert [point.context_tokens for point in cache.by_context] == [1024, 2048, 4096, 8192]
    assert (cache.by_context[-1].reserved_bytes, cache.by_context[-1].held_bytes) == (
        cache.bytes_per_request,
        cache.held_bytes_per_request,
    )
    assert sum(group.layers for group in cache.groups) == len(deploy(scenario(model)).stack.layers)
    assert Report.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("model", ["gemma-2-27b", "gemma-3-4b"])
def test_sglang_keeps_the_windows_of_these_families_in_full(model: str) -> None:
    pool = pool_of(model, "sglang-0.5")
    assert {group.spec.kind for group in pool.groups} == {Kind.FULL}
    assert {group.spec.kind for group in pool_of(model, "generic").groups} == {Kind.FULL, Kind.WINDOW}


def test_sglang_counts_the_scarcest_of_its_pools() -> None:
    """gpt-oss-120b: a full slot costs 18 x 2,048 B and 0.8 windowed slots as much each: 66,355.2, so 66,356 B."""
    pool = pool_of("gpt-oss-120b", "sglang-0.5")
    slots = 64 * GIB // -(-18 * 2048 * 18 // 10)
    assert pool.num_blocks == slots
    assert pool.requests(16_384) == slots // 16_384  # 128 windowed slots are enough for each
    assert pool.requests(100) == int(slots * 0.8) // 100


def test_what_an_engine_does_not_serve_is_planned_by_generic() -> None:
    model = vendor_model("mosaicml/mpt-7b")
    with pytest.raises(InputError, match=r"engine vllm-0\.33 does not serve mpt: .*; engine generic plans it"):
        report(model)
    assert report(model, overrides=asked("generic")).fits
    assert "mosaicml/mpt-7b" in ENGINE["models"]


@pytest.mark.parametrize("model", ["gpt-oss-120b", "qwen3.5-27b", "gemma-3-4b"])
def test_hybrids_are_told_to_be_read_by_their_curve(model: str) -> None:
    """Slope and bytes per request differ: one bytes per token would be wrong."""
    cache = report(model, overrides={**asked("vllm-0.33"), "context_tokens": 4096}).kv_cache
    assert cache.bytes_per_request != 4096 * cache.bytes_per_token


def test_a_window_beyond_the_positions_grows_throughout() -> None:
    """Phi-3.5-mini: a window of 262,144 on 131,072 positions; 32 layers, 32 heads of 96."""
    cache = report(vendor_model("microsoft/Phi-3.5-mini-instruct"), overrides=asked("vllm-0.33")).kv_cache
    assert [group.kind for group in cache.groups] == ["window"]
    assert cache.bytes_per_token == 32 * 2 * 32 * 96 * 2 == 393_216
    narrow = vendor_model("microsoft/Phi-3.5-mini-instruct", sliding_window=2048)
    assert report(narrow, overrides=asked("vllm-0.33")).kv_cache.bytes_per_token == 0


@pytest.mark.parametrize("tokens", [1, 448])
def test_cross_attention_holds_the_encoders_output_whatever_is_decoded(tokens: int) -> None:
    """whisper-large-v3: 1,500 positions of sound in 32 layers, 20 heads of 64."""
    model = vendor_model("openai/whisper-large-v3")
    cache = report(model, overrides={**asked("generic"), "context_tokens": tokens}).kv_cache
    page = 32 * 16 * 2 * 20 * 64 * 2
    assert [(group.kind, group.held_blocks) for group in cache.groups] == [
        ("full", ceil_div(tokens, 16)),
        ("cross", 94),
    ]
    assert cache.bytes_per_request == (ceil_div(tokens, 16) + 94) * page


@pytest.mark.parametrize("model", PLAIN)
def test_plain_models_hold_what_they_reserve(model: str) -> None:
    pool = pool_of(model)
    for tokens in (1, 1000, 4096):
        assert pool.held_bytes(tokens) == pool.reserved_bytes(tokens)
        assert len(pool.groups) == 1


@pytest.mark.parametrize(
    ("model", "share"), [("deepseek-v4-flash", "0.1"), ("gemma-4-26b-a4b", "0.15"), ("gpt-oss-120b", "0.8")]
)
def test_sglang_gives_windows_the_share_that_is_their_models_default(model: str, share: str) -> None:
    """SGLang 0.5, srt/server_args.py: swa_full_tokens_ratio of DeepSeek V4 and Gemma 4, and of all others."""
    pool = pool_of(model, "sglang-0.5")
    assert isinstance(pool, TokenPool)
    assert str(pool.window_share) == share
