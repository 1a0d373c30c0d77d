"""What is timed: copies, matrix products and attention, each with its backend pinned, its inputs and its reference.

A point with seconds of 0 says what to run. Backends are never left to the default: it differs by version and device,
and some are wrong (cuDNN decode with fewer than 8 key/value heads on B200, github.com/pytorch/pytorch/issues/193893).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from planner.calibrate import reference
from planner.calibrate.points import BandwidthPoint, DecodePoint, GemmPoint, Point, PrefillPoint

Tensor = Any
Inputs = tuple[Tensor, ...]
Judged = tuple[Tensor, Tensor]
"""(what came out, what should have), a row per line."""

TORCH_DTYPES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "fp8": "float8_e4m3fn",
}
"""planner's dtype -> torch's; fp8 is E4M3."""
SDPA_DTYPES = ("float32", "float16", "bfloat16")
LAST_ROWS, FIRST_ROWS = 16, 4
"""Queries whose output is judged: an error of alignment or of a dropped tail shows in the last ones."""
CHUNK = 2**24
"""Numbers that are widened to float64 at once."""
CPU_BACKENDS = ("FLASH_ATTENTION",)
CUDA_BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION")
"""MATH and EFFICIENT_ATTENTION are left out: they store the score matrix, or do not fold query heads."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One backend's way to do the work of a point."""

    point: Point
    backend: str
    limit: float
    """Largest error that is right."""
    inputs: Callable[[], Inputs]
    """Fresh random inputs, never zeros: a GPU draws less power on those, and clocks higher."""
    call: Callable[..., Tensor]
    judge: Callable[[Inputs, Tensor], Judged]
    """A part of the output, and of the float64 reference."""


@dataclass(frozen=True, slots=True)
class Lab:
    """Where kernels run."""

    torch: ModuleType
    device: str
    generator: Any

    def random(self, *shape: int, dtype: str) -> Tensor:
        """Random normal numbers in a dtype."""
        made = self.torch.randn(*shape, generator=self.generator, device=self.device)
        return made.to(getattr(self.torch, TORCH_DTYPES[dtype]))


def open_lab(torch: ModuleType, device: str, seed: int = 0) -> Lab:
    """A lab with full-precision float32 products, as the reference limits expect."""
    torch.backends.cuda.matmul.allow_tf32 = False
    return Lab(torch, device, torch.Generator(device).manual_seed(seed))


def kernels_of(lab: Lab, point: Point, *, cuda: bool) -> tuple[Kernel, ...]:
    """Every backend for a point's work on this device; attention beyond SDPA is in paged.py."""
    match point:
        case BandwidthPoint():
            return (_bandwidth(lab, point),)
        case GemmPoint():
            return (_gemm(lab, point),)
        case DecodePoint():
            backends = CUDA_BACKENDS if cuda else CPU_BACKENDS
            return (*(_decode(lab, point, name) for name in backends), *(() if cuda else (_grouped(lab, point),)))
        case PrefillPoint():
            # a causal bias over earlier tokens reaches the flash kernel only; for others it becomes a stored mask
            backends = CUDA_BACKENDS if cuda and not point.prior_tokens else CPU_BACKENDS
            return tuple(_prefill(lab, point, name) for name in backends)
    raise TypeError(f"{type(point).__name__} is not run by kernels.py")


def _bandwidth(lab: Lab, point: BandwidthPoint) -> Kernel:
    """Copy: half the bytes are read and half written. Read: a sum over all."""
    copies = point.op == "copy"
    numbers = point.bytes // (8 if copies else 4)

    def inputs() -> Inputs:
        source = lab.random(numbers, dtype="float32")
        return (lab.torch.empty_like(source), source) if copies else (source,)

    def judge(given: Inputs, out: Tensor) -> Judged:
        if copies:
            return out[-numbers // 16 :].view(1, -1), given[1][-numbers // 16 :].double().view(1, -1)
        parts = given[0].split(CHUNK)
        size = sum(part.double().abs().sum() for part in parts)  # normal numbers cancel: judged by their magnitudes
        return (out.double() + size).view(1, 1), (sum(part.double().sum() for part in parts) + size).view(1, 1)

    call = (lambda target, source: target.copy_(source)) if copies else (lambda source: source.sum())
    return Kernel(point, point.op, reference.LIMITS["float32"], inputs, call, judge)


def _gemm(lab: Lab, point: GemmPoint) -> Kernel:
    """y = x w with w stored as the checkpoint stores it, n rows of k."""
    torch = lab.torch

    def inputs() -> Inputs:
        weight = lab.random(point.n, point.k, dtype=point.dtype).t()
        x = lab.random(point.m, point.k, dtype=point.dtype)
        return (x, weight, torch.ones((), device=lab.device)) if point.dtype == "fp8" else (x, weight)

    def scaled(x: Tensor, weight: Tensor, one: Tensor) -> Tensor:
        # fast accumulation, as engines run it: on Hopper it takes half the time
        options = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": True}
        return torch._scaled_mm(x, weight, **options)

    def judge(given: Inputs, out: Tensor) -> Judged:
        rows = slice(-LAST_ROWS, None)
        return out[rows], reference.product(given[0][rows], given[1])

    call, name = (scaled, "scaled_mm") if point.dtype == "fp8" else (torch.mm, "mm")
    return Kernel(point, name, reference.LIMITS[point.dtype], inputs, call, judge)


def _decode(lab: Lab, point: DecodePoint, backend: str) -> Kernel:
    """One query per request; enable_gqa folds the query heads, so that keys and values are read once."""
    torch = lab.torch
    # is_causal aligns to the upper left: with one query it would attend to the first key alone
    call = partial(_sdpa(torch, backend), is_causal=False)
    return Kernel(
        point,
        backend.lower(),
        reference.LIMITS[point.dtype],
        partial(decode_inputs, lab, point),
        call,
        partial(judge_attention, torch, point.kv_tokens - 1),
    )


def _grouped(lab: Lab, point: DecodePoint) -> Kernel:
    """Two batched products per key/value head with its query heads as rows: on a CPU the flash kernel does not fold."""
    torch = lab.torch
    scale = point.head_dim**-0.5

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows = query.view(point.batch, point.kv_heads, -1, point.head_dim)
        out = torch.empty_like(rows)
        for request in range(point.batch):  # all at once would first copy every key into one block
            weights = torch.softmax(torch.bmm(rows[request] * scale, key[request].transpose(1, 2)), dim=-1)
            torch.bmm(weights, value[request], out=out[request])
        return out.view(query.shape)

    return Kernel(
        point,
        "grouped_matmul",
        reference.LIMITS[point.dtype],
        partial(decode_inputs, lab, point),
        call,
        partial(judge_attention, torch, point.kv_tokens - 1),
    )


def _prefill(lab: Lab, point: PrefillPoint, backend: str) -> Kernel:
    torch, keys = lab.torch, point.prior_tokens + point.seq
    sdpa = _sdpa(torch, backend)
    if point.prior_tokens:
        from torch.nn.attention.bias import causal_lower_right

        # is_causal would let the last query see only the first `seq` keys
        call = partial(sdpa, attn_mask=causal_lower_right(point.seq, keys))
    else:
        call = partial(sdpa, is_causal=True)

    def inputs() -> Inputs:
        query = _heads(lab, point.batch, point.seq, point.query_heads, point.head_dim, point.dtype)
        key, value = (_heads(lab, point.batch, keys, point.kv_heads, point.head_dim, point.dtype) for _ in range(2))
        return query, key, value

    judge = partial(judge_attention, torch, point.prior_tokens)
    return Kernel(point, backend.lower(), reference.LIMITS[point.dtype], inputs, call, judge)


def decode_inputs(lab: Lab, point: DecodePoint) -> Inputs:
    """A query, keys and values of each request."""
    query = _heads(lab, point.batch, 1, point.query_heads, point.head_dim, point.dtype)
    shape = (point.batch, point.kv_tokens, point.kv_heads, point.head_dim)
    return (query, *(_heads(lab, *shape, point.dtype) for _ in range(2)))


def judge_attention(torch: ModuleType, first_position: int, given: Inputs, out: Tensor) -> Judged:
    """The first and the last request's first and last queries.

    first_position: of the first query, among the keys
    """
    query, key, value = given[:3]
    count, last = query.shape[2], query.shape[0] - 1
    rows = sorted({*range(min(FIRST_ROWS, count)), *range(max(0, count - LAST_ROWS), count)})
    requests = sorted({0, last})
    chosen = torch.tensor(rows, device=query.device)
    asked, got = query[requests][:, :, rows], out[requests][:, :, rows]
    expected = reference.attention(torch, asked, key[requests], value[requests], chosen + first_position)
    return _rows(got), _rows(expected)


def _rows(heads: Tensor) -> Tensor:
    """[batch, heads, queries, d] -> a row per query, all of its heads together."""
    return heads.transpose(1, 2).flatten(2).flatten(0, 1)


def _heads(lab: Lab, batch: int, tokens: int, heads: int, head_dim: int, dtype: str) -> Tensor:
    """[batch, heads, tokens, d], stored token after token, as a projection gives it and a cache keeps it."""
    return lab.random(batch, tokens, heads, head_dim, dtype=dtype).transpose(1, 2)


def _sdpa(torch: ModuleType, backend: str) -> Callable[..., Tensor]:
    """scaled_dot_product_attention with one backend allowed: it raises where that one cannot do it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    allowed = [getattr(SDPBackend, backend)]
    attend = torch.nn.functional.scaled_dot_product_attention

    def call(query: Tensor, key: Tensor, value: Tensor, **options: object) -> Tensor:
        with sdpa_kernel(allowed):
            return attend(query, key, value, enable_gqa=True, **options)

    return call
