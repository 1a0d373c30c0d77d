"""KV cache formulas: bytes per token and the blocks that a request takes, kind by kind.

How layers become specs is cache_specs.py, how specs share a pool is cache_groups.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from planner.units import DTYPE_BYTES, ceil_div

FP8_DTYPES = ("fp8", "fp8_e4m3", "fp8_e5m2")
SCALED_DTYPES = ("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head", "nvfp4")
KNOWN_DTYPES = (*DTYPE_BYTES, *FP8_DTYPES, *SCALED_DTYPES)
SCALE_BYTES = 4
"""A float32 scale per token and head, key and value apart (the per_token_head dtypes)."""


class Kind(StrEnum):
    """What bounds the blocks of a cache."""

    FULL = "full"
    MLA = "mla"
    WINDOW = "window"
    CHUNK = "chunk"
    STATE = "state"
    CROSS = "cross"


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The cache of one layer on one rank, as the engine describes it to its allocator."""

    kind: Kind
    block_tokens: int
    page_bytes: int
    """One block of this one layer."""
    span_tokens: int = 0
    """The window or chunk."""
    state_bytes: int = 0
    """For states: what the page holds before padding."""
    state_blocks: int = 1
    """For states: blocks that the engine plans with (prefix caching keeps earlier states)."""
    unbounded: bool = False
    """A window at least as long as the model's positions: it never binds, so the cache grows throughout."""
    packed: bool = False
    """DeepSeek-V4's caches, which the engine packs by a rule of their own."""


@dataclass(frozen=True, slots=True)
class Flight:
    """What the scheduler can have in flight."""

    batched_tokens: int
    """max_num_batched_tokens."""
    tokens: int
    """Tokens of all steps in flight: twice the batch with asynchronous scheduling."""


def head_bytes(width: int, dtype: str) -> int:
    """Bytes that one head's key (or value) of one token takes.

        w * e, + 4 with a scale per token and head; int4: ceil(w/2) + 4; nvfp4: ceil(w/2) + ceil(w/16)

    width: w, numbers in one head [1]
    dtype: a resolved KV cache dtype [1]
    returns: bytes [B]
    source: vLLM 0.33, v1/kv_cache_interface.py
    """
    if dtype in DTYPE_BYTES:
        return width * DTYPE_BYTES[dtype]
    if dtype in FP8_DTYPES:
        return width
    if dtype in ("fp8_per_token_head", "int8_per_token_head"):
        return width + SCALE_BYTES
    if dtype == "int4_per_token_head":
        return ceil_div(width, 2) + SCALE_BYTES
    if dtype == "nvfp4":
        return ceil_div(width, 2) + ceil_div(width, 16)
    raise ValueError(f"unknown KV cache dtype {dtype}")


def kv_bytes_per_token(kv_heads: int, key_dim: int, value_dim: int, dtype: str) -> int:
    """Cache that one token occupies in one layer on one rank.

        h_kv * (bytes(d_k) + bytes(d_v))

    kv_heads: h_kv, key/value heads stored on the rank [1]
    key_dim: d_k, width of a key head [1]
    value_dim: d_v, width of a value head [1]
    dtype: a resolved KV cache dtype [1]
    returns: bytes per cached token and layer [B/token]
    source: Ainslie et al. 2023, arXiv:2305.13245; vLLM 0.33, v1/kv_cache_interface.py
    """
    return kv_heads * (head_bytes(key_dim, dtype) + head_bytes(value_dim, dtype))


def rank_kv_heads(kv_heads: int, tp: int) -> int:
    """Key/value heads that one tensor-parallel rank stores: divided, or one copied when there are fewer than ranks.

        max(1, h_kv // tp)

    kv_heads: h_kv, heads of the model [1]
    tp: tensor-parallel ranks [1]
    returns: heads on a rank [1]
    source: vLLM 0.33, config/model.py get_num_kv_heads
    """
    return max(1, kv_heads // tp)


def reserved_blocks(spec: CacheSpec, tokens: int, flight: Flight) -> int:
    """Blocks that the engine plans with for a request of this length (start-up check, logged concurrency).

        full, mla: ceil(L / b); window: ceil(min(w - 1 + F, L) / b) + 1; chunk: ceil(min(c + F, L) / b);
        state: its own number; cross: ceil(B / b)

    spec: b, the spec's block; w or c, its span [token]
    tokens: L, the whole context [token]
    flight: F, tokens in flight; B, max_num_batched_tokens [token]
    returns: blocks [1]
    source: vLLM 0.33, v1/kv_cache_interface.py max_memory_usage_bytes; v1/core/kv_cache_planning.py
    """
    block = spec.block_tokens
    if spec.kind is Kind.WINDOW:
        return ceil_div(min(spec.span_tokens - 1 + flight.tokens, tokens), block) + 1
    if spec.kind is Kind.CHUNK:
        return ceil_div(min(spec.span_tokens + flight.tokens, tokens), block)
    if spec.kind is Kind.STATE:
        return spec.state_blocks
    return ceil_div(flight.batched_tokens if spec.kind is Kind.CROSS else tokens, block)


def held_blocks(spec: CacheSpec, tokens: int, flight: Flight) -> int:
    """Blocks that a request of this length holds while it decodes.

        full, mla: ceil(L / b); window: ceil(L / b) - max(0, L - w) // b, at most ceil((w - 1) / b) + 1;
        chunk: ceil(L / b) - (((L - 1) // c) * c) // b; state: 1; cross: ceil(B / b), as planned

    spec: b, the spec's block; w or c, its span [token]
    tokens: L, tokens that have a cache [token]
    flight: B, max_num_batched_tokens [token]
    returns: blocks [1]
    source: vLLM 0.33, v1/core/single_type_kv_cache_manager.py
    """
    block, span = spec.block_tokens, spec.span_tokens
    blocks = ceil_div(tokens, block)
    if spec.kind is Kind.WINDOW:
        return min(blocks - max(0, tokens - span) // block, ceil_div(span - 1, block) + 1)
    if spec.kind is Kind.CHUNK:
        return blocks - ((tokens - 1) // span * span) // block
    if spec.kind is Kind.STATE:
        return 1
    return ceil_div(flight.batched_tokens, block) if spec.kind is Kind.CROSS else blocks


def prefill_blocks(spec: CacheSpec, tokens: int, flight: Flight) -> int:
    """Blocks that a request holds at most while its prompt is prefilled in chunks.

        window: about (w - 1 + B) / b + 1, at most ceil(L / b); otherwise as held

    spec: b, the spec's block; w, its window [token]
    tokens: L, tokens of the prompt [token]
    flight: B, max_num_batched_tokens [token]
    returns: blocks [1]
    source: vLLM 0.33, v1/core/single_type_kv_cache_manager.py
    """
    if spec.kind is not Kind.WINDOW:
        return held_blocks(spec, tokens, flight)
    return min(
        ceil_div(tokens, spec.block_tokens),
        (spec.span_tokens - 1 + flight.batched_tokens) // spec.block_tokens + 1,
    )


def resolve_dtype(
    asked: str,
    model_dtype: str,
    config: Mapping[str, Any],
    hf_quant_config: Mapping[str, Any] | None,
) -> tuple[str, str]:
    """(dtype of the cache, why) for what the user asked for.

    auto is the dtype the model is served in, unless the checkpoint itself declares an fp8 cache: quantised weights
    alone never do. source: vLLM 0.33, config/cache.py and config/model.py
    """
    if asked != "auto":
        return asked, "given"
    quantisation = config.get("quantization_config")
    declared = quantisation if isinstance(quantisation, Mapping) else None
    producer = ""
    if declared is None and hf_quant_config:
        found = hf_quant_config.get("quantization")
        declared = found if isinstance(found, Mapping) else None
        made_by = hf_quant_config.get("producer")
        producer = str(made_by.get("name", "")) if isinstance(made_by, Mapping) else ""
    if declared and _declares_fp8_cache(declared, producer):
        return "fp8", "the checkpoint declares an fp8 cache"
    return model_dtype, "auto: the dtype the model is served in"


def _declares_fp8_cache(declared: Mapping[str, Any], producer: str) -> bool:
    if not (str(declared.get("quant_method", "")).startswith("modelopt") or producer == "modelopt"):
        return False
    scheme = declared.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return (scheme.get("dynamic"), scheme.get("num_bits"), scheme.get("type")) == (False, 8, "float")
    return str(declared.get("kv_cache_quant_algo", "")).upper() == "FP8"
