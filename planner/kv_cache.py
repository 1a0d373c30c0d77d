"""KV cache: bytes per token, blocks, layer groups and the pool, by the engine's own rules."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from planner.blocks import FullAttention, Layer
from planner.units import DTYPE_BYTES, ceil_div

FP8_DTYPES = ("fp8", "fp8_e4m3", "fp8_e5m2")
SCALED_DTYPES = ("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head", "nvfp4")
KNOWN_DTYPES = (*DTYPE_BYTES, *FP8_DTYPES, *SCALED_DTYPES)
SCALE_BYTES = 4
"""A float32 scale per token and head, key and value apart (the per_token_head dtypes)."""


def head_bytes(width: int, dtype: str) -> int:
    """Bytes that one head's key (or value) of one token takes.

        w * e, + 4 with a scale per token and head; nvfp4: w/2 + w/16

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


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that hold a full-attention context.

        ceil(L / b)

    tokens: L, cached tokens [token]
    block_tokens: b, tokens per block [token]
    returns: blocks [1]
    source: Kwon et al. 2023, arXiv:2309.06180; vLLM 0.33, v1/core/kv_cache_planning.py
    """
    return ceil_div(tokens, block_tokens)


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


@dataclass(frozen=True, slots=True)
class Group:
    """Layers whose blocks are taken together, on one rank."""

    kind: str
    layers: int
    block_tokens: int
    bytes_per_token: int
    """All layers of the group."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one block, all layers of the group."""
        return self.block_tokens * self.bytes_per_token

    def reserved_blocks(self, tokens: int) -> int:
        """Blocks that the engine plans with for a request of this length."""
        return blocks_for(tokens, self.block_tokens)

    def held_blocks(self, tokens: int) -> int:
        """Blocks that such a request holds while it decodes."""
        return blocks_for(tokens, self.block_tokens)


@lru_cache(maxsize=256)
def groups(layers: tuple[Layer, ...], tp: int, model_dtype: str, kv_dtype: str, block_tokens: int) -> tuple[Group, ...]:
    """The cache groups of one rank's layers.

    Layers of one type are one group whatever their page sizes; its block is the sum of their pages.
    source: vLLM 0.33, v1/core/kv_cache_planning.py
    """
    per_token = 0
    for mixer, run in groupby(layers, key=lambda layer: layer.mixer):
        per_token += len(list(run)) * layer_bytes_per_token(mixer, tp, model_dtype, kv_dtype)
    return (Group("full", len(layers), block_tokens, per_token),)


def layer_bytes_per_token(mixer: FullAttention, tp: int, model_dtype: str, kv_dtype: str) -> int:
    """Cache of one token in one layer on one rank [B/token]."""
    dtype = model_dtype if mixer.ignores_kv_dtype else kv_dtype
    heads = rank_kv_heads(mixer.kv_heads, tp)
    return kv_bytes_per_token(heads, mixer.key_dim, mixer.value_dim, dtype)


@dataclass(frozen=True, slots=True)
class Pool:
    """The blocks of one rank and what a request takes of them."""

    groups: tuple[Group, ...]
    kv_bytes: int
    null_blocks: int

    @property
    def bytes_per_block(self) -> int:
        """Bytes that a block id costs, whichever group takes it."""
        return max(group.page_bytes for group in self.groups)

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return max(0, self.kv_bytes) // self.bytes_per_block

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can take: all but the null block."""
        return max(0, self.num_blocks - self.null_blocks)

    def reserved_blocks(self, tokens: int) -> int:
        """Blocks of all groups that a request of this length is planned with."""
        return sum(group.reserved_blocks(tokens) for group in self.groups)

    def held_blocks(self, tokens: int) -> int:
        """Blocks of all groups that such a request holds while it decodes."""
        return sum(group.held_blocks(tokens) for group in self.groups)

    def requests(self, tokens: int) -> int:
        """Whole requests of this length in the usable blocks."""
        return self.usable_blocks // self.reserved_blocks(tokens)

    def longest_context(self, requests: int, most: int) -> int:
        """Longest context, up to `most`, at which this many requests fit; 0 when none does."""
        share = self.usable_blocks // requests
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.reserved_blocks(middle) <= share:
                low = middle
            else:
                high = middle - 1
        return low
