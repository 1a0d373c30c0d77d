"""Money of a report, each figure worked out by hand; the worked example's fleet has 5 active replicas and 1 spare."""

from decimal import Decimal
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
