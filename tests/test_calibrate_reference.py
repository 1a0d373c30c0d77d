"""The float64 reference against loops over numbers, and the traps that it must catch."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from planner.calibrate import reference  # noqa: E402 - after the skip

LIMIT = reference.LIMITS["bfloat16"]


def random(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_hand(query: Any, key: Any, value: Any, position: int) -> list[float]:
    """One query of one head, in plain Python numbers."""
    scores = [
        sum(float(q) * float(k) for q, k in zip(query, row, strict=True)) / math.sqrt(len(query))
        for row in key[: position + 1]
    ]
    weights = [math.exp(score) for score in scores]
    return [
        sum(w * float(row[i]) for w, row in zip(weights, value, strict=False)) / sum(weights)
        for i in range(len(value[0]))
    ]


def test_queries_at_positions_3_and_4_see_4_and_5_keys() -> None:
    query, key, value = random(1, 1, 2, 8), random(1, 1, 5, 8, seed=1), random(1, 1, 5, 8, seed=2)
    out = reference.attention(torch, query, key, value, torch.tensor([3, 4]))
    for row, position in enumerate((3, 4)):
        assert out[0, 0, row].tolist() == pytest.approx(by_hand(query[0, 0, row], key[0, 0], value[0, 0], position))


def test_consecutive_query_heads_share_a_key_head() -> None:
    query, key, value = random(2, 6, 1, 4), random(2, 2, 7, 4, seed=1), random(2, 2, 7, 4, seed=2)
    out = reference.attention(torch, query, key, value, torch.tensor([6]))
    for request in range(2):
        for head in range(6):
            expected = by_hand(query[request, head, 0], key[request, head // 3], value[request, head // 3], 6)
            assert out[request, head, 0].tolist() == pytest.approx(expected)


def test_large_scores_do_not_overflow() -> None:
    query, key, value = (random(1, 1, 3, 4, seed=i) * 1e3 for i in range(3))
    assert torch.isfinite(reference.attention(torch, query, key, value, torch.arange(3))).all()


def test_a_matrix_product_is_in_float64() -> None:
    x, weight = random(3, 5).bfloat16(), random(5, 2).bfloat16()
    out = reference.product(x, weight)
    assert out.dtype is torch.float64
    assert out[2, 1].item() == pytest.approx(sum(float(x[2, i]) * float(weight[i, 1]) for i in range(5)), rel=1e-14)


def test_nothing_that_is_not_a_number_is_right() -> None:
    expected = torch.ones(2, 4, dtype=torch.float64)
    out = expected.clone()
    assert reference.is_right(reference.error(out, expected), 0.0)
    out[1, 2] = math.nan
    assert not reference.is_right(reference.error(out, expected), math.inf)
    out[1, 2] = math.inf
    assert not reference.is_right(reference.error(out, expected), 1e9)


def test_one_wrong_row_among_many_is_found() -> None:
    expected = random(1000, 64).double()
    out = expected.clone()
    out[-1] *= 1.05
    whole = ((out - expected).norm() / expected.norm()).item()
    assert whole < LIMIT, "a norm over everything would not see it"
    assert reference.error(out, expected) == pytest.approx(0.05)


def decode(seed: int, keys: int) -> tuple[Any, Any, Any]:
    query = random(1, 8, 1, 64, seed=seed)
    return query, random(1, 2, keys, 64, seed=seed + 1), random(1, 2, keys, 64, seed=seed + 2)


@pytest.mark.parametrize("seed", range(5))
def test_a_dropped_page_is_beyond_the_limit(seed: int) -> None:
    query, key, value = decode(seed, 8192)
    last = torch.tensor([8191])
    right = reference.attention(torch, query, key, value, last)
    short = reference.attention(torch, query, key[:, :, :-16], value[:, :, :-16], last - 16)
    assert reference.error(short.flatten(1), right.flatten(1)) > 2 * LIMIT


def test_the_limits_leave_room_for_rounding_and_none_for_mistakes() -> None:
    assert reference.LIMITS == {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2, "fp8": 4e-2}


def test_is_causal_is_aligned_to_the_upper_left() -> None:
    """Why decode passes is_causal=False and chunked prefill a lower-right bias: both mistakes are found as wrong."""
    attend = torch.nn.functional.scaled_dot_product_attention
    query, key, value = decode(0, 40)
    right = reference.attention(torch, query, key, value, torch.tensor([39]))
    assert reference.error(attend(query, key, value, enable_gqa=True).flatten(1), right.flatten(1)) < 1e-5
    first_key_only = attend(query, key, value, is_causal=True, enable_gqa=True)
    assert torch.allclose(first_key_only[0, 0, 0], value[0, 0, 0])
    assert reference.error(first_key_only.flatten(1), right.flatten(1)) > 1
