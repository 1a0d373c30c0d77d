"""Waiting and concurrency: published tables, exact sums, and limits that every queue has."""

from math import exp, factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.queueing import (
    EXACT_SERVERS,
    NO_WAIT,
    Wait,
    both_within,
    burstiness_of_part,
    concurrency_quantile,
    erlang_c,
    server_wait,
    slot_wait,
    wait_quantile_s,
)

waits = st.builds(Wait, st.floats(0, 1), st.floats(1e-6, 1e3))


@pytest.mark.parametrize(("load", "utilisation"), [(4, 0.44), (16, 0.67), (64, 0.81), (256, 0.90)])
def test_utilisation_at_one_wait_in_twenty_is_erlangs(load: int, utilisation: float) -> None:
    """Exact Erlang C, as published tables have it."""
    servers = next(c for c in range(load, 2 * load + 9) if erlang_c(c, load) <= 0.05)
    assert load / servers == pytest.approx(utilisation, abs=0.006)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (3, 2.0), (10, 9.5)])
def test_erlang_c_is_its_textbook_sum(servers: int, load: float) -> None:
    last = load**servers / factorial(servers) * servers / (servers - load)
    whole = sum(load**n / factorial(n) for n in range(servers)) + last
    assert erlang_c(servers, load) == pytest.approx(last / whole)


def test_parts_of_a_bursty_stream_are_less_bursty() -> None:
    assert burstiness_of_part(9, 1) == 9
    assert burstiness_of_part(9, 4) == 3
    assert burstiness_of_part(1, 7) == 1
    assert burstiness_of_part(0.5, 2) == 0.75


@pytest.mark.parametrize("spare", [0.1, 1.0, 3.0])
def test_many_servers_are_counted_by_their_limit_without_a_jump(spare: float) -> None:
    few, many = (erlang_c(servers, servers - spare * servers**0.5) for servers in (EXACT_SERVERS, EXACT_SERVERS + 1))
    assert many == pytest.approx(few, abs=0.001)
    assert erlang_c(1e12, 1e12 - spare * 1e6) == pytest.approx(few, abs=0.001)
    assert erlang_c(1e12, 1.0) < 1e-9


def test_one_server_is_busy_as_often_as_it_works() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)


@given(st.floats(0.1, 200), st.floats(0.01, 0.99))
def test_more_servers_make_waits_rarer(servers: float, share: float) -> None:
    load = servers * share
    assert 0 <= erlang_c(servers + 1, load) <= erlang_c(servers, load) + 1e-12 <= 1 + 1e-12


@pytest.mark.parametrize(("mean", "quantile"), [(0.01, 0.99), (1.0, 0.5), (18.0, 0.99), (300.0, 0.999)])
def test_concurrency_is_poissons_quantile(mean: float, quantile: float) -> None:
    terms, term = [], exp(-mean)
    for n in range(2000):
        terms.append(term)
        term *= mean / (n + 1)
    found = concurrency_quantile(mean, quantile)
    assert sum(terms[: found + 1]) >= quantile
    assert found == 1 or sum(terms[:found]) < quantile


def test_many_requests_are_counted_by_the_normal_law_without_a_jump() -> None:
    below, above = concurrency_quantile(499.9, 0.99), concurrency_quantile(500.1, 0.99)
    assert above - below in (0, 1)
    assert concurrency_quantile(1e6, 0.99) == pytest.approx(1e6 + 2.326 * 1e3, rel=1e-5)


def test_bursts_widen_concurrency() -> None:
    assert concurrency_quantile(18, 0.99, 4.0) == 38  # ceil(18 + 2.3263 sqrt(72))
    assert concurrency_quantile(18, 0.99, 4.0) > concurrency_quantile(18, 0.99)


def test_a_single_slot_waits_as_a_single_server() -> None:
    """M/M/1: P(wait) = rho, mean wait if any = T / (1 - rho)."""
    found = slot_wait(1, 0.6, 2.0)
    assert (found.probability, found.mean_if_any_s) == pytest.approx((0.6, 2.0 / 0.4))
    assert found.mean_s == pytest.approx(3.0)


def test_a_load_over_the_slots_has_no_wait_to_tell() -> None:
    with pytest.raises(ValueError, match="below the slots"):
        slot_wait(4, 4.0, 1.0)


def test_equal_prompts_wait_half_as_long_as_exponential_ones() -> None:
    """Pollaczek-Khinchine: M/D/1 against M/M/1."""
    equal, spread = server_wait(0.5, 1.0), server_wait(0.5, 1.0, variation=1.0)
    assert equal.mean_s == pytest.approx(0.5)
    assert spread.mean_s == pytest.approx(1.0)
    assert server_wait(0.5, 1.0, burstiness=3.0).mean_s == pytest.approx(1.5)


@given(waits, waits, st.floats(0, 1e4), st.floats(0, 1e4))
def test_two_waits_are_a_distribution(first: Wait, second: Wait, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert -1e-9 <= both_within(first, second, low) <= both_within(first, second, high) + 1e-9 <= 1 + 2e-9
    assert both_within(first, second, low) == pytest.approx(both_within(second, first, low), abs=1e-9)
    assert both_within(first, second, -1.0) == 0
    assert both_within(first, NO_WAIT, low) >= both_within(first, second, low) - 1e-9


@given(waits, waits, st.sampled_from((0.5, 0.95, 0.99)))
def test_a_quantile_of_two_waits_is_reached_there(first: Wait, second: Wait, share: float) -> None:
    found = wait_quantile_s(first, second, share)
    assert both_within(first, second, found) >= share - 1e-6
    if found > 1e-6:
        assert both_within(first, second, found * 0.99) <= share + 1e-6


def test_a_wait_that_is_rarer_than_the_tail_is_none() -> None:
    assert Wait(0.04, 10.0).quantile_s(0.95) == 0
    assert Wait(0.5, 10.0).quantile_s(0.95) == pytest.approx(10 * 2.302585)
