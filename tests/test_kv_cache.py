"""Formulas of the cache, kind by kind, each figure worked out by hand."""

import pytest

from planner.cache_specs import compressed_bytes_per_state
from planner.kv_cache import CacheSpec, Flight, Kind, held_blocks, prefill_blocks, rank_kv_heads, reserved_blocks
from planner.mixers import State

H100 = Flight(8192, 16_384)
"""vLLM's defaults on H100: 8,192 batched tokens, twice that in flight."""
A100 = Flight(2048, 4096)
B200 = Flight(16_384, 32_768)


@pytest.mark.parametrize("kind", [Kind.FULL, Kind.MLA])
@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (16, 1), (17, 2), (101, 7), (16_384, 1024)])
def test_growing_kinds_take_whole_blocks(kind: Kind, tokens: int, blocks: int) -> None:
    spec = CacheSpec(kind, 16, 1)
    for count in (reserved_blocks, held_blocks, prefill_blocks):
        assert count(spec, tokens, H100) == blocks


@pytest.mark.parametrize(
    ("flight", "tokens", "blocks"),
    [
        (H100, 1, 1 + 1),  # ceil(1 / 16), and one for where the window starts within a block
        (H100, 16_384, 1024 + 1),  # ceil(min(128 - 1 + 16,384, 16,384) / 16)
        (H100, 16_511, 1032 + 1),  # 16,511 = 128 - 1 + 16,384 is the most: ceil(16,511 / 16)
        (H100, 131_072, 1032 + 1),
        (A100, 131_072, 264 + 1),  # ceil(4,223 / 16)
        (B200, 131_072, 2056 + 1),  # ceil(32,895 / 16)
        (Flight(8192, 8192), 131_072, 520 + 1),  # without asynchronous scheduling: ceil(8,319 / 16)
    ],
)
def test_windows_are_planned_with_the_tokens_in_flight(flight: Flight, tokens: int, blocks: int) -> None:
    assert reserved_blocks(CacheSpec(Kind.WINDOW, 16, 1, 128), tokens, flight) == blocks


@pytest.mark.parametrize(
    ("tokens", "blocks"),
    [
        (1, 1),
        (101, 7),
        (128, 8),
        (129, 9),  # ceil(129 / 16) - 1 // 16: the first block still has positions 1 to 15
        (143, 9),
        (144, 8),  # 16 positions have left the window: 9 - 1
        (16_384, 8),  # 1,024 - 16,256 // 16
        (16_385, 9),  # 1,025 - 16,257 // 16 = 9, and at most ceil(127 / 16) + 1 = 9
    ],
)
def test_windows_hold_their_span(tokens: int, blocks: int) -> None:
    assert held_blocks(CacheSpec(Kind.WINDOW, 16, 1, 128), tokens, H100) == blocks


def test_a_window_of_one_position_holds_one_block() -> None:
    """At most ceil(0 / 16) + 1."""
    assert {held_blocks(CacheSpec(Kind.WINDOW, 16, 1, 1), tokens, H100) for tokens in range(1, 100)} == {1}


@pytest.mark.parametrize(
    ("tokens", "blocks"),
    [(100, 7), (8192, 512), (8319, 519 + 1), (131_072, 519 + 1)],  # (128 - 1 + 8,192) // 16 + 1 = 520
)
def test_windows_hold_the_chunk_that_is_prefilled_too(tokens: int, blocks: int) -> None:
    assert prefill_blocks(CacheSpec(Kind.WINDOW, 16, 1, 128), tokens, H100) == blocks


@pytest.mark.parametrize(
    ("tokens", "reserved", "held"),
    [
        (1, 1, 1),
        (8192, 512, 512),  # the whole first chunk
        (8193, 513, 1),  # ceil(8,193 / 16) - 8,192 // 16: the second chunk's first position
        (16_384, 1024, 512),  # 1,024 - 512
        (24_576, 1536, 512),  # 8,192 + 16,384 in flight
        (131_072, 1536, 512),
    ],
)
def test_chunks_hold_the_chunk_that_they_are_in(tokens: int, reserved: int, held: int) -> None:
    """Llama 4: chunks of 8,192."""
    spec = CacheSpec(Kind.CHUNK, 16, 1, 8192)
    assert (reserved_blocks(spec, tokens, H100), held_blocks(spec, tokens, H100)) == (reserved, held)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_states_are_planned_with_what_prefix_caching_keeps_and_hold_one(kept: int) -> None:
    spec = CacheSpec(Kind.STATE, 832, 10**6, 0, 10**6, kept)
    for tokens in (1, 10**6):
        assert reserved_blocks(spec, tokens, H100) == kept
        assert held_blocks(spec, tokens, H100) == prefill_blocks(spec, tokens, H100) == 1


def test_cross_attention_is_planned_with_a_batch() -> None:
    """Whatever the decoder's length: ceil(8,192 / 16)."""
    spec = CacheSpec(Kind.CROSS, 16, 1, 1500)
    assert {reserved_blocks(spec, tokens, H100) for tokens in (1, 448)} == {512}
    assert held_blocks(spec, 448, H100) == 512


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)])
def test_ranks_copy_heads_where_they_are_more(tp: int, heads: int) -> None:
    assert rank_kv_heads(8, tp) == heads


def test_a_latent_of_deepseek_v4() -> None:
    """448 fp8 numbers, 64 rotary ones in 2 B, a scale per 64 and one byte of padding."""
    assert compressed_bytes_per_state(512, 64) == 448 + 2 * 64 + 7 + 1 == 584


@pytest.mark.parametrize(
    ("state", "tp", "size"),
    [
        # Qwen3.5-27B, gated delta net: 3 taps of 2 x 128 x 16 + 128 x 48 channels, and 48 heads of 128 x 128 in float32
        (State("gated_delta_net", 3, 10_240, 48, 128 * 128, (), "float32"), 1, 3 * 10_240 * 2 + 48 * 16_384 * 4),
        (State("gated_delta_net", 3, 10_240, 48, 128 * 128, (), "float32"), 4, 3 * 2560 * 2 + 12 * 16_384 * 4),
        # Mamba-2 with 8 groups of 2 x 128 channels: one group a rank at TP 8, copied at TP 16
        (State("mamba2", 3, 8192, 128, 64 * 128, (), None, 256, 8), 8, 3 * (1024 + 256) * 2 + 16 * 8192 * 4),
        (State("mamba2", 3, 8192, 128, 64 * 128, (), None, 256, 8), 16, 3 * (512 + 256) * 2 + 8 * 8192 * 4),
        # a short convolution has no matrix
        (State("short_conv", 2, 2048, 0, 0, ()), 2, 2 * 1024 * 2),
    ],
)
def test_bytes_of_a_state(state: State, tp: int, size: int) -> None:
    assert state.state_bytes(tp, 2, 4) == size
