"""Decode over a paged cache, where the installed packages have such a kernel: torch's varlen_attn, and FlashInfer.

Both are found by asking, never by version: varlen_attn takes a block table from torch 2.12, FlashInfer may be absent.
"""

import importlib.util
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from planner.calibrate import reference
from planner.calibrate.kernels import Inputs, Judged, Kernel, Lab, judge_attention
from planner.calibrate.points import DecodePoint
from planner.units import ceil_div

VARLEN_PAGE = 256
"""FlashAttention-2, which torch bundles, takes multiples of this only; FlashAttention-3 any."""
FLASHINFER_PAGE = 16
TENSOR_CORE_GROUP = 4
FLASHINFER_WORKSPACE_BYTES = 128 * 2**20

Tensor = Any


def varlen_takes_pages() -> bool:
    """True if the installed torch's varlen_attn has the arguments for a paged cache."""
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return False
    varlen = importlib.import_module("torch.nn.attention.varlen")
    return {"block_table", "seqused_k", "enable_gqa"} <= set(inspect.signature(varlen.varlen_attn).parameters)


def has_flashinfer() -> bool:
    """True if FlashInfer is installed."""
    return importlib.util.find_spec("flashinfer") is not None


def paged_kernels(lab: Lab, point: DecodePoint) -> tuple[Kernel, ...]:
    """The paged kernels that can do a point on a GPU here."""
    if point.dtype not in ("bfloat16", "float16"):
        return ()
    found = list[Kernel]()
    if varlen_takes_pages():
        found.append(_kernel(lab, point, VARLEN_PAGE, "varlen_paged", varlen_call(lab, point)))
    if has_flashinfer():
        found.append(_kernel(lab, point, FLASHINFER_PAGE, "flashinfer_paged", flashinfer_call(lab, point)))
    return tuple(found)


def pages_per_request(point: DecodePoint, page: int) -> int:
    """Pages that hold a request's cached tokens."""
    return ceil_div(point.kv_tokens, page)


def paged_inputs(lab: Lab, point: DecodePoint, page: int) -> Inputs:
    """(query, key pages, value pages, block table): a request's pages lie anywhere in the pool, as in a server."""
    torch, each = lab.torch, pages_per_request(point, page)
    count = point.batch * each
    query = lab.random(point.batch, point.query_heads, point.head_dim, dtype=point.dtype)
    shape = (count, page, point.kv_heads, point.head_dim)
    key, value = (lab.random(*shape, dtype=point.dtype) for _ in range(2))
    order = torch.randperm(count, generator=lab.generator, device=lab.device).to(torch.int32)
    return query, key, value, order.view(point.batch, each)


def gathered(point: DecodePoint, pages: Tensor, table: Tensor) -> Tensor:
    """The cached tokens of each request in order, [batch, kv heads, tokens, d]."""
    tokens = pages[table.long()].flatten(1, 2)
    return tokens[:, : point.kv_tokens].transpose(1, 2)


def judge_paged(lab: Lab, point: DecodePoint, given: Inputs, out: Tensor) -> Judged:
    """As dense attention over the gathered pages, for the first and the last request."""
    query, key, value, table = given[:4]
    ends = sorted({0, point.batch - 1})
    dense = tuple(gathered(point, pages, table[ends]) for pages in (key, value))
    return judge_attention(lab.torch, point.kv_tokens - 1, (query[ends].unsqueeze(2), *dense), out[ends].unsqueeze(2))


def varlen_call(lab: Lab, point: DecodePoint) -> Callable[..., Tensor]:
    """varlen_attn over pages; the lengths are made once, outside the timed call."""
    torch = lab.torch
    attend = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    starts = torch.arange(point.batch + 1, dtype=torch.int32, device=lab.device)
    used = torch.full((point.batch,), point.kv_tokens, dtype=torch.int32, device=lab.device)

    def call(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
        options = {"enable_gqa": True, "seqused_k": used, "block_table": table}
        return attend(query, key, value, starts, None, 1, point.kv_tokens, **options)

    return call


def tensor_cores(point: DecodePoint) -> bool:
    """Whether engines ask FlashInfer for its tensor-core decode: where enough query heads share a read."""
    return point.query_heads // point.kv_heads >= TENSOR_CORE_GROUP


def flashinfer_call(lab: Lab, point: DecodePoint) -> Callable[..., Tensor]:
    """FlashInfer's decode: plan() costs host time, so the first call does it, before any timing.

    Rotated input sets are copies of the first one, so its block table is theirs too.
    """
    flashinfer, torch = importlib.import_module("flashinfer"), lab.torch
    workspace = torch.empty(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=lab.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=tensor_cores(point))
    planned = list[Tensor]()

    def call(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
        if not planned:
            _plan(lab, point, wrapper, table)
            planned.append(table)
        return wrapper.run(query, (key, value))

    return call


def _plan(lab: Lab, point: DecodePoint, wrapper: Any, table: Tensor) -> None:
    torch, each = lab.torch, pages_per_request(point, FLASHINFER_PAGE)
    starts = torch.arange(0, (point.batch + 1) * each, each, dtype=torch.int32, device=lab.device)
    filled = point.kv_tokens - (each - 1) * FLASHINFER_PAGE
    last = torch.full((point.batch,), filled, dtype=torch.int32, device=lab.device)
    dtype = getattr(torch, point.dtype)
    heads = (point.query_heads, point.kv_heads, point.head_dim, FLASHINFER_PAGE)
    wrapper.plan(starts, table.flatten(), last, *heads, q_data_type=dtype, kv_data_type=dtype)


def _kernel(lab: Lab, point: DecodePoint, page: int, backend: str, call: Callable[..., Tensor]) -> Kernel:
    limit = reference.LIMITS[point.dtype]
    inputs = partial(paged_inputs, lab, point, page)
    return Kernel(point, backend, limit, inputs, call, partial(judge_paged, lab, point))
