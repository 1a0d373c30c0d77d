"""Money of a report, each figure worked out by hand; the worked example's fleet has 5 active replicas and 1 spare."""

from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any

import pytest

from planner.errors import InputError
from planner.plan import estimate
from planner.report import Cost, Fleet, Report
from tests.scenarios import CHAT, example, report

NODE = {
    "provider": "own",
    "instance": "node",
    "devices": 8,
    "term": "contract",
    "usd_per_hour": 16,
    "as_of": "2026-11-01",
}
"""$2.00 per device-hour."""


def planned(**overrides: Any) -> tuple[Report, Fleet, Cost]:
    """The 16K example with other fields; __ stands for a dot."""
    found = estimate(example("16k", {name.replace("__", "."): value for name, value in overrides.items()}))
    assert found.fleet is not None
    assert found.cost is not None
    return found, found.fleet, found.cost


def lines(cost: Cost) -> dict[str, str]:
    return {line.name: f"{line.monthly_usd} = {line.text}" for line in cost.lines}


# Terms


def test_list_effective_and_billed_cost_are_three_figures() -> None:
    """6 devices of an 8-device node at $16, $40 at list, 720 hours."""
    _, fleet, cost = planned(price={**NODE, "list_usd_per_hour": 40})
    assert (fleet.devices, fleet.billed_devices) == (6, 8)
    assert cost.list_usd == Decimal("21600.00")  # 6 x 40 / 8 x 720
    assert cost.effective_usd == Decimal("8640.00")  # 6 x 16 / 8 x 720
    assert cost.billed_usd == Decimal("11520.00")  # 16 x 720
    assert cost.monthly_usd == cost.billed_usd + cost.other_monthly_usd == Decimal("15620.00")


def test_an_on_demand_price_is_the_list_price_and_of_others_it_is_not_guessed() -> None:
    assert planned()[2].list_usd is None
    _, _, cost = planned(price={"usd_per_hour": 2, "term": "on_demand"})
    assert cost.list_usd == cost.effective_usd == cost.billed_usd == Decimal("8640.00")
    assert (
        planned(price={"usd_per_hour": 2, "term": "on_demand"}, commitment={"devices": 1, "price": 1})[2].list_usd
        is None
    )


def test_a_base_on_a_commitment_and_the_peak_at_the_price() -> None:
    """4 devices at $1.25 all hours; of the 6, 2 at $2.50 for 40 % of 720 hours."""
    found, fleet, cost = planned(commitment={"devices": 4, "price": 1.25, "peak_hours_share": "0.4"})
    assert (fleet.devices, fleet.billed_devices, fleet.committed_devices) == (6, 6, 4)
    assert lines(cost) == {
        "committed devices": "3600.00 = 4 devices x $1.25/h x 720 h",
        "devices": "1440.00 = 2 devices x $2.50/h x 720 h x 0.4",
        "other monthly allowances": "4100.00 = given",
    }
    assert cost.monthly_usd == Decimal("9140.00")
    assert any("held for 40.0% of the hours: in the others it serves alone" in each for each in found.assumptions)
    assert found.scenario.commitment == "4 devices at $1.25 per device-hour, given"


def test_a_commitment_larger_than_the_fleet_is_billed_whole() -> None:
    """10 devices are 2 nodes; 16 are billed, 6 used."""
    found, fleet, cost = planned(commitment={"devices": 10, "price": NODE})
    assert (fleet.devices, fleet.billed_devices, fleet.committed_devices, fleet.nodes) == (6, 16, 16, 2)
    assert lines(cost)["committed devices"] == "23040.00 = 2 x node of 8 x $16.00/h x 720 h"
    assert "devices" not in lines(cost)
    assert (cost.effective_usd, cost.billed_usd) == (Decimal("8640.00"), Decimal("23040.00"))
    assert {
        "node of 8 is sold whole: a commitment to 10 devices is billed as 16",
        "the commitment is larger than the fleet: all 16 devices are billed",
        "16 devices are billed and 6 used; 10 stand idle",
    } <= set(found.warnings)


def test_an_instance_of_which_none_is_billed_is_not_named_as_sold_whole() -> None:
    """The fleet runs on the commitment alone: its price is of no instance that is billed."""
    found, fleet, _ = planned(commitment={"devices": 8, "price": NODE}, price={**NODE, "instance": "dearer"})
    assert fleet.billed_devices == fleet.committed_devices == 8
    assert "8 devices are billed and 6 used; 2 stand idle" in found.warnings
    assert not any("dearer of 8 is sold whole" in each for each in found.warnings)


def test_replicas_that_do_not_fit_on_what_is_left_of_a_commitment_are_beyond_it() -> None:
    """Replicas of 2 on 5 committed devices: 2 fit, and 4 of 6 take 8 devices more; one committed device is idle."""
    _, fleet, cost = planned(commitment={"devices": 5, "price": 1}, parallelism__tp=2, price=2)
    replicas = fleet.active_replicas + fleet.spare_replicas
    assert fleet.billed_devices == 5 + (replicas - 2) * 2
    assert cost.billed_usd - cost.effective_usd == 720  # the idle device at $1


@pytest.mark.parametrize(
    ("commitment", "problem"),
    [
        ({"devices": 0, "price": 1}, "commitment.devices"),
        ({"devices": 2**60, "price": 1}, "commitment.devices"),
        ({"devices": 1}, "commitment.price"),
        ({"devices": 1, "price": True}, "commitment.price"),
        ({"devices": 1, "price": [1]}, "commitment.price"),
        ({"devices": 1, "price": float("inf")}, "commitment.price"),
        ({"devices": 1, "price": "none/such"}, "has no listed price|is not listed"),
        ({"devices": 1, "price": "none.yaml"}, "none.yaml: cannot be read"),
        ({"devices": 1, "price": 1, "peak_hours_share": 0}, "commitment.peak_hours_share"),
        ({"devices": 1, "price": 1, "peak_hours_share": 1.5}, "commitment.peak_hours_share"),
        ({"devices": 1, "price": 1, "hours": 1}, "commitment.hours"),
        ([], "commitment"),
        ("spot", "commitment"),
    ],
)
def test_a_commitment_that_cannot_be_read_is_refused(commitment: object, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        planned(commitment=commitment)


# Success


def test_retries_are_load_and_cost_nothing_by_themselves() -> None:
    """100,000 requests of which 5 % fail and are each tried twice more: 10,000 retries."""
    plain = planned()[2]
    found, _, cost = planned(workload__retries_per_failure=2)
    assert (plain.retried_requests, cost.retried_requests) == (0, 10_000)
    assert cost.model_copy(update={"retried_requests": 0}) == plain  # concurrency sizes this fleet
    assert found.scenario.requests_per_month == 100_000
    assert (cost.per_1000_submitted_usd, cost.per_1000_successful_usd) == (Decimal("149.00"), Decimal("156.84"))


def real(overrides: dict[str, Any] | None = None) -> tuple[Report, Fleet, Cost]:
    """A model whose speed is predicted, at $2.00 per device-hour; 50 requests a second of 1,155 and 211 tokens."""
    given = {"workload": CHAT, "price.usd_per_hour": 2, "workload.arrivals_per_s": 50, "workload.concurrency": None}
    found = report("llama-3.1-8b", overrides=given | {"workload.requests_per_month": 10**7} | (overrides or {}))
    assert found.fleet is not None
    assert found.cost is not None
    return found, found.fleet, found.cost


def test_retries_are_as_many_more_arrivals() -> None:
    """Each request is 1 + 3 x 0.2 = 1.6 attempts."""
    retried, fleet, cost = real({"workload.success_share": "0.8", "workload.retries_per_failure": 3})
    more, larger, _ = real({"workload.arrivals_per_s": 80, "workload.requests_per_month": 16 * 10**6})
    assert (retried.latency, fleet, retried.needs) == (more.latency, larger, more.needs)
    assert cost.retried_requests == 6 * 10**6
    assert str(retried.scenario.arrivals_per_s) == "50"


def test_success_is_to_end_well_and_to_begin_in_time() -> None:
    found, _, cost = real({"workload.success_share": "0.9", "workload.objectives.ttft_p95_s": "0.5"})
    assert found.latency is not None
    assert 0.95 <= (found.latency.ttft_attained_share or 0) < 1
    assert cost.in_time_share == Decimal(str(found.latency.ttft_attained_share))
    successful = 10**7 * Decimal("0.9") * cost.in_time_share
    assert cost.per_1000_successful_usd == round(cost.monthly_usd / successful * 1000, 2)
    assert cost.per_1000_submitted_usd == round(cost.monthly_usd / 10**7 * 1000, 2)
    assert real({"workload.success_share": "0.9"})[2].in_time_share == 1


@pytest.mark.parametrize("retries", [-1, "NaN", 10**6, True, None, "many"])
def test_retries_that_are_no_number_are_refused(retries: object) -> None:
    with pytest.raises(InputError, match=r"workload\.retries_per_failure"):
        planned(workload__retries_per_failure=retries)


# Tokens, usage and an API


def test_input_and_output_tokens_bear_the_whole_bill_apart() -> None:
    """10 million requests of 1,155 and 211 tokens."""
    found, _, cost = real()
    assert found.latency is not None
    step, token = (Decimal(str(x)) for x in (found.latency.step.seconds, found.latency.tpot_s.best))
    share = Decimal(str(cost.prefill_share))
    assert share == round((token - step) / token, 6)
    assert cost.per_1m_input_tokens_usd == round(cost.monthly_usd * share / 11_550, 2)
    assert cost.per_1m_output_tokens_usd == round(cost.monthly_usd * (1 - share) / 2_110, 2)


def test_the_cost_of_what_is_used_is_not_that_of_what_is_held() -> None:
    found, fleet, cost = real()
    assert found.latency is not None
    replica_seconds = 10**7 * 211 / found.latency.saturated_tokens_per_s.best
    assert cost.month_utilisation == pytest.approx(replica_seconds / (fleet.billed_devices * 730 * 3600), rel=1e-5)
    assert cost.usage_usd == round(cost.monthly_usd * Decimal(str(cost.month_utilisation)), 2)
    assert cost.usage_usd < cost.monthly_usd
    half = real({"workload.requests_per_month": 5 * 10**6})[2]
    assert half.month_utilisation == pytest.approx((cost.month_utilisation or 0) / 2, rel=1e-5)
    assert half.monthly_usd == cost.monthly_usd  # the reservation is paid all the same


def test_capacity_that_a_commitment_leaves_too_small_is_warned_of() -> None:
    peak = {"commitment": {"devices": 1, "price": 1, "peak_hours_share": "0.01"}}
    found, _, cost = real({**peak, "workload.requests_per_month": 10**8})
    assert (cost.month_utilisation or 0) > 1
    needed = f"the month's requests need {cost.month_utilisation:.2f} times the capacity that is billed"
    assert needed in found.warnings


def test_without_a_month_or_a_speed_tokens_have_no_cost_and_a_warning_says_so() -> None:
    found, _, cost = real({"workload.requests_per_month": None})
    none = (cost.prefill_share, cost.per_1m_input_tokens_usd, cost.per_1m_output_tokens_usd, cost.usage_usd)
    assert none == (None, None, None, None)
    assert "the workload has no requests_per_month: cost per request and token is not given" in found.warnings
    found, _, cost = planned()
    assert (cost.per_1m_input_tokens_usd, cost.per_1m_output_tokens_usd, cost.month_utilisation) == (None, None, None)
    assert "cost per input and output token is not given: it follows from how long both take" in found.warnings


API = {"usd_per_1m_input_tokens": 2, "usd_per_1m_output_tokens": 10, "as_of": "2026-11-01", "source": "its price page"}


def test_break_even_with_an_api_is_where_its_bill_is_the_whole_of_ours() -> None:
    """10,240 tokens at $2 and 512 at $10 a million are $0.0256 a request: $14,900 / 0.0256 = 582,031.25."""
    found, _, cost = planned(api_price=API)
    assert cost.api is not None
    assert cost.api.break_even_requests == 582_032
    assert cost.api.monthly_usd == Decimal("2560.00")  # 100,000 x 0.0256
    assert cost.api.most_requests is None
    reservation = "the API is compared with the reservation, the whole monthly cost, which is paid whatever is served"
    assert reservation in found.assumptions
    assert any(each.what.startswith("API price, the API: $2.00 in and $10.00 out") for each in found.sources)
    retried = planned(api_price=API, workload__retries_per_failure=5)[2].api  # 1.25 attempts a request
    assert retried is not None
    assert (retried.break_even_requests, retried.monthly_usd) == (465_625, Decimal("3200.00"))


def test_a_break_even_beyond_the_fleet_is_none() -> None:
    """A cent a million: 1,366 tokens are $0.00001366 a request."""
    cheap = {"usd_per_1m_input_tokens": "0.01", "usd_per_1m_output_tokens": "0.01", "as_of": "2026-11-01"}
    found, fleet, cost = real({"api_price": cheap})
    assert found.latency is not None
    assert cost.api is not None
    each = found.latency.saturated_tokens_per_s.best / 211
    assert cost.api.most_requests == int(fleet.active_replicas * each * 730 * 3600)
    assert cost.api.break_even_requests == ceil(Fraction(cost.monthly_usd) / Fraction("0.00001366"))
    assert cost.api.break_even_requests > cost.api.most_requests
    assert any(warning.startswith("this fleet never breaks even with the API") for warning in found.warnings)


def test_an_api_needs_lengths_and_its_price_ages() -> None:
    with pytest.raises(InputError, match="api_price needs workload"):
        planned(api_price=API, workload__output_tokens=None)
    found, _, _ = planned(api_price=API, priced_on="2027-11-01")
    assert any(
        warning.startswith("the price of the API is stale: as of 2026-11-01, 365 days") for warning in found.warnings
    )
    found, _, _ = planned(api_price={**API, "as_of": None})
    assert "the price of the API is undated: treat it as stale" in found.warnings


@pytest.mark.parametrize(
    "change",
    [
        {"usd_per_1m_input_tokens": 0},
        {"usd_per_1m_output_tokens": "-1"},
        {"usd_per_1m_output_tokens": None},
        {"per": 1},
    ],
)
def test_an_api_price_that_cannot_be_read_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"api_price\\.{next(iter(change))}"):
        planned(api_price={**API, **change})


# A shared prefix

SHARED = {"workload.prefix": {"shared_tokens": 3000, "request_share": 1}, "workload.input_tokens": {"mean": 3500}}


def test_reuse_is_money_where_fewer_replicas_serve() -> None:
    """The same load without the prefix is the plan of that load; devices are $2.00 for 730 hours."""
    found, fleet, cost = real(SHARED)
    plain, larger, dearer = real({**SHARED, "workload.prefix": None})
    assert found.prefix is not None
    assert plain.prefix is None
    assert found.prefix.saved_positions_per_month == 10**7 * 3000
    assert found.prefix.replicas_without == larger.active_replicas > fleet.active_replicas
    saved = (larger.billed_devices - fleet.billed_devices) * 1460
    assert found.prefix.saved_monthly_usd == dearer.monthly_usd - cost.monthly_usd == saved
    replicas = f"{fleet.active_replicas} active replicas with it, {larger.active_replicas} without"
    assert found.prefix.money == f"${saved:,}.00 a month: {replicas}"


def test_reuse_of_a_fleet_that_memory_sizes_is_no_money() -> None:
    asked = {**SHARED, "workload.arrivals_per_s": None, "workload.concurrency": 500}
    found, fleet, _ = real(asked)
    assert found.prefix is not None
    assert (found.prefix.saved_monthly_usd, found.prefix.replicas_without) == (None, fleet.active_replicas)
    assert found.prefix.money.startswith(f"none: {fleet.active_replicas} active replicas with or without it: KV memory")
    assert found.prefix.saved_positions_per_month == 10**7 * 3000


def test_reuse_that_leaves_the_same_instances_is_no_money() -> None:
    node = {"instance": "node", "devices": 4096, "usd_per_hour": 8192, "as_of": "2026-11-01"}
    found, fleet, _ = real({**SHARED, "price": node})
    assert found.prefix is not None
    assert (found.prefix.replicas_without or 0) > fleet.active_replicas
    assert found.prefix.saved_monthly_usd is None
    assert found.prefix.money.endswith("without, and as many devices are billed")


def test_without_speed_no_saving_is_claimed() -> None:
    found, _, _ = planned()
    assert found.prefix is not None
    assert found.prefix.money == "none is claimed: speed is not predicted, and memory holds each request whole"
    off = planned(engine_options__prefix_caching=False)[0]
    assert off.prefix is None


def test_a_load_that_only_reuse_can_serve() -> None:
    """3,500 tokens take longer to prefill than the limit; the 500 that are not cached do not."""
    lengths = {"workload.input_tokens": {"mean": 3500, "max": 3500}, "workload.objectives.ttft_p95_s": "0.09"}
    found = real({**SHARED, **lengths})[0]
    assert found.prefix is not None
    assert (found.prefix.replicas_without, found.prefix.saved_monthly_usd) == (None, None)
    assert found.prefix.money.startswith("without it no fleet serves the load: p95 TTFT is ")
