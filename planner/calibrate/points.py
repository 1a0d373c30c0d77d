"""Measured points, family by family: what was run, and how long it took. Shared by tables and runs.

Shapes are of one GPU. A point knows its key: the dtype (and backend) whose constants it feeds.
"""

from dataclasses import dataclass

DTYPE_BYTES = {
    "float64": 8.0,
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "half": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "int8": 1.0,
    "int8_wo": 1.0,
    "sq": 1.0,
    "int4_wo": 0.5,
    "nvfp4": 0.5625,
    "w4afp8": 0.5,
    "w4a16_mxfp4": 0.53125,
    "w4a8_mxfp4_mxfp8": 0.53125,
}
"""Bytes of one stored element, scales of 4-bit blocks included (16 elements of nvfp4, 32 of mxfp4 share a byte)."""


@dataclass(frozen=True, slots=True)
class BandwidthPoint:
    """Device memory copied or read."""

    op: str
    """"copy" (bytes are read plus written) or "read"."""
    bytes: int
    """Bytes moved [B]."""
    seconds: float
    kernel: str = ""

    @property
    def key(self) -> str:
        """What its constants are kept under."""
        return self.op


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """Attention of one new token per request over its cached keys and values."""

    dtype: str
    """Of the KV cache."""
    query_heads: int
    kv_heads: int
    head_dim: int
    batch: int
    kv_tokens: int
    """Cached tokens of each request."""
    seconds: float
    kernel: str = ""
    """What ran, as dispatched or as the table names it."""

    @property
    def key(self) -> str:
        """What its constants are kept under."""
        return self.dtype


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """Causal attention of `seq` new tokens per request, after `prior_tokens` cached ones."""

    dtype: str
    """Of the arithmetic."""
    kv_dtype: str
    """Of the KV cache."""
    query_heads: int
    kv_heads: int
    head_dim: int
    batch: int
    seq: int
    seconds: float
    prior_tokens: int = 0
    kernel: str = ""

    @property
    def key(self) -> str:
        """What its constants are kept under."""
        return self.dtype if self.dtype == self.kv_dtype else f"{self.dtype}+{self.kv_dtype}_kv"


@dataclass(frozen=True, slots=True)
class GemmPoint:
    """y[m, n] = x[m, k] w[k, n]: m tokens through one matrix."""

    dtype: str
    n: int
    k: int
    m: int
    seconds: float
    kernel: str = ""

    @property
    def key(self) -> str:
        """What its constants are kept under."""
        return self.dtype


@dataclass(frozen=True, slots=True)
class MoePoint:
    """The routed experts of one layer on one rank: both projections of a gated MLP."""

    dtype: str
    distribution: str
    """"balanced", or "power_law_A": how tokens choose experts."""
    hidden_size: int
    inter_size: int
    """Of one expert before the tensor-parallel split."""
    topk: int
    experts: int
    """Of the layer, all ranks together."""
    tp: int
    ep: int
    tokens: int
    seconds: float
    kernel: str = ""

    @property
    def key(self) -> str:
        """What its constants are kept under."""
        return self.dtype


@dataclass(frozen=True, slots=True)
class CollectivePoint:
    """One collective over `ranks` GPUs of one host."""

    op: str
    dtype: str
    ranks: int
    bytes: int
    """Of one rank's buffer [B]."""
    seconds: float
    kernel: str = "nccl"
    """"nccl", "gloo", or an engine's own all-reduce."""

    @property
    def key(self) -> str:
        """What its constants are kept under."""
        return f"{self.op}/{self.ranks}"


Point = BandwidthPoint | DecodePoint | PrefillPoint | GemmPoint | MoePoint | CollectivePoint
FAMILIES: dict[str, type[Point]] = {
    "bandwidth": BandwidthPoint,
    "decode_attention": DecodePoint,
    "prefill_attention": PrefillPoint,
    "gemm": GemmPoint,
    "moe": MoePoint,
    "collective": CollectivePoint,
}
FAMILY_OF = {cls: name for name, cls in FAMILIES.items()}


def shape_of(point: Point) -> str:
    """What was run, without the dtype, the kernel and the time: equal for the same work on any GPU."""
    left_out = ("seconds", "kernel", "dtype", "kv_dtype")
    fields = (f"{name}={getattr(point, name)}" for name in point.__slots__ if name not in left_out)
    return f"{FAMILY_OF[type(point)]} {' '.join(fields)}"
