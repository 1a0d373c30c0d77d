"""How long a kernel takes: the forms that fits estimate and step times use. No scipy, numpy or torch.

Every kernel is first turned into work (bytes, FLOPs, steps of its longest chain, ...), then into seconds by one form.
Plain arithmetic throughout, so that the fit can pass arrays where others pass numbers.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from planner.calibrate.points import DTYPE_BYTES, DecodePoint, GemmPoint, MoePoint, Point, PrefillPoint
from planner.calibrate.routing import routed
from planner.calibration import CollectiveConstants, KernelConstants

ACTIVATION_BYTES = 2
"""Activations between kernels are in 16 bits."""
L2_SHARPNESS = 4
"""Power of the transition from L2 to device memory: least-recently-used caches lose almost all at once."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """A device's datasheet peaks, as far as one kernel needs them."""

    bytes_per_s: float
    """Memory bandwidth [B/s]."""
    flops_per_s: float
    """Dense peak of the arithmetic's dtype [FLOP/s]."""
    l2_bytes: float = 0.0
    """Last-level cache; 0 where its effect is not wanted: in a step, weights evict what a kernel would find [B]."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one kernel call does. Fields are numbers, or arrays of them for many calls at once."""

    bytes: Any
    """Read and written once [B]."""
    flops: Any
    """[FLOP]"""
    steps: Any = 0.0
    """Of the longest chain that one core walks alone [1]."""
    items: Any = 0.0
    """Units of scheduling [1]."""
    activation_bytes: Any = 0.0
    """Activations that unfused passes read or write [B]."""
    token_bytes: Any = 0.0
    """Hidden states of all tokens of the layer [B]."""


def kernel_seconds(work: Work, constants: KernelConstants, peaks: Peaks) -> Any:
    """Time of one kernel call.

        floor + c_i n_i + (a A + t T) / W + [ (x b / (eff_m W))^p + (f / (eff_c F))^p + (c_s n_s)^p ]^(1/p)

    work: b bytes [B], f FLOPs [FLOP], n_s steps and n_i items [1], A activations and T tokens [B]
    constants: floor [us], eff_m and eff_c [1], c_s and c_i [ns], a and t passes [1], p [1]
    peaks: W bandwidth [B/s], F dense peak [FLOP/s], x from l2_factor [1]
    returns: time [s]
    assumes: one GPU, nothing else on it
    source: a roofline (Williams et al. 2009, doi:10.1145/1498765.1498785) with launch floor, smooth corner and the
        chain of one thread block; fitted to NVIDIA aiconfigurator-core 0.12.0 kernel tables
    """
    start, moved, memory, compute, chain = kernel_parts(work, constants, peaks)
    p = constants.norm
    return start + moved + (memory**p + compute**p + chain**p) ** (1 / p)


def kernel_parts(work: Work, constants: KernelConstants, peaks: Peaks) -> tuple[Any, Any, Any, Any, Any]:
    """(start, extra passes, bytes, FLOPs, chain) of a kernel call, each in seconds; linear in the work but for L2."""
    reach = constants.l2_reach * peaks.l2_bytes
    memory = l2_factor(work.bytes, reach, constants.l2_speedup) * work.bytes
    passes = constants.activation_passes * work.activation_bytes + constants.token_passes * work.token_bytes
    return (
        constants.floor_us * 1e-6 + constants.item_ns * 1e-9 * work.items,
        passes / peaks.bytes_per_s,
        memory / (constants.memory_efficiency * peaks.bytes_per_s),
        work.flops / (constants.compute_efficiency * peaks.flops_per_s),
        work.steps * (constants.serial_ns_per_step * 1e-9),
    )


def l2_factor(bytes_read: Any, reach_bytes: float, speedup: float) -> Any:
    """How much of the device-memory time remains where a repeated call finds its bytes in L2.

        1 - (1 - 1/s) r^4 / (r^4 + b^4)

    bytes_read: b, what the call reads [B]
    reach_bytes: r, how much L2 holds of it; 0 for cold caches [B]
    speedup: s, L2 bandwidth over device-memory bandwidth [1]
    returns: factor on the time of the bytes, 1/s to 1 [1]
    assumes: the same call again and again; b times the factor still grows with b
    source: fitted form; the tables were collected without flushing L2
    """
    if not reach_bytes:
        return 1.0
    kept = reach_bytes**L2_SHARPNESS
    return 1 - (1 - 1 / speedup) * kept / (kept + bytes_read**L2_SHARPNESS)


def collective_seconds(message_bytes: Any, constants: CollectiveConstants) -> Any:
    """Time of one collective.

        (latency^p + (b / B)^p)^(1/p);  between measured sizes b_i, b_j: t_i + (t_j - t_i) (b - b_i) / (b_j - b_i)

    message_bytes: b, one rank's buffer; one number, where sizes were measured [B]
    constants: latency [us], B [GB/s], p [1], and what was measured, b_i and t_i [B, us]
    returns: time [s]
    assumes: one host; topology decides, so constants hold for the host they were measured on. Engines switch between
        algorithms (each rank reads all, or reduces a share) by size, which no one form follows
    source: Hockney 1994, doi:10.1016/S0167-8191(06)80021-9 (p = 1); p fitted
    """
    if constants.measured_bytes:
        return _interpolated(float(message_bytes), constants)
    p = constants.norm
    transfer = message_bytes / (constants.gb_per_s * 1e9)
    return ((constants.latency_us * 1e-6) ** p + transfer**p) ** (1 / p)


def _interpolated(message_bytes: float, constants: CollectiveConstants) -> float:
    """Seconds between measured sizes; below them the first one's, above them more at the asymptotic bandwidth."""
    sizes, times = constants.measured_bytes, constants.measured_us
    above = bisect_left(sizes, message_bytes)
    if above == 0:
        return times[0] * 1e-6
    rest = message_bytes - sizes[above - 1]
    if above == len(sizes):
        return times[-1] * 1e-6 + rest / (constants.gb_per_s * 1e9)
    slope = (times[above] - times[above - 1]) / (sizes[above] - sizes[above - 1])
    return (times[above - 1] + slope * rest) * 1e-6


def decode_work(
    query_heads: int,
    kv_heads: int,
    head_dim: float,
    batch: int,
    kv_tokens: float,
    element_bytes: float,
    *,
    vector_bytes: float = ACTIVATION_BYTES,
) -> Work:
    """Attention of one new token per request.

        b = 2 B L h_kv d e + 2 B h d a;  f = 4 B L h d;  n_s = L;  n_i = B h_kv

    query_heads, kv_heads: h and h_kv, of one GPU [1]
    head_dim: d, the mean of key's and value's where they differ [1]
    batch: B, requests [1]
    kv_tokens: L, cached tokens of each [tokens]
    element_bytes: e, of one cached number [B]
    vector_bytes: a, of one number of queries and output [B]
    returns: work of one layer [B, FLOP, 1]
    assumes: query heads of a group share one read of keys and values
    source: Dao et al. 2023, Flash-Decoding; Ainslie et al. 2023, arXiv:2305.13245
    """
    cached = 2 * batch * kv_tokens * kv_heads * head_dim * element_bytes
    vectors = 2 * batch * query_heads * head_dim * vector_bytes
    flops = 4.0 * batch * kv_tokens * query_heads * head_dim
    return Work(cached + vectors, flops, steps=float(kv_tokens), items=float(batch * kv_heads))


def prefill_work(
    query_heads: int,
    kv_heads: int,
    head_dim: float,
    batch: int,
    seq: float,
    element_bytes: float,
    prior_tokens: float,
    *,
    vector_bytes: float = ACTIVATION_BYTES,
) -> Work:
    """Causal attention of new tokens.

        b = B d (2 h_kv e (S + P) + 2 h a S);  f = 4 B h d (S P + S (S + 1) / 2);  n_s = S + P

    query_heads, kv_heads: h and h_kv, of one GPU [1]
    head_dim: d, the mean of key's and value's where they differ [1]
    batch: B, requests [1]
    seq: S, new tokens of each [tokens]
    element_bytes: e, of one cached number [B]
    prior_tokens: P, cached tokens before them [tokens]
    vector_bytes: a, of one number of queries and output [B]
    returns: work of one layer [B, FLOP, 1]
    assumes: no score matrix in memory; masked blocks are skipped
    source: Dao 2023, arXiv:2307.08691
    """
    keys = 2 * kv_heads * element_bytes * (seq + prior_tokens)
    moved = batch * head_dim * (keys + 2 * vector_bytes * query_heads * seq)
    flops = 4.0 * batch * query_heads * head_dim * (seq * prior_tokens + seq * (seq + 1) / 2)
    return Work(moved, flops, steps=float(seq + prior_tokens))


def gemm_work(
    n: int, k: int, m: float, weight_bytes: float, input_bytes: float, *, vector_bytes: float = ACTIVATION_BYTES
) -> Work:
    """m tokens through a k x n matrix.

        b = n k e_w + m k e_x + m n a;  f = 2 m n k;  n_s = k;  A = m k a

    n, k: output and input width [1]
    m: tokens [tokens]
    weight_bytes: e_w, of one stored weight [B]
    input_bytes: e_x, of one input number [B]
    vector_bytes: a, of one output number, and of one input number before it is quantised [B]
    returns: work of one matrix [B, FLOP, 1]
    assumes: each operand moves once
    source: Williams et al. 2009, doi:10.1145/1498765.1498785
    """
    moved = n * k * weight_bytes + m * k * input_bytes + m * n * vector_bytes
    return Work(moved, 2.0 * m * n * k, steps=float(k), activation_bytes=vector_bytes * m * k)


def moe_work(
    hidden_size: int,
    inter_size: int,
    topk: int,
    experts: int,
    tp: int,
    ep: int,
    tokens: int,
    weight_bytes: float,
    distribution: str,
) -> Work:
    """The routed experts of one layer on the fullest rank, two projections up and one down.

        i = I / tp;  b = 3 E H i e;  f = 6 N H i;  n_s = H;  n_i = E;  A = N (4 H + 6 i);  T = 2 M H

    hidden_size, inter_size: H and I [1]
    topk: experts of one token [1]
    experts: of the layer, all ranks together [1]
    tp, ep: tensor and expert parallel ranks [1]
    tokens: M, of all ranks together [tokens]
    weight_bytes: e, of one stored weight [B]
    distribution: how tokens choose experts, for E and N: experts touched and (token, expert) pairs here [1]
    returns: work of one layer on one rank [B, FLOP, 1]
    assumes: each touched expert's weights move once
    source: grouped GEMM; form fitted to NVIDIA aiconfigurator-core 0.12.0 kernel tables
    """
    width = inter_size / tp
    touched, pairs = routed(tokens, topk, experts, ep, distribution)
    return Work(
        bytes=3 * touched * hidden_size * width * weight_bytes,
        flops=6.0 * pairs * hidden_size * width,
        steps=float(hidden_size),
        items=touched,
        activation_bytes=ACTIVATION_BYTES * pairs * (2 * hidden_size + 3 * width),
        token_bytes=ACTIVATION_BYTES * tokens * hidden_size,
    )


def mla_constants(decode: KernelConstants, prefill: KernelConstants) -> KernelConstants:
    """Constants that stand in for MLA decode, which no table holds: decode's own, at prefill's compute efficiency.

    Decode attention shares each read among a few query heads and leaves most of a tile empty; MLA shares it among all
    heads, and its products are as dense as prefill's.
    """
    return decode.model_copy(update={"compute_efficiency": prefill.compute_efficiency})


def work_of(point: Point) -> Work:
    """The work that a measured point did."""
    match point:
        case DecodePoint():
            shape = (point.query_heads, point.kv_heads, point.head_dim, point.batch, point.kv_tokens)
            return decode_work(*shape, DTYPE_BYTES[point.dtype], vector_bytes=activation_bytes(point.dtype))
        case PrefillPoint():
            heads = (point.query_heads, point.kv_heads, point.head_dim)
            cached = (DTYPE_BYTES[point.kv_dtype], point.prior_tokens)
            vector = activation_bytes(point.dtype)
            return prefill_work(*heads, point.batch, point.seq, *cached, vector_bytes=vector)
        case GemmPoint():
            weight = DTYPE_BYTES[point.dtype]
            vector = activation_bytes(point.dtype)
            inputs = weight if point.dtype in QUANTISED_INPUTS else vector
            return gemm_work(point.n, point.k, point.m, weight, inputs, vector_bytes=vector)
        case MoePoint():
            layer = (point.hidden_size, point.inter_size, point.topk, point.experts, point.tp, point.ep, point.tokens)
            return moe_work(*layer, DTYPE_BYTES[point.dtype], point.distribution)
        case _:
            return Work(point.bytes, 0.0)


QUANTISED_INPUTS = ("fp8", "fp8_block", "sq", "nvfp4")
"""GEMM dtypes whose inputs are stored like the weights."""


def activation_bytes(dtype: str) -> float:
    """Bytes of one number between kernels of a dtype [B]; only float32 is wider than 16 bits."""
    return 4.0 if dtype == "float32" else ACTIVATION_BYTES
