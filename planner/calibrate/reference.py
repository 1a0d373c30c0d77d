"""What a kernel should have given: attention and matrix products in float64, written out, and how far off is wrong.

Nothing here calls a fused kernel: the reference must not share a bug with what it judges.
"""

import math
from types import ModuleType
from typing import Any

Tensor = Any

LIMITS = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2, "fp8": 4e-2}
"""Largest ||out - ref|| / ||ref|| that is right, by dtype.

Flash kernels reach 2.4e-6, 3e-4 and 2.3e-3 in the first three; a dropped page of 16 of 8,192 tokens gives 4e-2 and a
wrong causal alignment 6, so the limits lie between. fp8 is judged against the product of the very fp8 numbers: what is
left is the bfloat16 output's rounding, and on Hopper fast accumulation, which keeps 14 bits and is off by up to 2e-2
(DeepSeek-V3, arXiv:2412.19437, 3.3.2)."""


def attention(torch: ModuleType, query: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> Tensor:
    """Softmax attention in float64, one key/value head after the other.

        softmax(q k^T / sqrt(d)) v, over the keys at positions not after the query's

    query: [batch, query heads, queries, d]; consecutive query heads share a key/value head
    key, value: [batch, kv heads, keys, d]; key j is at position j
    positions: the position of each query, [queries]
    """
    batch, kv_heads = key.shape[:2]
    group = query.shape[1] // kv_heads
    seen = torch.arange(key.shape[2], device=key.device)[None, :] <= positions[:, None]
    out = torch.empty(query.shape, dtype=torch.float64, device=query.device)
    for request in range(batch):
        for head in range(kv_heads):
            heads = slice(head * group, (head + 1) * group)
            keys, values = key[request, head].double(), value[request, head].double()
            scores = query[request, heads].double() @ keys.T / math.sqrt(query.shape[-1])
            scores = scores.masked_fill(~seen, -math.inf)
            weights = torch.exp(scores - scores.amax(-1, keepdim=True))
            out[request, heads] = weights @ values / weights.sum(-1, keepdim=True)
    return out


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight in float64, whatever the dtype of either."""
    return x.double() @ weight.double()


def error(out: Tensor, expected: Tensor) -> float:
    """The worst row's ||out - ref|| / ||ref||; rows are all but the last dimension's first.

    Row by row, since one wrong row among many right ones drowns in a norm over all.
    out, expected: [rows, numbers]
    """
    difference = (out.double() - expected).norm(dim=-1)
    worst = (difference / expected.norm(dim=-1)).max()  # max of a NaN is NaN
    return float(worst)


def is_right(found: float, limit: float) -> bool:
    """True if the error is within its limit; NaN is not."""
    return found <= limit
