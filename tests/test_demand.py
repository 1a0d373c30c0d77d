"""Demand that grows or is uncertain: months, worlds, and the fleet of least regret, by hand and by laws."""

from decimal import Decimal
from typing import Any

import pytest

from planner.demand import grown, plan_demand, regret, with_values
from planner.errors import InputError
from planner.inputs import Scenario
from planner.render import markdown
from planner.render.tables import growth_rows
from planner.render.text import draw, plain
from planner.report import Report
from tests.scenarios import CHAT, example, scenario


def planned(**changed: Any) -> Report:
    """The worked example: 12 requests a device, 20 % spares, $2.50 x 720 h = $1,800 a device and month, and $4,100."""
    return plan_demand(example("16k", changed))


def test_without_growth_or_doubt_it_is_the_plain_estimate() -> None:
    found = planned()
    assert (found.growth, found.demand) == ((), None)


def test_growth_month_by_month_by_hand() -> None:
    """60 active, a tenth more each month: 60, 66, 72.6, 79.86 take 5, 6, 7, 7 devices and 1, 2, 2, 2 spares."""
    found = planned(growth={"per_month": "0.1", "months": 4})
    assert [month.load for month in found.growth] == pytest.approx([1, 1.1, 1.21, 1.331])
    assert [month.active_replicas for month in found.growth] == [5, 6, 7, 7]
    assert [month.billed_devices for month in found.growth] == [6, 8, 9, 9]
    assert [month.monthly_usd for month in found.growth] == [Decimal(4100 + 1800 * n) for n in (6, 8, 9, 9)]


def test_a_load_that_outgrows_any_fleet_has_no_plan() -> None:
    """12 requests a device: 1,048,576 devices hold 12,582,912 requests, so x11 a month is too much in month 7."""
    found = planned(growth={"per_month": 10, "months": 120})
    assert [month.active_replicas for month in found.growth[:6]] == [-(-60 * 11**n // 12) for n in range(6)]
    assert {(month.active_replicas, month.reason) for month in found.growth[6:]} == {
        (None, "workload: even 1,048,576 replicas do not serve this load")
    }
    assert [row[1] for row in growth_rows(found)][4:8] == ["x14,641.00", "x161,051.00", "x1.77e+06", "x1.95e+07"]
    with pytest.raises(InputError, match="even 1,048,576 replicas do not serve"):
        planned(**{"workload.concurrency": 12_582_913})
    largest = planned(**{"workload.concurrency": 12_582_912}).fleet
    assert largest is not None
    assert largest.active_replicas == 1_048_576


def test_growth_scales_what_arrives_and_what_is_billed_per_request() -> None:
    base = example("16k", {"workload.arrivals_per_s": "0.5"})
    found = grown(base, Decimal("1.5")).workload
    assert (found.concurrency, found.arrivals_per_s, found.requests_per_month) == (90, Decimal("0.75"), 150_000)


def test_worlds_of_one_uncertain_load_by_hand() -> None:
    """12, 60 or 240 active: 1, 5 or 20 devices and 1, 1 or 4 spares, so $7,700, $14,900 or $47,300."""
    found = planned(uncertain={"workload.concurrency": {"low": 12, "mid": 60, "high": 240}}).demand
    assert found is not None
    assert [(w.weight, w.active_replicas, w.monthly_usd) for w in found.worlds] == [
        (0.3, 1, Decimal(7700)),
        (0.4, 5, Decimal(14900)),
        (0.3, 20, Decimal(47300)),
    ]
    assert (found.active_replicas_low, found.active_replicas_high) == (1, 20)
    assert (found.monthly_usd_low, found.monthly_usd_high) == (Decimal(7700), Decimal(47300))


def cost(active: int) -> Decimal:
    return Decimal(4100 + 1800 * (active + -(-active // 5)))


def test_the_fleet_of_least_regret_by_brute_force() -> None:
    found = planned(uncertain={"workload.concurrency": {"low": 12, "mid": 60, "high": 240}}).demand
    assert found is not None
    worlds = ((0.3, 1), (0.4, 5), (0.3, 20))

    def expected(active: int) -> float:
        return sum(weight * regret(cost(active), cost(need)) for weight, need in worlds)

    best = min(range(1, 21), key=lambda active: (expected(active), -active))
    assert found.least_regret_replicas == best
    assert found.least_regret_monthly_usd == cost(best)
    assert found.enough_share == pytest.approx(sum(weight for weight, need in worlds if need <= best))
    assert [w.regret for w in found.worlds] == pytest.approx([regret(cost(best), cost(n)) for _, n in worlds], abs=0.01)


def test_too_little_is_regretted_more_than_as_much_too_much() -> None:
    """By the published parameters: 1, 1.25 and a power of 1.2."""
    assert regret(Decimal(300), Decimal(200)) == pytest.approx(100**1.2)
    assert regret(Decimal(200), Decimal(300)) == pytest.approx(125**1.2)
    assert regret(Decimal(200), Decimal(200)) == 0


def test_two_uncertain_fields_make_nine_worlds_whose_probabilities_are_one() -> None:
    uncertain = {
        "workload.concurrency": {"low": 30, "mid": 60, "high": 90},
        "context_tokens": {"low": 16384, "mid": 32768, "high": 65536},
    }
    found = planned(uncertain=uncertain).demand
    assert found is not None
    assert len(found.worlds) == 9
    assert sum(world.weight for world in found.worlds) == pytest.approx(1)
    assert found.worlds[4].values == ("workload.concurrency=60", "context_tokens=32768")
    assert found.worlds[4].active_replicas == 10
    assert found.worlds[8].active_replicas == 30


def test_certainty_is_a_range_of_one() -> None:
    found = planned(uncertain={"workload.concurrency": {"low": 60, "mid": 60, "high": 60}}).demand
    assert found is not None
    assert found.active_replicas_low == found.active_replicas_high == found.least_regret_replicas == 5
    assert found.enough_share == 1
    assert all(world.regret == 0 for world in found.worlds)


def test_a_price_may_be_uncertain() -> None:
    found = planned(uncertain={"price.usd_per_hour": {"low": "2", "mid": "2.50", "high": "5"}}).demand
    assert found is not None
    assert [world.monthly_usd for world in found.worlds] == [
        Decimal(4100 + 720 * 6 * 2),
        Decimal(14900),
        Decimal(25700),
    ]
    assert found.least_regret_replicas == 5


def test_worlds_without_a_plan_are_counted() -> None:
    """At 24 GiB for the cache, 262,144 tokens of 128 KiB do not fit: the model allows 131,072."""
    fits = {"low": 16384, "mid": 32768, "high": 131072}
    assert planned(uncertain={"context_tokens": fits}).demand is not None
    objectives = {"ttft_p95_s": "0.2"}
    workload = {
        "name": "w",
        "context_tokens": 16384,
        "input_tokens": {"mean": 500, "max": 1000},
        "output_tokens": {"mean": 100, "max": 1000},
        "concurrency": 10,
        "objectives": objectives,
        "source": "test",
    }
    longer = {"workload.input_tokens.max": {"low": 500, "mid": 1000, "high": 14000}}
    found = plan_demand(scenario("llama-3.1-8b", overrides={"workload": workload, "uncertain": longer})).demand
    assert found is not None
    assert found.infeasible_share == pytest.approx(0.3)
    assert found.worlds[2].active_replicas is found.worlds[2].regret is None


def texts(report: Report) -> tuple[str, str]:
    """As text with its lines joined, and as Markdown."""
    return " ".join(plain(draw(report, 200, brief=True), 2000).split()), markdown.draw(report)


ARRIVING: dict[str, Any] = {
    "workload": {**CHAT, "concurrency": None, "arrivals_per_s": 100, "requests_per_month": 10**6}
}


def test_a_month_that_no_fleet_serves_is_an_entry_with_its_reason() -> None:
    """100 a second, and eleven times as many each month: 2^20 replicas do not do after some months."""
    growth = {"per_month": 10, "months": 8}
    found = plan_demand(scenario("llama-3.1-8b", overrides={**ARRIVING, "growth": growth}))
    assert found.fleet is not None
    planned_months = [month.active_replicas is not None for month in found.growth]
    assert planned_months == sorted(planned_months, reverse=True)
    assert (planned_months[0], planned_months[-1]) == (True, False)
    reasons = {month.reason for month in found.growth}
    assert reasons == {None, "workload: even 1,048,576 replicas do not serve this load"}
    first = planned_months.index(False) + 1
    for text in texts(found):
        assert f"no plan for month {first} to 8: workload: even 1,048,576 replicas do not serve this load" in text


def test_a_world_that_cannot_be_is_an_entry_with_its_reason() -> None:
    """131,072 positions at most; and requests of 1,366 tokens on average are over a context of 1,000."""
    uncertain = {"workload.context_tokens": {"low": 1000, "mid": 16384, "high": 262_144}}
    report = plan_demand(scenario("llama-3.1-8b", overrides={"workload": CHAT, "uncertain": uncertain}))
    found = report.demand
    assert found is not None
    assert [world.active_replicas for world in found.worlds] == [None, 3, None]
    low, mid, high = (world.reason or "" for world in found.worlds)
    assert "mean input and output together are 1,366 tokens, over context_tokens 1,000" in low
    assert mid == ""
    assert "131,072" in high
    assert found.infeasible_share == pytest.approx(0.6)
    assert (found.least_regret_replicas, found.enough_share) == (3, 0.4)
    for text in texts(report):
        assert text.replace("\\_", "_").count("no plan for workload.context_tokens=") == 2
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_of_worlds_none_of_which_has_a_plan_the_reasons_are_left() -> None:
    uncertain = {"context_tokens": {"low": 200_000, "mid": 300_000, "high": 400_000}}
    report = plan_demand(scenario("llama-3.1-8b", overrides={"workload": CHAT, "uncertain": uncertain}))
    found = report.demand
    assert found is not None
    assert (found.infeasible_share, found.enough_share) == (1, 0)
    assert (found.active_replicas_low, found.least_regret_replicas, found.monthly_usd_high) == (None, None, None)
    assert all(world.reason for world in found.worlds)
    assert all("3 worlds, none of which has a plan" in text for text in texts(report))


def test_values_that_only_go_together_are_set_together() -> None:
    """A mean over the context before it is raised as well, whichever comes first."""
    base = scenario("llama-3.1-8b", overrides={"workload": CHAT})
    values = {"workload.input_tokens.mean": Decimal(20_000), "workload.input_tokens.max": Decimal(30_000)}
    found = with_values(base, {**values, "workload.context_tokens": Decimal(32_768)}).workload
    assert found.input_tokens is not None
    assert (found.input_tokens.mean, found.input_tokens.max, found.context_tokens) == (20_000, 30_000, 32_768)


@pytest.mark.parametrize(
    ("uncertain", "message"),
    [
        ({"workload.concurrency": {"low": 3, "mid": 2, "high": 4}}, "must ascend"),
        (
            {"model.config.num_hidden_layers": {"low": 1, "mid": 2, "high": 4}},
            "only fields of workload, price and spares",
        ),
        ({"workload.nonsense": {"low": 1, "mid": 2, "high": 4}}, "nonsense"),
        ({"workload.concurrency": {"low": "0.5", "mid": 2, "high": 4}}, "concurrency"),
        ({"workload.prefix.shared.tokens": {"low": 1, "mid": 2, "high": 4}}, "shared is not given"),
        ({f"workload.f{i}": {"low": 1, "mid": 2, "high": 4} for i in range(5)}, "uncertain"),
        ({"workload.concurrency": 3}, "uncertain"),
    ],
)
def test_what_cannot_vary_is_refused(uncertain: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        planned(uncertain=uncertain)


def test_a_value_is_put_where_its_path_says() -> None:
    base: Scenario = scenario("llama-3.1-8b")
    found = with_values(base, {"workload.concurrency": Decimal(7), "context_tokens": Decimal(256)})
    assert (found.workload.concurrency, found.context) == (7, 256)
    assert base.workload.concurrency == 1


def test_the_months_requests_and_the_peak_over_their_mean_say_the_load() -> None:
    """2,628,000 requests in 730 hours are one a second; the peak is three."""
    workload = {
        "name": "w",
        "context_tokens": 4096,
        "input_tokens": {"mean": 500},
        "output_tokens": {"mean": 100},
        "requests_per_month": 2_628_000,
        "peak_to_mean": 3,
        "source": "test",
    }
    found = scenario("llama-3.1-8b", overrides={"workload": workload})
    assert found.arrivals_per_s == 3
    report = plan_demand(found)
    assert report.latency is not None
    assert report.latency.arrivals_per_s == 3
    with pytest.raises(InputError, match="requests_per_month with peak_to_mean also says it"):
        scenario("llama-3.1-8b", overrides={"workload": {**workload, "peak_to_mean": None}})


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_no_figure_is_cut_to_another_on_a_narrow_terminal(width: int) -> None:
    found = planned(
        growth={"per_month": "0.1", "months": 3},
        uncertain={
            "workload.concurrency": {"low": 48, "mid": 60, "high": 96},
            "price.usd_per_hour": {"low": 2, "mid": "2.5", "high": 4},
        },
    )
    whole = set(plain(draw(found, 400, brief=True), 400).split())
    figures = {word for word in whole if word[0] in "$x" and word[-1].isdigit()}
    drawn = plain(draw(found, width, brief=True), width)
    tables = drawn[drawn.index("\nGrowth") : drawn.index(" worlds:")]
    shown = {word for word in tables.split() if word.startswith(("$", "x")) and "…" not in word}
    assert shown <= figures
    assert width < 60 or ".concu" in tables.replace("\n", "")
