"""Che's approximation: cases solved by hand, laws, and a cache that is simulated."""

from collections import OrderedDict
from math import inf, log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.prefix_cache import Alike, characteristic_s, free_tokens, hit_rate


def test_two_prefixes_by_hand() -> None:
    """Asked for twice and once a second, 1,000 tokens each, 1,250 free: (1 - x^2) + (1 - x) = 1.25, x = e^-t = 1/2.

    The first is found in 1 - 1/4 of its requests, the second in 1/2: (2 x 3/4 + 1 x 1/2) / 3 = 2/3.
    """
    prefixes = (Alike(1, 2.0), Alike(1, 1.0))
    stays = characteristic_s(prefixes, 1000, 1250, 0, 0)
    assert stays == pytest.approx(log(2))
    assert hit_rate(prefixes, stays) == pytest.approx(2 / 3)


def test_equal_prefixes_are_found_as_often_as_they_fit() -> None:
    """The worked example's cache of 24 GiB at 128 KiB a token, 196,608 tokens, and its prefix of 8,000.

    One prefix stays for good: 800 of 1,000 requests save 6,400,000 positions. Of 40 tenants each with its own, 320,000
    tokens, 196,608 / 320,000 = 61.44 % are found: 491.52 of 800, or 3,932,160 positions.
    """
    pool = 24 * 2**30 // 2**17
    assert pool == 196_608
    assert characteristic_s((Alike(1, 4.0),), 8000, pool, 0, 0) == inf
    assert hit_rate((Alike(1, 4.0),), inf) == 1
    apart = (Alike(40, 0.1),)
    found = hit_rate(apart, characteristic_s(apart, 8000, pool, 0, 0))
    assert found == pytest.approx(0.6144)
    assert 800 * found * 8000 == pytest.approx(3_932_160)


def test_what_requests_leave_behind_pushes_prefixes_out() -> None:
    """One prefix of 1,000 tokens, once a second; 500 tokens a second of others' own; 750 free: 1 - e^-t + t / 2 = 0.75.

    By Newton's method from t = 0.5: 1 - 0.60653 + 0.25 = 0.64347 is short by 0.10653 at a slope of 1.10653, so 0.59627;
    short by 0.00272 at 1.05086, so 0.59886; short by 0.00001.
    """
    stays = characteristic_s((Alike(1, 1.0),), 1000, 750, 500, 0)
    assert stays == pytest.approx(0.59887, abs=2e-5)


def test_a_prefix_in_use_is_found_whatever_is_free() -> None:
    """Requests of 3 s, one a second: e^-3 of them begin when no other runs."""
    prefixes = (Alike(1, 1.0),)
    assert characteristic_s(prefixes, 1000, 0, 500, 3.0) == 0
    assert hit_rate(prefixes, 3.0) == pytest.approx(1 - 0.049787, abs=1e-6)


def test_next_to_nothing_free_ends_too() -> None:
    assert characteristic_s((Alike(3, 2.0),), 1000, 5e-324, 0, 0) < 1e-12


def test_what_running_requests_hold_is_not_free() -> None:
    """Little: two a second of 5 s are 10 at once, of 2,000 tokens each."""
    assert free_tokens(50_000, 2.0, 5.0, 2000) == 30_000
    assert free_tokens(10_000, 2.0, 5.0, 2000) == 0


@given(
    st.integers(1, 200),
    st.integers(1, 50),
    st.floats(0.001, 100),
    st.integers(1, 10_000),
    st.floats(0, 1e6),
    st.floats(0, 1e4),
    st.floats(0, 100),
)
def test_a_scope_per_tenant_never_finds_more(
    tenants: int, prefixes: int, per_s: float, tokens: int, free: float, own: float, held: float
) -> None:
    shared = (Alike(prefixes, per_s / prefixes),)
    apart = (Alike(prefixes * tenants, per_s / prefixes / tenants),)
    together, alone = (hit_rate(of, held + characteristic_s(of, tokens, free, own, held)) for of in (shared, apart))
    assert 0 <= alone <= together * (1 + 1e-6) + 1e-9
    assert together <= 1


@given(st.floats(0, 1e6), st.floats(0, 1e5), st.floats(0, 1e3))
def test_more_memory_never_finds_less(free: float, more: float, own: float) -> None:
    prefixes = (Alike(3, 2.0), Alike(40, 0.1))
    less, most = (characteristic_s(prefixes, 700, each, own, 1.0) for each in (free, free + more))
    assert less <= most * (1 + 1e-6)


def simulated(rates: list[float], tokens: int, pool: int, own: int, requests: int) -> float:
    """Hit rate of an LRU cache of blocks of one token count: prefixes whole, and what each request leaves."""
    random, cache, used, hits = Random(7), OrderedDict[object, int](), 0, 0  # noqa: S311
    for number, prefix in enumerate(random.choices(range(len(rates)), rates, k=requests)):
        hits += prefix in cache
        for key, size in ((prefix, tokens), (f"own {number}", own)):
            used -= cache.pop(key, 0)
            while used + size > pool:
                used -= cache.popitem(last=False)[1]
            cache[key] = size
            used += size
    return hits / requests


@pytest.mark.parametrize("own", [0, 200, 1500])
@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_a_simulated_cache_agrees(own: int, skew: float) -> None:
    """60 prefixes of 1,000 tokens in 30,000: within two hundredths of what 200,000 requests find."""
    rates = [1 / (i + 1) ** skew for i in range(60)]
    prefixes = tuple(Alike(1, rate) for rate in rates)
    found = hit_rate(prefixes, characteristic_s(prefixes, 1000, 30_000, own * sum(rates), 0))
    assert found == pytest.approx(simulated(rates, 1000, 30_000, own, 200_000), abs=0.02)
