"""Candidates of a search over growth and uncertain demand: what each costs by world, and which one regrets least."""

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from planner import saved
from planner.cli import app
from planner.demand import plan_demand, regret
from planner.errors import InputError
from planner.inputs import Growth, Scenario
from planner.regrets import search_demand
from planner.render.regret import regret_lines, regret_tables
from planner.search import _scenario_of, search
from planner.search_inputs import load_search
from planner.search_report import Choice, SearchDemand, SearchResult
from planner.space import Space
from tests.scenarios import scenario

BASE = {"model": "llama-3.1-8b", "workload": "chat", "workload.objectives.ttft_p95_s": 1}
LOAD = {"workload.concurrency": {"low": 20, "mid": 64, "high": 300}}
LOADS = {"uncertain": LOAD}
GROWTH = {"growth": {"per_month": "0.2", "months": 3}}
TENANTS = {
    "workload.prefix": {"shared_tokens": 800, "request_share": "0.9"},
    "workload.tenants": {"count": 50, "cache_scope": "per_tenant"},
}
TRIED: dict[str, Any] = {"accelerators": ("h100-sxm", "l40s", "a100-sxm-80gb"), "tp": (1, 2)}


def asked(more: Mapping[str, Any], **choices: Any) -> tuple[Scenario, Space]:
    return load_search(None, {**BASE, **more}, {**TRIED, **choices})


def found(more: Mapping[str, Any], jobs: int = 1, **choices: Any) -> SearchResult:
    return search(*asked(more, **choices), jobs=jobs)


def demand_of(result: SearchResult) -> SearchDemand:
    assert result.demand is not None
    return result.demand


def test_without_growth_or_doubt_there_is_none() -> None:
    assert found({}).demand is None


@pytest.mark.parametrize("more", [LOADS, GROWTH, {**LOADS, **GROWTH}, {**LOADS, **GROWTH, **TENANTS}])
def test_a_choice_costs_by_world_what_its_own_plan_says(more: dict[str, Any]) -> None:
    """Of every month, the plan of that load by itself; of every world, the plan with its values."""
    base, space = asked(more)
    by_choice = {each.choice: each.by_world_usd for each in demand_of(search(base, space)).regretted}
    for trial in space.trials(experts=False):
        own = _scenario_of(base, trial)
        worlds = [own]
        if base.uncertain:
            worlds = [
                own.model_copy(update={"workload": own.workload.model_copy(update={"concurrency": load})})
                for load in LOAD["workload.concurrency"].values()
            ]
        expected = []
        for world in worlds:
            report = plan_demand(world.model_copy(update={"uncertain": {}}))
            assert report.cost is not None
            months = [month.monthly_usd for month in report.growth] or [report.cost.monthly_usd]
            expected.append(sum(filter(None, months), Decimal(0)))
        choice = next(each for each in by_choice if _is(each, trial))
        assert by_choice[choice] == tuple(expected)


def _is(choice: Choice, trial: Any) -> bool:
    return (choice.accelerator, choice.tp) == (trial.offer.accelerator.name, trial.parallelism.tp)


def test_regrets_by_their_definition() -> None:
    demand = demand_of(found({**LOADS, **GROWTH}))
    assert [world.weight for world in demand.worlds] == [0.3, 0.4, 0.3]
    assert demand.months == 3
    columns = list(zip(*(each.by_world_usd for each in demand.regretted), strict=True))
    least = [min(filter(None, column)) for column in columns]
    assert [world.least_usd for world in demand.worlds] == least
    for each in demand.regretted:
        costs = [usd for usd in each.by_world_usd if usd is not None]
        assert len(costs) == 3
        weighted = [w * regret(usd, low) for w, usd, low in zip((0.3, 0.4, 0.3), costs, least, strict=True)]
        assert each.regret == pytest.approx(sum(weighted), abs=0.01)
        assert each.most_over_usd == max(usd - low for usd, low in zip(costs, least, strict=True))
        shares = (Decimal("0.3"), Decimal("0.4"), Decimal("0.3"))
        mean = sum((w * usd for w, usd in zip(shares, costs, strict=True)), Decimal(0))
        assert each.mean_usd is not None
        assert abs(each.mean_usd - mean) <= Decimal("0.01")
    regrets = [each.regret for each in demand.regretted]
    assert regrets == sorted(regrets)


def test_with_growth_alone_the_cheapest_over_all_months_is_regretted_least() -> None:
    demand = demand_of(found(GROWTH))
    assert [(world.values, world.weight) for world in demand.worlds] == [((), 1.0)]
    costs = [each.by_world_usd[0] for each in demand.regretted if each.by_world_usd[0] is not None]
    assert costs == sorted(costs)
    assert demand.regretted[0].regret == 0


def choices(result: SearchResult, count: int) -> list[Choice]:
    return [each.choice for each in result.candidates[:count]]


USD = Decimal


def test_the_least_regretted_by_hand() -> None:
    """One is cheapest in two worlds of three and ruinous in the last; the other is a little dearer in each."""
    base, _ = asked(LOADS)
    bold, careful = choices(found({}), 2)
    demand = search_demand(base, {bold: (USD(10), USD(20), USD(500)), careful: (USD(12), USD(22), USD(100))})
    assert [each.choice for each in demand.regretted] == [careful, bold]
    assert demand.regretted[0].regret == pytest.approx(round(0.7 * 2**1.2, 2))
    assert demand.regretted[1].regret == pytest.approx(round(0.3 * 400**1.2, 2))


def test_what_leaves_a_world_unserved_is_regretted_more_than_whatever_serves_it() -> None:
    base, _ = asked(LOADS)
    small, large = choices(found({}), 2)
    demand = search_demand(base, {small: (USD(1), USD(2), "too long"), large: (USD(90), USD(90), USD(90))})
    assert [each.choice for each in demand.regretted] == [large, small]
    assert [each.unserved_share for each in demand.regretted] == [0, 0.3]
    assert demand.regretted[1].by_world_usd == (USD(1), USD(2), None)
    assert demand.infeasible_share == 0


def test_a_world_that_nothing_serves_counts_for_no_regret_and_says_why() -> None:
    base, _ = asked(LOADS)
    one, two = choices(found({}), 2)
    demand = search_demand(base, {one: (USD(1), USD(2), "too long"), two: (USD(1), USD(3), "too hot")})
    assert [each.choice for each in demand.regretted] == [one, two]
    assert [each.unserved_share for each in demand.regretted] == [0, 0]
    assert demand.infeasible_share == 0.3
    assert (demand.worlds[2].least_usd, demand.worlds[2].unserved) == (None, "too long")
    assert demand.regretted[1].regret == pytest.approx(0.4)


def test_a_context_beyond_the_model_is_served_by_nothing_and_named() -> None:
    demand = demand_of(found({"uncertain": {"context_tokens": {"low": 8192, "mid": 16384, "high": 200_000}}}))
    assert demand.infeasible_share == 0.3
    assert "131,072" in str(demand.worlds[2].unserved)


def test_more_doubt_about_the_load_never_costs_less_in_its_worst_world() -> None:
    """A higher load is never cheaper, whatever the candidate."""
    narrow, wide = (
        demand_of(found({"uncertain": {"workload.concurrency": {"low": 20, "mid": 64, "high": high}}}))
        for high in (100, 600)
    )
    before = {each.choice: each.by_world_usd for each in narrow.regretted}
    for each in wide.regretted:
        assert each.by_world_usd[:2] == before[each.choice][:2]
        assert (each.by_world_usd[2] or 0) >= (before[each.choice][2] or 0)


def test_workers_find_the_same() -> None:
    assert found({**LOADS, **GROWTH}, jobs=2) == found({**LOADS, **GROWTH})


PRICE = {"uncertain": {"price.usd_per_hour": {"low": 1, "mid": 2, "high": 3}}}


def test_a_price_that_is_not_known_is_one_devices() -> None:
    for more, gpus in ((PRICE, TRIED["accelerators"]), ({**PRICE, "price": {"usd_per_hour": 2}}, ("l40s", "h100-sxm"))):
        with pytest.raises(InputError, match=r"uncertain\.price\.usd_per_hour: is one price's figure"):
            found(more, accelerators=gpus)
    with pytest.raises(InputError, match="give one --gpu with its --price"):
        found(PRICE, accelerators=("l40s",))
    one = demand_of(found({**PRICE, "price": {"usd_per_hour": 2}}, accelerators=("l40s",), tp=(1,)))
    low, mid, high = one.regretted[0].by_world_usd
    assert low is not None
    assert (mid, high) == (2 * low, 3 * low)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"uncertain": {"workload.nonsense": {"low": 1, "mid": 2, "high": 4}}}, "nonsense"),
        ({"uncertain": {"model.name": {"low": 1, "mid": 2, "high": 4}}}, "only fields of workload"),
    ],
)
def test_what_cannot_vary_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        found(more)


def test_more_plans_than_a_search_makes_are_refused_before_any_is_made() -> None:
    intervals = {
        f"workload.{name}": {"low": 100, "mid": 200, "high": 300}
        for name in ("concurrency", "requests_per_month", "input_tokens.mean", "output_tokens.mean")
    }
    more = {"uncertain": intervals, "growth": {"per_month": "0.01", "months": 120}}
    with pytest.raises(InputError, match=r"24 choices x 81 worlds x 120 months = 233,280 plans"):
        found(more, kv_dtypes=("auto", "fp8"), max_num_seqs=(128, 256))


def test_growth_alone_says_each_month_of_the_least_regretted() -> None:
    """The worked number: the search's months are those of an estimate of the same deployment."""
    own = scenario("llama-3.1-8b", "l40s", {"workload": "chat", "growth": GROWTH["growth"]})
    assert isinstance(own.growth, Growth)
    months = plan_demand(own).growth
    one = demand_of(found({**GROWTH, "price": {"usd_per_hour": 1}}, accelerators=("l40s",), tp=(1,)))
    assert one.regretted[0].by_world_usd == (sum(filter(None, (each.monthly_usd for each in months)), Decimal(0)),)


def test_every_format_shows_it_and_reads_it_back(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps({"model": "llama-3.1-8b", "accelerator": "l40s", "workload": "chat", **LOADS, **GROWTH}))
    command = ["search", str(path), "--gpu", "l40s", "--gpu", "h100-sxm", "--tp", "1"]
    text, markdown, kept = (
        CliRunner().invoke(app, [*command, "--format", form]).stdout for form in ("text", "markdown", "json")
    )
    file = tmp_path / "found.json"
    file.write_text(kept, "utf-8")
    result = saved.read(file)
    assert result.kind == "planner search"
    demand = demand_of(result)
    for drawn in (text, markdown, CliRunner().invoke(app, ["report", str(file)]).stdout):
        assert "Least regret over 3 worlds, 3 months together" in drawn
        assert "The least regretted" in drawn
        for each in demand.regretted:
            assert f"{each.mean_usd:,}" in drawn
            assert all(f"{usd:,}" in drawn for usd in [world.least_usd for world in demand.worlds])
    plain = CliRunner().invoke(app, [*command, "--set", "growth=null", "--set", "uncertain={}"])
    assert "regret" not in plain.stdout


def test_nothing_is_the_least_regretted_of_what_serves_nothing() -> None:
    result = found({"growth": {"per_month": 10, "months": 9}}, tp=(1,))
    assert {(each.mean_usd, each.unserved_share) for each in demand_of(result).regretted} == {(None, 0.0)}
    (table, *_), lines = list(regret_tables(result, 10)), list(regret_lines(result))
    assert {tuple(row[2:]) for row in table.rows} == {("-", "-", "-")}
    assert lines == [
        "no candidate serves every month, such as the cheapest: workload: even 1,048,576 replicas do not serve this "
        "load"
    ]
