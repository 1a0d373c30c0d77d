"""Layers -> cache specs on one rank, by vLLM's rules: block sizes, dtypes and pages.

source: vLLM 0.33, v1/kv_cache_interface.py, platforms/interface.py, model_executor/layers/mamba/mamba_utils.py,
models/deepseek_v4
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import lcm

from planner.blocks import Layer, distinct
from planner.kv_cache import FP8_DTYPES, CacheSpec, Kind, kv_bytes_per_token, rank_kv_heads
from planner.mixers import Attention, CompressedAttention, LatentAttention, Mixer, State
from planner.units import DTYPE_BYTES, ceil_div, round_up

LATENT_BLOCKS_SM10, LATENT_BLOCKS_FP8_SM9 = 32, 64
SPARSE_BLOCK, INDEXED_BLOCK, COMPRESSED_BLOCK, WIDE_HEAD_BLOCK = 64, 128, 256, 64
WIDE_HEAD = 256
"""Heads wider than this need another attention kernel, which has blocks of its own."""
LATENT_STATE_UNIT, ALIGNED_UNIT = 128, 64
INDEX_SCALE_BYTES = 4
COMPRESSED_PAGE_MULTIPLE = 576
COMPRESSED_WINDOW_BLOCK = 64


@dataclass(frozen=True, slots=True)
class CacheRules:
    """What the specs of a rank depend on beside its layers."""

    tp: int
    model_dtype: str
    kv_dtype: str
    kv_dtype_given: bool
    """The user named the dtype; False: it was resolved from auto."""
    sm: int
    """Major CUDA compute capability; 0 where there is none."""
    default_block_tokens: int
    block_tokens: int | None
    """The block size that the user asked for."""
    prefix_caching: bool
    max_positions: int
    """The model's longest context: the block of a model of state layers only."""
    windows: bool
    """Windowed layers keep their window only; False: the engine keeps their full length."""
    one_pool: bool
    """vLLM: all kinds share block ids, so states enlarge the blocks; False: each kind has memory of its own."""

    @property
    def fp8(self) -> bool:
        """The cache holds fp8 numbers."""
        return self.kv_dtype in FP8_DTYPES


def mixers_of(layers: Iterable[Layer]) -> Iterator[Mixer]:
    """Each different mixer of the layers, in order."""
    return iter(dict.fromkeys(mixer for _, layer in distinct(tuple(layers)) for mixer in layer.mixers))


def block_problem(mixers: Iterable[Mixer], rules: CacheRules) -> str | None:
    """Why the block size that was asked for has no attention kernel; None where it has or none was asked for."""
    asked = rules.block_tokens
    if asked is None:
        return None
    for mixer in mixers:
        needed = (
            COMPRESSED_BLOCK
            if isinstance(mixer, CompressedAttention)
            else SPARSE_BLOCK
            if isinstance(mixer, LatentAttention) and mixer.sparse
            else asked
        )
        if asked != needed:
            return f"{asked} tokens per block have no kernel for this model's attention; accepted: {needed}"
    return None


def scheduler_block(mixers: tuple[Mixer, ...], rules: CacheRules) -> int:
    """Tokens per block of the scheduler: asked for, the attention kernel's own, or enlarged to hold a state."""
    kernel = max((_kernel_block(mixer, rules) for mixer in mixers), default=0) if rules.one_pool else 0
    base = rules.block_tokens or kernel
    base = base or rules.default_block_tokens
    states = [mixer for mixer in mixers if isinstance(mixer, State)]
    attention = next((mixer for mixer in mixers if not isinstance(mixer, State)), None)
    if not rules.one_pool or not states or attention is None:
        return base
    unit = max(16, base, LATENT_STATE_UNIT if isinstance(attention, LatentAttention) else 0)
    if rules.prefix_caching and rules.sm >= 9 and any(state.aligned for state in states):
        unit = lcm(unit, ALIGNED_UNIT)
    largest = max(_state_bytes(state, rules) for state in states)
    return unit * ceil_div(largest, unit * token_bytes(attention, rules))


def _kernel_block(mixer: Mixer, rules: CacheRules) -> int:
    """Tokens per block that the mixer's kernel has by itself; 0: the engine's default."""
    if isinstance(mixer, CompressedAttention):
        return COMPRESSED_BLOCK
    if isinstance(mixer, LatentAttention):
        if mixer.sparse:
            return SPARSE_BLOCK
        if rules.sm >= 10:
            return LATENT_BLOCKS_SM10
        return LATENT_BLOCKS_FP8_SM9 if rules.sm == 9 and rules.fp8 else 0
    if isinstance(mixer, Attention) and mixer.index_key_dim:
        return INDEXED_BLOCK
    if isinstance(mixer, Attention) and mixer.key_dim > WIDE_HEAD:
        return WIDE_HEAD_BLOCK if rules.sm >= 10 or (rules.sm == 9 and rules.fp8) else 0
    return 0


def token_bytes(mixer: Mixer, rules: CacheRules) -> int:
    """Cache of one token in one layer of attention on one rank, what indexes it left out [B/token]."""
    if isinstance(mixer, Attention):
        dtype = rules.model_dtype if mixer.ignores_kv_dtype else rules.kv_dtype
        heads = rank_kv_heads(mixer.kv_heads, rules.tp)
        return kv_bytes_per_token(heads, mixer.key_dim, mixer.value_dim, dtype)
    if isinstance(mixer, LatentAttention):
        return latent_bytes_per_token(mixer, rules)
    return 0


def latent_bytes_per_token(mixer: LatentAttention, rules: CacheRules) -> int:
    """Cache of one token in one layer of latent attention, the same on every rank.

        (r_kv + d_rope) * e; sparse with an explicit fp8 cache on SM 9: r_kv + r_kv / 32 + 2 d_rope

    mixer: r_kv and d_rope, its ranks and widths [1]
    rules: e, the cache dtype's bytes [B]
    returns: bytes per cached token and layer [B/token]
    source: DeepSeek-V2, arXiv:2405.04434; vLLM 0.33, v1/attention/backends/mla (fp8_ds_mla)
    """
    if mixer.sparse and rules.fp8 and rules.kv_dtype_given and rules.sm < 10:
        return mixer.kv_rank + mixer.kv_rank // 32 + 2 * mixer.rope_dim
    return (mixer.kv_rank + mixer.rope_dim) * (1 if rules.fp8 else DTYPE_BYTES[rules.kv_dtype])


def layer_specs(layers: tuple[Layer, ...], rules: CacheRules) -> dict[CacheSpec, int]:
    """Each different spec of a rank's layers and how many layers have it, in the order of their first layers."""
    block = scheduler_block(tuple(mixers_of(layers)), rules)
    padded = _padded_state(layers, rules, block)
    counts: dict[CacheSpec, int] = {}
    for count, layer in distinct(layers):
        for mixer in layer.mixers:
            for spec in _specs(mixer, rules, block, padded):
                counts[spec] = counts.get(spec, 0) + count
    return counts


def _padded_state(layers: tuple[Layer, ...], rules: CacheRules, block: int) -> int:
    """Bytes that a state's page is padded to: the attention page beside it; 0 without attention."""
    if not rules.one_pool:
        return 0
    attention = next((mixer for mixer in mixers_of(layers) if not isinstance(mixer, State)), None)
    return block * token_bytes(attention, rules) if attention else 0


def _specs(mixer: Mixer, rules: CacheRules, block: int, padded_state: int) -> Iterator[CacheSpec]:
    if isinstance(mixer, State):
        yield _state_spec(mixer, rules, block, padded_state)
    elif isinstance(mixer, CompressedAttention):
        yield from _compressed_specs(mixer)
    elif isinstance(mixer, LatentAttention):
        if mixer.indexer:
            yield CacheSpec(Kind.MLA, block, block * (mixer.indexer.dim + INDEX_SCALE_BYTES))
        yield CacheSpec(Kind.MLA, block, block * latent_bytes_per_token(mixer, rules))
    elif mixer.owns_cache:
        yield from _attention_specs(mixer, rules, block)


def _attention_specs(mixer: Attention, rules: CacheRules, block: int) -> Iterator[CacheSpec]:
    page = block * token_bytes(mixer, rules)
    if mixer.index_key_dim:
        yield CacheSpec(Kind.MLA, block, block * mixer.index_key_dim * DTYPE_BYTES[rules.model_dtype])
    if mixer.cross:
        yield CacheSpec(Kind.CROSS, block, page, mixer.cross_tokens)
    elif mixer.window is not None and rules.windows:
        yield CacheSpec(Kind.WINDOW, block, page, mixer.window, unbounded=mixer.window >= rules.max_positions)
    elif mixer.chunk is not None:
        yield CacheSpec(Kind.CHUNK, block, page, mixer.chunk)
    else:
        yield CacheSpec(Kind.FULL, block, page)


def _state_spec(state: State, rules: CacheRules, block: int, padded: int) -> CacheSpec:
    """A state's page; with attention beside it and prefix caching, earlier states are kept too."""
    size = _state_bytes(state, rules)
    if not padded:
        return CacheSpec(Kind.STATE, rules.max_positions, size, state_bytes=size)
    kept = 1
    if rules.prefix_caching:
        kept = 3 if state.kind == "mamba2" or (state.aligned and rules.sm >= 9) else 2
    return CacheSpec(Kind.STATE, block, max(padded, size), state_bytes=size, state_blocks=kept)


def _state_bytes(state: State, rules: CacheRules) -> int:
    matrix = DTYPE_BYTES[state.matrix_dtype or rules.model_dtype]
    return state.state_bytes(rules.tp, DTYPE_BYTES[rules.model_dtype], matrix)


def _compressed_specs(mixer: CompressedAttention) -> Iterator[CacheSpec]:
    """DeepSeek-V4's caches of one layer: window, compressed states, indexer, and the compressors' own states."""
    ratio, latent = mixer.ratio, compressed_bytes_per_state(mixer.head_dim, mixer.rope_dim)
    yield _packed(Kind.WINDOW, COMPRESSED_WINDOW_BLOCK, COMPRESSED_WINDOW_BLOCK * latent, mixer.window)
    if not ratio:
        return
    overlap = 2 if ratio == 4 else 1
    states = COMPRESSED_BLOCK // ratio
    buffer, block = overlap * ratio, (4 if ratio == 4 else 8)
    if ratio == 4:
        yield _packed(Kind.MLA, COMPRESSED_BLOCK, states * (mixer.index_dim + INDEX_SCALE_BYTES))
        yield _packed(Kind.WINDOW, block, block * 2 * overlap * mixer.index_dim * 4, buffer)
    yield _packed(Kind.MLA, COMPRESSED_BLOCK, states * latent)
    yield _packed(Kind.WINDOW, block, block * 2 * overlap * mixer.head_dim * 4, buffer)


def compressed_bytes_per_state(head_dim: int, rope_dim: int) -> int:
    """One latent of DeepSeek-V4: fp8 numbers, bf16 rope numbers and a byte of scale per 64, one more for alignment.

        (d - r) + 2 r + (d - r) / 64 + 1

    head_dim: d, width of the latent [1]
    rope_dim: r, its rotary part [1]
    returns: bytes [B]
    source: vLLM 0.33, models/deepseek_v4
    """
    return (head_dim - rope_dim) + 2 * rope_dim + (head_dim - rope_dim) // 64 + 1


def _packed(kind: Kind, block: int, size: int, span: int = 0) -> CacheSpec:
    return CacheSpec(kind, block, round_up(size, COMPRESSED_PAGE_MULTIPLE), span, packed=True)
