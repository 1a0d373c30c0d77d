"""`planner check`: what a plan must hold, and the exit code that says whether it does."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from planner import saved
from planner.cli import app
from planner.errors import InputError
from planner.gate import check, figures, requirement
from planner.plan import estimate
from planner.report import Report
from planner.simulate.asked import Asked, load_of
from planner.simulation import Fleet, simulate
from tests.scenarios import CHAT, example, report, scenario

LARGE = "examples/context-upgrade/32k.yaml"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["check", *arguments])


def test_the_worked_example_against_a_budget() -> None:
    assert run(LARGE, "--max-monthly-usd", "25700").exit_code == 0
    result = run(LARGE, "--max-monthly-usd", "25699.99", "--require", "devices<=12")
    assert result.exit_code == 3
    assert result.stdout.splitlines() == [
        "holds  a fleet serves the load within its objectives",
        "FAILS  cost.monthly_usd <= 25699.99: it is 25700.00",
        "holds  fleet.devices <= 12: it is 12",
    ]


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("per_1000_successful_usd==270.53", True),
        ("per_1000_successful_usd<270.53", False),
        ("cost.monthly_usd>=25700.00", True),
        ("spare_replicas>2", False),
        ("kv_cache.bytes_per_token == 131072", True),
    ],
)
def test_money_and_counts_are_compared_exactly(text: str, holds: bool) -> None:
    verdicts = check(estimate(example("32k")), [requirement(text)])
    assert verdicts[-1].holds is holds


def test_a_range_is_held_by_its_best_estimate_unless_an_end_is_named() -> None:
    found = report("llama-3.1-8b", overrides={"workload": CHAT})
    assert found.latency is not None
    best, high = found.latency.ttft_p95_s.best, found.latency.ttft_p95_s.high
    between = (best + high) / 2
    asked = [requirement(f"{name}<={between}") for name in ("ttft_p95_s", "ttft_p95_s.high", "latency.ttft_p95_s.low")]
    assert [verdict.holds for verdict in check(found, asked)] == [True, True, False, True]


def test_what_is_no_plan_fails_whatever_is_required() -> None:
    found = report("llama-3.1-8b", "l40s", {"workload": {**CHAT, "objectives": {"ttft_p95_s": "0.01"}}})
    verdicts = check(found, [])
    assert [verdict.holds for verdict in verdicts] == [False]
    assert "of prefill alone" in verdicts[0].text


def test_a_figure_that_a_report_lacks_does_not_hold() -> None:
    assert not check(estimate(example("16k")), [requirement("ttft_p95_s<=100")])[-1].holds


def test_a_simulated_fleet_that_misses_does_not_pass() -> None:
    planned = scenario("llama-3.1-8b", "h100-sxm", {"workload": {**CHAT, "concurrency": None, "arrivals_per_s": 10}})
    rates = {10: [True, True], 70: [True, False]}
    for per_s, expected in rates.items():
        load = load_of(planned, Asked(rate_per_s=per_s, requests=1000))
        verdicts = check(simulate(planned, load, Fleet(replicas=1)), [])
        assert [verdict.holds for verdict in verdicts] == expected
        assert verdicts[1].text.startswith("1 simulated replica")


def test_a_saved_report_is_held_without_planning_again(tmp_path: Path) -> None:
    path = tmp_path / "saved.yaml"
    path.write_text(saved.to_yaml(estimate(example("16k"))), "utf-8")
    result = run(str(path), "--require", "monthly_usd==14900", "--format", "json")
    assert result.exit_code == 0
    assert [each["holds"] for each in json.loads(result.stdout)] == [True, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft_p95<2", "no such figure in a report; nearest known: "),
        ("devices", "a figure, one of <=, >=, ==, <, > and a number are needed"),
        ("devices<=many", "many is not a number"),
        ("devices<=inf", "is not a finite number"),
        ("fits==1", "no such figure"),
        ("devices=<3", "a figure, one of"),
        ("__class__<3", "a figure, one of"),
    ],
)
def test_what_cannot_be_required_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        requirement(text)
    assert run(LARGE, "--require", text).exit_code == 2


def test_every_figure_can_be_required() -> None:
    found = estimate(example("32k"))
    names = dict(figures(Report))
    assert {"cost.monthly_usd", "latency.tpot_s.high", "fleet.billed_devices", "carry.misses"} & set(names) == {
        "cost.monthly_usd",
        "latency.tpot_s.high",
        "fleet.billed_devices",
    }
    for name in names:
        check(found, [requirement(f"{name}>=0")])
