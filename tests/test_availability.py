"""Spares from an availability: published tables, hand-made sums, nodes that fail whole, zones and upgrades."""

from decimal import Decimal
from math import comb
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.availability import Domain, domain_of, k_of_n, node_availability, redundancy, surviving_a_zone
from planner.catalog import load_failures
from planner.errors import InputError
from planner.fleet import active_within, spare_plan
from planner.inputs import Failures, Spares
from planner.report import Report
from tests.scenarios import CHAT, report

SINGLE = Domain(0.99, 1)


def planned(spares: dict[str, Any] | None, availability: str | None = "0.999", **overrides: Any) -> Report:
    objectives = {"availability": availability} if availability else {}
    asked: dict[str, Any] = {"workload": {**CHAT, "objectives": objectives}, **overrides}
    return report("llama-3.1-8b", overrides=asked | ({"spares": spares} if spares else {}))


@pytest.mark.parametrize(
    ("target", "spares"), [(0.999, {4: 1, 8: 2, 32: 3, 128: 6}), (0.9999, {4: 2, 8: 3, 32: 4, 128: 7})]
)
def test_spares_of_independent_replicas(target: float, spares: dict[int, int]) -> None:
    for active, spare in spares.items():
        found = redundancy(active, SINGLE, target)
        assert found.replicas - active == found.domains - active == spare
        assert found.availability >= target > (found.one_fewer or 0)


@given(st.integers(1, 12), st.integers(0, 6), st.floats(0.01, 0.99))
def test_k_of_n_is_the_binomial_sum(needed: int, spare: int, availability: float) -> None:
    total = needed + spare
    exact = sum(
        comb(total, down) * (1 - availability) ** down * availability ** (total - down) for down in range(spare + 1)
    )
    assert k_of_n(needed, spare, availability) == pytest.approx(exact)


@pytest.mark.parametrize(
    ("works", "target", "spare"), [(0.9, 0.9999, 3), (0.98, 0.9996, 1), (0.95, 0.99999375, 3), (0.7, 0.91, 1)]
)
def test_an_availability_that_is_just_reached_is_reached(works: float, target: float, spare: int) -> None:
    """One of 1 + s: 1 - (1 - A)^(s + 1), which floats miss by a rounding error."""
    assert redundancy(1, Domain(works, 1), target).spare == spare
    assert redundancy(1, Domain(works, 1), target + 1e-9).spare == spare + 1


def test_large_fleets_neither_overflow_nor_vanish() -> None:
    assert k_of_n(10_000, 200, 0.99) == pytest.approx(0.9999, abs=1e-3)
    assert k_of_n(3, 1, 0.0) == 0


def test_a_repair_of_no_time_needs_no_spare_but_for_upgrades() -> None:
    """Nodes that fail for a moment in a lifetime: their availability is 1 to every digit of a float."""
    failures = {"device_hours_per_failure": 10**14, "mttr_hours": "0.0001", "source": "test"}
    found = planned({"failures": failures}).fleet
    assert found is not None
    assert (found.spare_replicas, found.availability) == (1, 1)


@given(st.integers(1, 60), st.integers(1, 8), st.floats(0.9, 0.9999), st.sampled_from((0.9, 0.99, 0.999)))
def test_enough_is_left_when_the_spare_nodes_are_down(active: int, each: int, works: float, target: float) -> None:
    domain = Domain(works, each)
    found = redundancy(active, domain, target)
    fullest = -(-found.replicas // found.domains)
    assert fullest <= each
    assert found.replicas - found.spare * fullest >= active
    assert found.availability >= target
    assert redundancy(active, domain, target**0.5).lots >= found.lots


def test_a_node_takes_its_replicas_with_it() -> None:
    """Three replicas, nodes of two sold whole: one node may fail, so three nodes hold five, two of them spare."""
    found = redundancy(3, Domain(0.999, 2, lot=2), 0.9999)
    assert (found.domains, found.lots, found.replicas) == (3, 3, 5)


def test_devices_sold_one_by_one_are_spread_so_that_the_fewest_are_bought() -> None:
    """Eight replicas, nodes of eight that work 99 % of the time, 99.9 % asked for.

    In one node and a spare of as many they are 16 devices, by fours in two nodes and a spare one 12. By twos, four
    nodes and a spare, they are 10: 0.99^5 + 5 x 0.01 x 0.99^4 = 99.902 %. On nodes of their own they are 10 too, on
    more nodes: one of nine may fail for 99.656 % only.
    """
    found = redundancy(8, Domain(0.99, 8), 0.999)
    assert (found.domains, found.spare, found.replicas) == (5, 1, 10)
    assert found.availability == pytest.approx(0.99902, abs=5e-6)
    assert redundancy(8, Domain(0.99, 8, lot=8), 0.999).replicas == 16
    assert redundancy(8, Domain(0.99, 8, lot=4), 0.999).replicas == 12


def spreads(replicas: int, each: int) -> list[list[int]]:
    """Every even spread of replicas over nodes of at most so many, the fullest node first."""
    least = -(-replicas // each)
    return [[replicas // n + (i < replicas % n) for i in range(n)] for n in range(least, replicas + 1)]


def binomial(nodes: int, down: int, works: float) -> float:
    """Share of the time that at most so many of the nodes are down."""
    return sum(comb(nodes, i) * (1 - works) ** i * works ** (nodes - i) for i in range(down + 1))


@given(st.integers(1, 25), st.integers(1, 8), st.sampled_from((0.8, 0.9, 0.99, 0.999)), st.sampled_from((0.9, 0.99)))
def test_no_smaller_purchase_meets_the_same_availability(active: int, each: int, works: float, target: float) -> None:
    """Whatever the number of nodes, and of those that may fail, by trying all."""
    found = redundancy(active, Domain(works, each), target)
    assert found.lots == found.replicas
    for replicas in range(active, found.replicas):
        for nodes in spreads(replicas, each):
            for down in range(len(nodes)):
                enough = sum(nodes[down:]) >= active
                assert not (enough and binomial(len(nodes), down, works) >= target), (nodes, down)


SPARES = (
    {"failures": "llama-3-training"},
    {"failures": "llama-3-training", "devices_per_node": 8},
    {"failures": "llama-3-training", "devices_per_node": 4, "zones": 3},
    {"replica_availability": "0.95", "devices_per_node": 8},
    {"replica_availability": "0.99", "devices_per_node": 16, "zones": 2},
    {"replica_availability": "0.9"},
)


@given(
    st.integers(1, 900),
    st.integers(0, 40),
    st.sampled_from(SPARES),
    st.sampled_from(("0.9", "0.99", "0.9999")),
    st.sampled_from(({}, {"devices": 8, "instance": "node"}, {"devices": 2}, {"instance": "one"})),
    st.sampled_from((None, {"devices": 8, "price": 2}, {"devices": 12, "price": 0.5, "peak_hours_share": "0.3"})),
    st.sampled_from((1, 2)),
)
@settings(deadline=None)
def test_more_concurrency_never_costs_less(
    concurrency: int,
    more: int,
    spares: dict[str, Any],
    target: str,
    sold: dict[str, Any],
    commitment: dict[str, Any] | None,
    tp: int,
) -> None:
    """However devices are sold, whatever fails together: 8 replicas on nodes of 8 cost more than 9 once."""

    def cost(active: int) -> Decimal:
        workload = {**CHAT, "concurrency": active, "objectives": {"availability": target}}
        given: dict[str, Any] = {"commitment": commitment} if commitment else {}
        given |= {"workload": workload, "price": {"usd_per_hour": 4, **sold}, "parallelism": {"tp": tp}}
        found = planned(spares, **given).cost
        assert found is not None
        return found.monthly_usd

    assert cost(concurrency) <= cost(concurrency + more)


def test_a_node_fails_with_any_of_its_devices() -> None:
    """Llama 3: 50,677 device-hours are 6,335 hours of a node of 8, or 3.79 failures per 1,000 node-days."""
    failures = load_failures("llama-3-training")
    assert pytest.approx(float(failures.device_hours_per_failure), abs=1) == 16_384 * 54 * 24 / 419
    assert 1000 * 24 * 8 / float(failures.device_hours_per_failure) == pytest.approx(3.79, abs=0.005)
    assert node_availability(failures, 8) == pytest.approx(6334.6 / 6338.6, abs=1e-6)
    one, spanning = domain_of(failures, 4, 8), domain_of(failures, 16, 8)
    assert (one.replicas, spanning.replicas) == (2, 1)
    assert spanning.availability == pytest.approx(one.availability**2)


def test_a_zone_may_fail() -> None:
    assert [surviving_a_zone(4, zones) for zones in (2, 3, 5)] == [8, 6, 5]
    found = planned({"fraction": "0.1", "zones": 3}, None)
    assert found.fleet is not None
    assert {rule.limit: rule.replicas for rule in found.fleet.spare_rules} == {"fraction": 1, "zone": 2}
    assert found.fleet.spare_replicas == 2


def test_an_upgrade_takes_one_replica_out_at_a_time() -> None:
    rule = Spares(replica_availability=Decimal("0.9999"))
    plan = spare_plan(2, rule, Decimal("0.9"))
    assert {each.name: each.replicas for each in plan.rules} == {"availability": 0, "rolling_upgrade": 1}
    assert plan.replicas == 1


def test_the_report_shows_what_is_reached_and_with_one_fewer() -> None:
    found = planned({"replica_availability": "0.99"})
    assert found.fleet is not None
    assert (found.fleet.active_replicas, found.fleet.spare_replicas) == (3, 1)
    assert found.fleet.availability == pytest.approx(k_of_n(3, 1, 0.99))
    assert found.fleet.availability_one_fewer == pytest.approx(0.99**3)


def test_an_availability_alone_takes_the_shipped_failure_rate_and_says_so() -> None:
    found = planned(None)
    assert found.fleet is not None
    assert found.fleet.spare_rules[0].limit == "availability"
    assert any("by failures llama-3-training" in line for line in found.assumptions)
    assert any("mttr_hours: the profile's assumption" in line for line in found.assumptions)
    assert any(source.what == "failures llama-3-training" for source in found.sources)
    assert any("taken to fail one by one" in warning for warning in found.warnings)


def test_an_availability_spreads_replicas_over_whole_instances() -> None:
    """One replica and a spare on another node: two instances of eight, though one would hold both."""
    price: dict[str, Any] = {"usd_per_hour": 8, "devices": 8, "instance": "node"}
    found = planned(
        {"failures": "llama-3-training"},
        price=price,
        workload={**CHAT, "concurrency": 1, "objectives": {"availability": "0.9999"}},
    )
    assert found.fleet is not None
    assert (found.fleet.active_replicas, found.fleet.spare_replicas, found.fleet.nodes) == (1, 1, 2)


@pytest.mark.parametrize(
    ("concurrency", "zones", "replicas", "nodes"),
    [(1, 2, 2, 2), (1, 5, 2, 2), (64, 3, 5, 3), (400, 2, 30, 4), (400, 3, 23, 3)],
)
def test_no_instance_is_in_two_zones(concurrency: int, zones: int, replicas: int, nodes: int) -> None:
    """Instances of eight: 15 active replicas in two zones are 15 on two in each, in three 8, 8 and 7."""
    price: dict[str, Any] = {"usd_per_hour": 8, "devices": 8, "instance": "node"}
    workload = {**CHAT, "concurrency": concurrency}
    found = planned({"fraction": 0, "zones": zones}, None, price=price, workload=workload).fleet
    assert found is not None
    assert (found.active_replicas + found.spare_replicas, found.nodes) == (replicas, nodes)
    assert found.billed_devices == nodes * 8


@given(st.integers(0, 300), st.sampled_from(("0.9", "0.999")))
def test_spares_of_an_availability_are_found_again(active: int, target: str) -> None:
    rule = Spares(replica_availability=Decimal("0.98"))
    replicas = active + spare_plan(active, rule, Decimal(target)).replicas
    assert active_within(replicas, rule, Decimal(target)) >= active


@pytest.mark.parametrize(("node", "each"), [(8, 1), (8, 2), (4, 1), (8, 16)])
@pytest.mark.parametrize("target", ["0.9", "0.99", "0.99999"])
def test_most_active_replicas_by_trying_all(node: int, each: int, target: str) -> None:
    """Of nodes that take several replicas with them: 32 replicas run 16, and 29 spread more widely run 17."""
    rule = Spares(replica_availability=Decimal("0.9"), devices_per_node=node)
    totals = {active: active + spare_plan(active, rule, Decimal(target), each).replicas for active in range(40)}
    for replicas in range(40):
        most = max(active for active, total in totals.items() if total <= replicas)
        assert active_within(replicas, rule, Decimal(target), each) == most


@pytest.mark.parametrize(
    ("spares", "availability", "message"),
    [
        ({"fraction": "0.2"}, "0.999", "needs spares.replica_availability or spares.failures"),
        ({"replica_availability": "0.99"}, None, "need workload.objectives.availability"),
        ({"replica_availability": "0.99", "fraction": "0.2"}, "0.9", "give one of"),
        ({"replica_availability": "0.001"}, "0.999999", "is too low for objectives.availability"),
        ({"replica_availability": "1"}, "0.9", "replica_availability"),
        ({"failures": "llama-4"}, "0.9", "failure 'llama-4' is unknown"),
        (
            {"failures": {"device_hours_per_failure": 0, "mttr_hours": 1, "source": "x"}},
            "0.9",
            "device_hours_per_failure",
        ),
        ({"fraction": "0.2", "zones": 1}, None, "zones"),
    ],
)
def test_availability_without_its_figures_is_refused(
    spares: dict[str, Any], availability: str | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        planned(spares, availability)


def test_a_failure_rate_of_ones_own() -> None:
    failures = Failures(device_hours_per_failure=Decimal(80_000), mttr_hours=Decimal(2), source="our incident log")
    assert node_availability(failures, 8) == pytest.approx(10_000 / 10_002)


def test_a_spread_that_the_price_does_not_make_sure_of_is_warned_of() -> None:
    """Nodes of eight whose devices are sold one by one: the plan counts on where they stand."""
    rule = {"failures": "llama-3-training", "devices_per_node": 8}
    warned = "whoever sells devices decides on which node: the availability counts on 4 domains of 1 replica that fail"
    assert any(each.startswith(warned) for each in planned(rule, "0.9999").warnings)
    price: dict[str, Any] = {"usd_per_hour": 8, "devices": 8, "instance": "node"}
    assert not any("decides on which node" in each for each in planned(rule, "0.9999", price=price).warnings)
