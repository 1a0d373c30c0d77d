"""Fleets of several types: the integer program against brute force, and never dearer than a single type."""

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise, permutations, product
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

pytest.importorskip("highspy")

from planner.availability import k_of_n
from planner.cli import app
from planner.demand import with_values
from planner.errors import InputError
from planner.inputs import Scenario
from planner.latency import PERCENTILE, mix_of
from planner.mix import _capacity, _counts, _offered, plan_mix
from planner.mix_solver import cheapest_mix
from planner.plan import monthly_usd
from planner.units import cents
from tests.scenarios import CHAT, scenario


def offered(gpu: str, **overrides: Any) -> Scenario:
    workload = {**CHAT, "concurrency": None, "arrivals_per_s": 40, "objectives": {"ttft_p95_s": 1}}
    return scenario("llama-3.1-8b", gpu, {"workload": workload, "price": {"usd_per_hour": 4}, **overrides})


Table = list[tuple[int, Fraction]]


def linear(usd: int, most: int = 40) -> Table:
    """Every number of replicas, each of which costs as much."""
    return [(count, Fraction(usd * count)) for count in range(most + 1)]


def cost_of(tables: Sequence[Table], counts: Sequence[int]) -> Fraction:
    return sum((dict(table)[count] for table, count in zip(tables, counts, strict=True)), Fraction(0))


def test_a_cheap_type_takes_what_it_can_and_a_dear_one_the_rest() -> None:
    """20/s of small requests, 10/s on each $1 replica; 3/s of large ones, which only $10 replicas serve, 2/s each.

    Two dear replicas are needed, half of one is left over and does 6/s of the small ones; 14/s take two cheap ones.
    """
    found = cheapest_mix([linear(1), linear(10)], [20.0, 3.0], [[10.0, 12.0], [0.0, 2.0]], 2)
    assert found.replicas == (2, 2)
    assert found.shares[1] == (0.0, 1.0)
    assert found.shares[0][0] >= 14 / 20 - 1e-6


def test_what_a_fleet_costs_beyond_its_replicas_decides() -> None:
    """3 replicas of work on either type: the dearer one comes four to an instance, the cheaper one with two spares."""
    nodes = [(0, Fraction(0)), (4, Fraction(14))]
    spares = [(0, Fraction(0)), *((count, Fraction(3 * (count + 2))) for count in range(1, 5))]
    assert cheapest_mix([nodes, spares], [3.0], [[1.0, 1.0]], 2).replicas == (4, 0)


LOADS = st.sampled_from([0, 1, 2, 3, 4, 6])
"""Requests a second that a replica serves of a bucket; 0: none."""


@st.composite
def mixes(draw: st.DrawFn) -> tuple[list[Table], list[int], list[list[int]]]:
    """Tables of costs with spares, instances and gaps; rates and capacities of up to three types and buckets."""
    types, buckets = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rates = draw(st.lists(st.integers(1, 7), min_size=buckets, max_size=buckets))
    rows = st.lists(LOADS, min_size=types, max_size=types).filter(any)
    capacities = draw(st.lists(rows, min_size=buckets, max_size=buckets))
    tables = []
    for kind in range(types):
        most = ceil(sum(Fraction(rate, row[kind]) for rate, row in zip(rates, capacities, strict=True) if row[kind]))
        cents = st.integers(0, 100_000).map(lambda usd: Fraction(usd, 100))
        table = [(0, Fraction(0)), *((count, draw(cents)) for count in range(1, most + 1))]
        left = draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table)))
        tables.append([row for row, kept in zip(table, left, strict=True) if kept or row[0] in (0, most)])
    return tables, rates, capacities


@settings(max_examples=150, deadline=None)
@given(mixes())
def test_the_optimum_by_brute_force(case: tuple[list[Table], list[int], list[list[int]]]) -> None:
    """Every number of replicas of every type that does the work, exactly: none costs a cent less."""
    tables, rates, capacities = case
    loads = [
        [Fraction(rate, capacity) if capacity else None for capacity in row]
        for rate, row in zip(rates, capacities, strict=True)
    ]
    tried = product(*([count for count, _ in table] for table in tables))
    best = min(cost_of(tables, counts) for counts in tried if does_the_work(loads, counts))
    found = cheapest_mix(
        tables, [float(rate) for rate in rates], [list(map(float, row)) for row in capacities], len(tables)
    )
    assert does_the_work(loads, found.replicas)
    assert cents(cost_of(tables, found.replicas)) == cents(best)


def does_the_work(loads: Sequence[Sequence[Fraction | None]], counts: Sequence[int]) -> bool:
    """Whether some split of every bucket fits these replicas, exactly.

    By Farkas' lemma: it does unless some worth y >= 0 of a replica of each type makes the least that the buckets can be
    done for, sum over b of min over g of y_g l_bg, more than all replicas are worth. The worths to try are those of the
    vertices: of some types 0, of the others in ratios at which some bucket is done as cheaply on two of them.
    """
    for worth in worths(loads, len(counts)):
        least = sum(
            (min(worth[kind] * load for kind, load in enumerate(row) if load is not None) for row in loads), Fraction(0)
        )
        if least > sum(value * count for value, count in zip(worth, counts, strict=True)):
            return False
    return True


def worths(loads: Sequence[Sequence[Fraction | None]], types: int) -> set[tuple[Fraction, ...]]:
    found: set[tuple[Fraction, ...]] = set()
    reached = {tuple(Fraction(kind == first) for kind in range(types)) for first in range(types)}
    while reached:
        found |= reached
        reached = {more for worth in reached for more in _one_more(loads, worth)}
    return found


def _one_more(
    loads: Sequence[Sequence[Fraction | None]], worth: tuple[Fraction, ...]
) -> Iterator[tuple[Fraction, ...]]:
    """With a worth of one type more, at which some bucket is done as cheaply on it as on one that has some."""
    for row in loads:
        for known, new in permutations(range(len(worth)), 2):
            old_load, new_load = row[known], row[new]
            if worth[known] and not worth[new] and old_load and new_load:
                yield tuple(worth[known] * old_load / new_load if kind == new else at for kind, at in enumerate(worth))


def test_whether_replicas_do_the_work_by_hand() -> None:
    """One bucket of half a replica of the first type or one of the second; another of one or three."""
    loads = [[Fraction(1, 2), Fraction(1)], [Fraction(1), Fraction(3)]]
    assert does_the_work(loads, (2, 0))
    assert does_the_work(loads, (1, 1))
    assert not does_the_work(loads, (1, 0))
    assert not does_the_work(loads, (0, 3))
    assert does_the_work(loads, (0, 4))
    assert not does_the_work([[Fraction(2), None]], (1, 9))


def test_shares_cover_each_bucket_and_fit_the_replicas() -> None:
    usd, rates = [linear(3), linear(7), linear(4)], [9.0, 4.0, 0.5]
    capacities = [[2.0, 5.0, 0.0], [1.0, 3.0, 2.0], [0.0, 0.2, 0.3]]
    found = cheapest_mix(usd, rates, capacities, len(usd))
    for shares in found.shares:
        assert sum(shares) == pytest.approx(1)
    for kind, count in enumerate(found.replicas):
        load = sum(
            shares[kind] * rate / of_types[kind]
            for shares, rate, of_types in zip(found.shares, rates, capacities, strict=True)
            if of_types[kind]
        )
        assert load <= count + 1e-6


@pytest.mark.parametrize("rate", [1e-300, 1e-12, 1e-7, 1e-5])
def test_next_to_no_load_takes_one_replica_of_the_cheapest(rate: float) -> None:
    found = cheapest_mix([linear(5), linear(3)], [rate, rate], [[1.0, 1.0], [2.0, 1.0]], 2)
    assert found.replicas == (0, 1)


@pytest.mark.parametrize("rate", [41.0, 1e14])
def test_a_load_beyond_the_tables_is_refused_and_never_free(rate: float) -> None:
    with pytest.raises(InputError, match="the solver ends with"):
        cheapest_mix([linear(5, 20), linear(3, 20)], [rate, rate], [[1.0, 1.0], [2.0, 1.0]], 2)


def test_a_bucket_that_no_type_serves_is_named() -> None:
    with pytest.raises(InputError, match="bucket 2"):
        cheapest_mix([linear(1)], [1.0, 1.0], [[1.0], [0.0]], 1)


def test_a_mix_is_never_dearer_than_its_best_type_alone() -> None:
    types = [offered("h100-sxm"), offered("l40s", price={"usd_per_hour": "1.2"}), offered("a100-sxm-80gb")]
    found = plan_mix(types)
    assert found.best_single_monthly_usd is not None
    assert found.monthly_usd <= found.best_single_monthly_usd
    alone = [plan_mix([each]) for each in types]
    assert found.monthly_usd <= min(each.monthly_usd for each in alone)
    assert found.best_single_monthly_usd == min(each.monthly_usd for each in alone)


def test_one_more_type_never_makes_the_mix_dearer() -> None:
    few = plan_mix([offered("h100-sxm")]).monthly_usd
    more = plan_mix([offered("h100-sxm"), offered("l40s", price={"usd_per_hour": "0.8"})]).monthly_usd
    assert more <= few


def test_twice_the_price_is_twice_the_cost() -> None:
    one, two = (
        plan_mix([offered(gpu, price={"usd_per_hour": usd}) for gpu in ("h100-sxm", "l40s")]).monthly_usd
        for usd in (2, 4)
    )
    assert two == 2 * one


NODE = {"usd_per_hour": 32, "devices": 8, "instance": "node"}


@pytest.mark.parametrize(
    ("spares", "availability"),
    [
        ({"fraction": "0.2"}, None),
        ({"fraction": 0, "zones": 3}, None),
        ({"failures": "llama-3-training"}, "0.99999"),
        ({"failures": "llama-3-training", "zones": 2}, "0.999"),
    ],
)
@pytest.mark.parametrize("rate", [1, 40, 400])
def test_a_fleet_costs_in_a_mix_what_it_costs_by_itself(
    spares: dict[str, Any], availability: str | None, rate: int
) -> None:
    """Spares, zones, and the instances over which both spread it."""
    workload = {**CHAT, "concurrency": None, "arrivals_per_s": rate, "objectives": {"availability": availability}}
    alike = offered("h100-sxm", workload=workload, spares=spares, price=NODE)
    found = plan_mix([alike])
    active = found.parts[0].active_replicas
    assert found.parts[0].monthly_usd == found.monthly_usd == monthly_usd(alike, [active])[active]


@pytest.mark.parametrize(
    ("spares", "availability"),
    [
        ({"fraction": "0.2"}, None),
        ({"fraction": 0, "zones": 2}, None),
        ({"failures": "llama-3-training"}, "0.9999"),
    ],
)
@pytest.mark.parametrize("rate", [70, 130])
def test_no_fleet_of_two_types_is_billed_less_by_brute_force(
    spares: dict[str, Any], availability: str | None, rate: int
) -> None:
    """Every pair of numbers of replicas that does the work, billed with its spares and whole instances."""
    objectives = {"ttft_p95_s": 1, "availability": availability}
    workload = {**CHAT, "concurrency": None, "arrivals_per_s": rate, "objectives": objectives}
    prices = {"h100-sxm": "7.80", "l40s": "1.90"}
    types = [
        offered(gpu, workload=workload, spares=spares, price={"usd_per_hour": usd, "devices": 2, "instance": "pair"})
        for gpu, usd in prices.items()
    ]
    bands = mix_of(types[0]).bands
    offers = [found for found in map(_offered, types) if found]
    first = [sum(band.share for band in bands[:place]) < PERCENTILE for place in range(len(bands))]
    loads = [
        [
            Fraction(rate * band.share / capacity) if (capacity := _capacity(offer, band, first_token=judged)) else None
            for offer in offers
        ]
        for band, judged in zip(bands, first, strict=True)
    ]
    needs = [ceil(sum(filter(None, column))) for column in zip(*loads, strict=True)]
    costs = {several: _costs(types, needs, several=several) for several in (False, True)}
    pairs = [pair for pair in product(*(range(need + 1) for need in needs)) if does_the_work(loads, pair)]
    best = min(sum(of[each] for of, each in zip(costs[all(pair)], pair, strict=True)) for pair in pairs)
    found = plan_mix(types)
    assert found.monthly_usd == sum(part.monthly_usd for part in found.parts) == best
    assert availability or len(found.parts) == 2


def _costs(types: Sequence[Scenario], needs: Sequence[int], *, several: bool) -> list[dict[int, Decimal]]:
    """Of each type, what every number of replicas costs; several: each type is half as long short of them."""
    given = types[0].workload.objectives.availability
    if several and given is not None:
        types = [with_values(each, {"workload.objectives.availability": 1 - (1 - given) / 2}) for each in types]
    return [monthly_usd(each, range(1, need + 1)) | {0: Decimal(0)} for each, need in zip(types, needs, strict=True)]


@pytest.mark.parametrize(
    ("rate", "target", "works"), [(200, "0.99", "0.99"), (200, "0.9999", "0.999"), (300, "0.9999", "0.99")]
)
def test_two_types_are_both_enough_for_as_long_as_is_asked(rate: int, target: str, works: str) -> None:
    """Each by itself for as long would leave 98.7, 99.98 and 99.989 % of the time."""
    objectives = {"ttft_p95_s": 1, "availability": target}
    workload = {**CHAT, "concurrency": None, "arrivals_per_s": rate, "objectives": objectives}
    usd = {"h100-sxm": Decimal("7.80"), "l40s": Decimal("1.90")}
    spares = {"replica_availability": works}
    found = plan_mix([offered(gpu, workload=workload, spares=spares, price={"usd_per_hour": usd[gpu]}) for gpu in usd])
    assert len(found.parts) == 2
    enough = 1.0
    for part in found.parts:
        replicas = int(part.monthly_usd / usd[part.choice.split()[0]] / 730)
        enough *= k_of_n(part.active_replicas, replicas - part.active_replicas, float(works))
    assert enough >= float(target)


def test_no_more_types_are_mixed_than_may_be() -> None:
    """Each is the cheapest for one bucket; the third bucket's is good for all."""
    tables, rates = [linear(1), linear(1), linear(4)], [1.0, 1.0, 1.0]
    capacities = [[1.0, 0.5, 1.0], [0.5, 1.0, 1.0], [0.0, 0.0, 1.0]]
    assert cheapest_mix(tables, rates, capacities, 3).replicas == (1, 1, 1)
    assert cheapest_mix(tables, rates, capacities, 2).replicas in ((3, 0, 1), (0, 3, 1))
    assert cheapest_mix(tables, rates, capacities, 1).replicas == (0, 0, 3)


def test_a_large_fleet_is_tried_in_steps_that_lose_less_than_they_are() -> None:
    """Beyond twice the numbers tried one by one, steps are of at most one in so many; what is over is taken back."""
    for need in (0, 1, 7, 20, 21, 100, 5000):
        counts = list(_counts(need, 10))
        assert counts == sorted(set(counts))
        assert counts[: min(need, 20)] == list(range(1, min(need, 20) + 1))
        assert not need or counts[-1] == need
        assert all(after - before <= max(1, before // 10) for before, after in pairwise(counts))


def test_steps_never_make_a_mix_dearer_than_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = {**CHAT, "concurrency": None, "arrivals_per_s": 600, "objectives": {"ttft_p95_s": 1}}
    types = [
        offered(gpu, workload=workload, price={"usd_per_hour": usd}) for gpu, usd in (("h100-sxm", 4), ("l40s", 1))
    ]
    exact = plan_mix(types)
    monkeypatch.setattr("planner.mix.MOST_TABLED", 10)
    coarse = plan_mix(types)
    assert coarse.best_single_monthly_usd == exact.best_single_monthly_usd
    assert exact.best_single_monthly_usd is not None
    assert exact.monthly_usd <= coarse.monthly_usd <= exact.best_single_monthly_usd


def test_a_type_whose_availability_no_spares_reach_is_no_part_of_a_mix() -> None:
    rare = {"replica_availability": "0.01"}
    workload = {**CHAT, "concurrency": None, "arrivals_per_s": 40, "objectives": {"availability": "0.999999"}}
    cheap = offered("l40s", workload=workload, spares=rare, price={"usd_per_hour": "0.01"})
    steady = offered("h100-sxm", workload=workload, spares={"replica_availability": "0.999"})
    found = plan_mix([cheap, steady])
    assert found == plan_mix([steady])
    assert [part.choice for part in found.parts] == ["h100-sxm bfloat16"]


def test_other_monthly_lines_are_paid_once() -> None:
    lines = [{"name": "people", "usd": "1000.50"}, {"name": "network", "usd": 200}]
    plain, billed = (
        plan_mix([offered(gpu, **more) for gpu in ("h100-sxm", "l40s")]) for more in ({}, {"other_monthly": lines})
    )
    assert plain.best_single_monthly_usd is not None
    assert billed.monthly_usd == plain.monthly_usd + Decimal("1200.50")
    assert billed.best_single_monthly_usd == plain.best_single_monthly_usd + Decimal("1200.50")
    assert billed.parts == plain.parts


def test_retries_are_load_of_a_mix_as_well() -> None:
    """Half of the requests fail and are tried four times more: three attempts each, as three times the arrivals."""
    retried = {**CHAT, "concurrency": None, "arrivals_per_s": 10, "success_share": "0.5", "retries_per_failure": 4}
    plain = {**CHAT, "concurrency": None, "arrivals_per_s": 30}
    assert plan_mix([offered("l40s", workload=retried)]) == plan_mix([offered("l40s", workload=plain)])


def test_a_type_that_holds_no_request_is_left_out_and_none_is_refused() -> None:
    small = offered("t4")
    assert plan_mix([small, offered("h100-sxm")]).parts[0].choice.startswith("h100-sxm")
    with pytest.raises(InputError, match="nothing to mix"):
        plan_mix([small])


def test_a_mix_needs_arrivals() -> None:
    active = scenario("llama-3.1-8b", overrides={"workload": CHAT})
    with pytest.raises(InputError, match="a mix needs arrivals"):
        plan_mix([active])


def test_a_search_can_mix_its_choices(tmp_path: Path) -> None:
    base = [
        "search",
        "--model",
        "llama-3.1-8b",
        "--workload",
        "chat",
        "--gpu",
        "h100-sxm",
        "--gpu",
        "l40s",
        "--tp",
        "1",
    ]
    result = CliRunner().invoke(app, [*base, "--arrivals", "30", "--ttft-p95", "2", "--mix", "--format", "json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert Decimal(found["mix"]["monthly_usd"]) <= Decimal(found["mix"]["best_single_monthly_usd"])
    saved = tmp_path / "saved.json"
    saved.write_text(result.stdout, "utf-8")
    drawn = CliRunner().invoke(app, ["report", str(saved)])
    assert "Mixed by size of request" in drawn.stdout
    assert found["mix"]["parts"][0]["choice"] in drawn.stdout
    assert "number 1 of the cheapest" not in drawn.stdout
    without = CliRunner().invoke(app, [*base, "--mix"])
    assert without.exit_code == 2
    assert "a mix needs arrivals" in without.stderr


def test_a_mix_that_one_fleet_of_all_sizes_undercuts_says_so() -> None:
    base = [
        "search",
        "--model",
        "llama-3.1-8b",
        "--workload",
        "chat",
        "--tp",
        "1",
        "--kv-dtype",
        "fp8",
        "--ttft-p95",
        "1",
    ]
    asked = [*base, "--gpu", "h200-sxm", "--gpu", "l40s", "--arrivals", "400", "--mix"]
    found = json.loads(CliRunner().invoke(app, [*asked, "--format", "json"]).stdout)
    cheapest = Decimal(found["candidates"][0]["monthly_usd"])
    assert cheapest < Decimal(found["mix"]["monthly_usd"])
    drawn = CliRunner().invoke(app, asked).stdout
    assert f"number 1 of the cheapest serves all sizes in one fleet for less: ${cheapest:,} a month" in drawn


def test_a_missing_solver_is_said_before_anything_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.mix_solver.find_spec", lambda _: None)
    asked = ["search", "--model", "llama-3.1-8b", "--workload", "chat", "--gpu", "l40s", "--arrivals", "1", "--mix"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 4
    assert result.stdout == ""
    assert "pip install 'llm-serving-planner[mix]'" in result.stderr


def test_a_search_that_nothing_serves_says_why_and_has_no_mix() -> None:
    base = ["search", "--model", "llama-3.1-8b", "--workload", "chat", "--gpu", "h100-sxm", "--tp", "1"]
    result = CliRunner().invoke(app, [*base, "--arrivals", "10", "--ttft-p95", "0.01", "--mix", "--format", "json"])
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert found["mix"] is None
    assert [each["limit"] for each in found["rejected"]] == ["ttft_p95"]
