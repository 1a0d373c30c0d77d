"""Fleets of several types: the integer program against brute force, and never dearer than a single type."""

import json
from decimal import Decimal
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("highspy")

from planner.cli import app
from planner.errors import InputError
from planner.inputs import Scenario
from planner.mix import plan_mix
from planner.mix_solver import cheapest_mix
from planner.plan import monthly_usd
from tests.scenarios import CHAT, scenario


def offered(gpu: str, **overrides: Any) -> Scenario:
    workload = {**CHAT, "concurrency": None, "arrivals_per_s": 40, "objectives": {"ttft_p95_s": 1}}
    return scenario("llama-3.1-8b", gpu, {"workload": workload, "price": {"usd_per_hour": 4}, **overrides})


def test_a_cheap_type_takes_what_it_can_and_a_dear_one_the_rest() -> None:
    """20/s of small requests, 10/s on each $1 replica; 3/s of large ones, which only $10 replicas serve, 2/s each.

    Two dear replicas are needed, half of one is left over and does 6/s of the small ones; 14/s take two cheap ones.
    """
    found = cheapest_mix([Fraction(1), Fraction(10)], [20.0, 3.0], [[10.0, 12.0], [0.0, 2.0]])
    assert found.replicas == (2, 2)
    assert found.shares[1] == (0.0, 1.0)
    assert found.shares[0][0] >= 14 / 20 - 1e-6


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_by_brute_force(seed: int) -> None:
    """Two types and two buckets, every number of replicas tried with every split of the first bucket in hundredths."""
    usd = [Fraction(2 + seed % 3), Fraction(5)]
    rates, capacities = [4.0 + seed, 2.0], [[1.5, 4.0 + seed % 2], [0.5, 3.0]]

    def enough(counts: tuple[int, int]) -> bool:
        for first, second in product(range(101), repeat=2):
            used = [
                first / 100 * rates[0] / capacities[0][0] + second / 100 * rates[1] / capacities[1][0],
                (1 - first / 100) * rates[0] / capacities[0][1] + (1 - second / 100) * rates[1] / capacities[1][1],
            ]
            if all(load <= count + 1e-9 for load, count in zip(used, counts, strict=True)):
                return True
        return False

    best = min(usd[0] * a + usd[1] * b for a, b in product(range(9), range(5)) if enough((a, b)))
    found = cheapest_mix(usd, rates, capacities)
    cost = sum(price * count for price, count in zip(usd, found.replicas, strict=True))
    assert cost <= best  # hundredths are coarser than the program's shares
    assert cost >= best - min(usd)


def test_shares_cover_each_bucket_and_fit_the_replicas() -> None:
    usd, rates = [Fraction(3), Fraction(7), Fraction(4)], [9.0, 4.0, 0.5]
    capacities = [[2.0, 5.0, 0.0], [1.0, 3.0, 2.0], [0.0, 0.2, 0.3]]
    found = cheapest_mix(usd, rates, capacities)
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
    found = cheapest_mix([Fraction(5), Fraction(3)], [rate, rate], [[1.0, 1.0], [2.0, 1.0]])
    assert found.replicas == (0, 1)


def test_a_load_beyond_the_solver_is_refused_and_never_free() -> None:
    with pytest.raises(InputError, match="the solver ends with"):
        cheapest_mix([Fraction(5), Fraction(3)], [1e14, 1e14], [[1.0, 1.0], [2.0, 1.0]])


def test_a_bucket_that_no_type_serves_is_named() -> None:
    with pytest.raises(InputError, match="bucket 2"):
        cheapest_mix([Fraction(1)], [1.0, 1.0], [[1.0], [0.0]])


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
    without = CliRunner().invoke(app, [*base, "--mix"])
    assert without.exit_code == 2
    assert "a mix needs arrivals" in without.stderr


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
