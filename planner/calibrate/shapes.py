"""Which points to measure: a standard set, or the heads and matrices of one model on one tensor-parallel rank.

Points have 0 seconds until they are measured. Sizes are log-spaced and straddle the launch floor times the bandwidth
(10 to 30 MB on an H100): larger ones alone would leave the floor unknown, smaller ones the bandwidth.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from planner.blocks import Mlp, Moe, Stack
from planner.calibrate.points import BandwidthPoint, CollectivePoint, DecodePoint, GemmPoint, Point, PrefillPoint
from planner.errors import InputError, nearest
from planner.kv_cache import rank_kv_heads
from planner.mixers import Attention
from planner.units import GIB, KIB, MIB

DTYPES = {
    "fp32": "float32",
    "float32": "float32",
    "fp16": "float16",
    "float16": "float16",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp8": "fp8",
}
"""Accepted spellings -> planner's dtype."""
SPLIT_KV_SHARE = 0.8
"""FlashAttention splits the keys of a decode while batch x key/value heads is under this share of twice the
multiprocessors: a kink in the time there."""
MIXER_NAMES = {"State": "a recurrent state", "LatentAttention": "latent attention"}
ALL_REDUCE_BYTES = (KIB, 8 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention heads of one layer on one rank."""

    query_heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Shapes:
    """What a model, or the standard set, asks of the kernels."""

    heads: tuple[Heads, ...]
    matrices: tuple[tuple[int, int], ...]
    """(n, k): outputs and inputs of each weight matrix."""
    left_out: tuple[str, ...] = ()
    """Kinds of kernel that a model runs and calibrate does not measure, a line each."""


STANDARD = Shapes((Heads(32, 8, 128), Heads(8, 1, 128)), ((4096, 4096), (28672, 4096), (4096, 14336)))
"""Llama 3's heads whole and split eight ways, and the matrices of its 8B size."""
STANDARD_CPU = Shapes((Heads(8, 2, 128),), ((1024, 1024), (3072, 1024)))


@dataclass(frozen=True, slots=True)
class Grid:
    """Sizes of the points, by how long a run may take."""

    bandwidth_bytes: tuple[int, ...]
    decode: tuple[tuple[int, int], ...]
    """(batch, cached tokens of each)."""
    kink_tokens: int | None
    """Cached tokens of the points on both sides of the split; None: no such points."""
    prefill: tuple[tuple[int, int, int], ...]
    """(batch, new tokens, tokens before them)."""
    gemm_rows: tuple[int, ...]
    all_reduce_bytes: tuple[int, ...]


CUDA_FULL = Grid(
    (GIB // 4, GIB, 4 * GIB),
    ((1, 256), (1, 1024), (1, 4096), (2, 4096), (4, 4096), (8, 4096), (16, 4096), (64, 4096), (1, 65536)),
    2048,
    ((1, 512, 0), (1, 2048, 0), (4, 2048, 0), (1, 8192, 0), (1, 16384, 0), (1, 2048, 8192)),
    (1, 8, 64, 256, 1024, 8192),
    ALL_REDUCE_BYTES,
)
CUDA_QUICK = Grid(
    (GIB // 4, GIB),
    ((1, 256), (1, 2048), (2, 4096), (8, 4096), (64, 4096)),
    None,
    ((1, 512, 0), (1, 2048, 0), (1, 8192, 0), (1, 2048, 8192)),
    (1, 64, 1024),
    ALL_REDUCE_BYTES,
)
CPU_FULL = Grid(
    (16 * MIB, 64 * MIB, 256 * MIB),
    (*((1, 64 * 2**i) for i in range(10)), (2, 2048), (4, 1024), (4, 2048), (4, 4096), (8, 4096)),
    None,
    (*((1, 64 * i, 0) for i in (1, 2, 3, 4, 6, 8, 16, 32)), (2, 256, 0), (4, 256, 0), (1, 128, 256), (1, 256, 1024)),
    (1, 8, 32, 64, 128, 256, 1024),
    ALL_REDUCE_BYTES,
)
CPU_QUICK = Grid(
    (8 * MIB, 32 * MIB),
    ((1, 64), (1, 128), (1, 256), (1, 512), (1, 1024), (1, 2048), (2, 2048), (4, 2048)),
    None,
    ((1, 64, 0), (1, 128, 0), (1, 192, 0), (1, 256, 0), (1, 384, 0), (2, 192, 0), (1, 128, 256)),
    (1, 8, 32, 64, 128),
    ALL_REDUCE_BYTES[:-1],
)


def parse_dtypes(given: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """planner's names of comma-separated dtypes.

    raises: InputError for a spelling that is not known
    """
    if given is None:
        return default
    names = [part.strip().lower() for part in given.split(",")]
    for name in names:
        if name not in DTYPES:
            raise InputError(f"--dtype: {name!r} is not a dtype that calibrate measures{nearest(name, DTYPES)}")
    return tuple(dict.fromkeys(DTYPES[name] for name in names))


def kink_batches(multiprocessors: int, kv_heads: int) -> tuple[int, int]:
    """The largest batch whose keys are still split, and the next one (26 and 27 at 8 heads on 132 multiprocessors)."""
    limit = SPLIT_KV_SHARE * 2 * multiprocessors / kv_heads
    split = max(1, int(limit) if int(limit) < limit else int(limit) - 1)
    return split, split + 1


def points(shapes: Shapes, grid: Grid, dtypes: Iterable[str], multiprocessors: int | None) -> Iterator[Point]:
    """Every point of a run on one device, family after family."""
    for op in ("copy", "read"):
        yield from (BandwidthPoint(op, size, 0.0) for size in grid.bandwidth_bytes)
    for dtype in dtypes:
        yield from _gemms(shapes, grid, dtype)
        if dtype == "fp8":
            continue  # no SDPA backend takes fp8
        for heads in shapes.heads:
            yield from _attention(heads, grid, dtype, multiprocessors)


def _gemms(shapes: Shapes, grid: Grid, dtype: str) -> Iterator[Point]:
    for n, k in shapes.matrices:
        yield from (GemmPoint(dtype, n, k, m, 0.0) for m in grid.gemm_rows)


def _attention(heads: Heads, grid: Grid, dtype: str, multiprocessors: int | None) -> Iterator[Point]:
    shape = (heads.query_heads, heads.kv_heads, heads.head_dim)
    decode = list(grid.decode)
    if grid.kink_tokens and multiprocessors:
        decode += [(batch, grid.kink_tokens) for batch in kink_batches(multiprocessors, heads.kv_heads)]
    for batch, tokens in decode:
        yield DecodePoint(dtype, *shape, batch, tokens, 0.0)
    for batch, seq, prior in grid.prefill:
        yield PrefillPoint(dtype, dtype, *shape, batch, seq, 0.0, prior)


def all_reduces(grid: Grid, ranks: int, backend: str) -> tuple[CollectivePoint, ...]:
    """All-reduce over the ranks, in the dtype that decode sends."""
    dtype = "float32" if backend == "gloo" else "bfloat16"
    return tuple(CollectivePoint("all_reduce", dtype, ranks, size, 0.0, backend) for size in grid.all_reduce_bytes)


def shapes_of(name: str, stack: Stack, tp: int) -> Shapes:
    """Each different head shape and weight matrix of a model on one of tp ranks.

    raises: InputError where tp does not divide the heads, or no layer has heads of one width
    """
    attention = [m for layer in stack.layers for m in layer.mixers if isinstance(m, Attention)]
    usable = dict.fromkeys(mixer for mixer in attention if mixer.key_dim == mixer.value_dim)
    if not usable:
        raise InputError(f"{name} has no attention with keys and values of one width; calibrate measures no other kind")
    for mixer in usable:
        if mixer.query_heads % tp or max(mixer.kv_heads, tp) % min(mixer.kv_heads, tp):
            raise InputError(
                f"--tp {tp}: does not divide {name}'s {mixer.query_heads} query and {mixer.kv_heads} key/value heads"
            )
    heads = [Heads(m.query_heads // tp, rank_kv_heads(m.kv_heads, tp), m.key_dim) for m in usable]
    matrices = [pair for mixer in usable for pair in _projections(mixer, tp)]
    mlps = dict.fromkeys(layer.ffn for layer in stack.layers if isinstance(layer.ffn, Mlp))
    matrices += [pair for mlp in mlps for pair in _feed_forward(mlp, tp)]
    left_out = tuple(f"{name}'s {kind}: calibrate measures none" for kind in _unmeasured(stack))
    return Shapes(tuple(dict.fromkeys(heads)), tuple(dict.fromkeys(matrices)), left_out)


def _unmeasured(stack: Stack) -> Iterator[str]:
    """Kinds of kernel of a model that have no points here."""
    if any(isinstance(layer.ffn, Moe) for layer in stack.layers):
        yield "experts, with their router and what every token passes beside them"
    mixers = dict.fromkeys(mixer for layer in stack.layers for mixer in layer.mixers)
    kinds = [type(mixer).__name__ for mixer in mixers if not isinstance(mixer, Attention)]
    yield from (f"layers with {MIXER_NAMES.get(kind, kind)}" for kind in dict.fromkeys(kinds))
    if any(isinstance(mixer, Attention) and mixer.key_dim != mixer.value_dim for mixer in mixers):
        yield "attention with keys and values of different widths"
    if stack.towers:
        yield "encoders"
    yield "output matrix over the vocabulary (lm_head), and its norms and activations"


def _projections(mixer: Attention, tp: int) -> Iterator[tuple[int, int]]:
    """Query, key and value as one matrix, and the output, as engines run them."""
    queries = mixer.query_heads // tp * mixer.key_dim
    yield queries + 2 * rank_kv_heads(mixer.kv_heads, tp) * mixer.key_dim, mixer.hidden
    yield mixer.hidden, queries


def _feed_forward(mlp: Mlp, tp: int) -> Iterator[tuple[int, int]]:
    """Gate and up as one matrix, and down."""
    width = mlp.intermediate // tp
    yield width * (2 if mlp.gated else 1), mlp.hidden
    yield mlp.hidden, width


def standard(*, cuda: bool) -> Shapes:
    """What is measured where no model is named."""
    return STANDARD if cuda else STANDARD_CPU


def grid_of(*, cuda: bool, quick: bool) -> Grid:
    """The sizes of a run."""
    if cuda:
        return CUDA_QUICK if quick else CUDA_FULL
    return CPU_QUICK if quick else CPU_FULL
