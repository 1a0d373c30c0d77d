"""What changed between two reports, by how much and why."""

from itertools import permutations
from typing import Any

import pytest

from planner.compare import _LABELS, changed, compare
from planner.demand import plan_demand
from planner.plan import estimate
from planner.render import markdown
from planner.render.rows import CARRY_ROWS, DEMAND_ROWS, ROWS
from planner.render.tables import rows_of, value
from planner.report import Change, Report
from planner.units import GIB
from tests.scenarios import CHAT, example, report

TIGHT = {"context_tokens": 65_536, "engine_options.kv_cache_bytes": 4 * GIB}
GROWN: dict[str, Any] = {
    "growth": {"per_month": "0.1", "months": 4},
    "uncertain": {"workload.concurrency": {"low": 12, "mid": 60, "high": 240}},
}
STEEPER: dict[str, Any] = {**GROWN, "growth": {"per_month": "0.2", "months": 6}}
REPORTS: dict[str, Report] = {
    "16k": estimate(example("16k")),
    "32k": estimate(example("32k")),
    "vllm": report("llama-3.1-8b", overrides={"parallelism.tp": 2, "workload.requests_per_month": 1000}),
    "no room": report("llama-3.1-8b", overrides=TIGHT),
    "too big": report("llama-3.1-70b"),
    "grown": plan_demand(example("16k", GROWN)),
    "steeper": plan_demand(example("32k", STEEPER)),
}


def with_lines(*lines: tuple[str, int]) -> Report:
    """The 16K example with other monthly lines."""
    return estimate(example("16k", {"other_monthly": [{"name": name, "usd": usd} for name, usd in lines]}))


def lines_that_moved(old: Report, new: Report) -> dict[str, Change]:
    return {change.label: change for change in changed(old, new) if change.path == "cost.lines"}


@pytest.mark.parametrize(("one", "other"), list(permutations(REPORTS, 2)))
def test_exactly_the_rows_that_differ_are_listed_and_backwards_is_the_mirror(one: str, other: str) -> None:
    old, new = REPORTS[one], REPORTS[other]
    forward, back = changed(old, new), changed(new, old)
    rows = [row.path for row in rows_of((old, new)) if value(old, row.path) != value(new, row.path)]
    assert [change.path for change in forward if change.path != "cost.lines"] == rows
    mirrored = {(c.path, c.label): (c.new, c.old) for c in back}
    assert {(c.path, c.label): (c.old, c.new) for c in forward} == mirrored
    signs = {(c.path, c.label): c.sign for c in back}
    assert all(signs[c.path, c.label] == {"+": "-", "-": "+", "~": "~"}[c.sign] for c in forward)
    assert all(change.old != change.new for change in forward)
    assert all(change.why for change in forward if change.sign == "~")  # a line that comes or goes may need no reason


@pytest.mark.parametrize("name", list(REPORTS))
def test_a_report_does_not_differ_from_itself(name: str) -> None:
    comparison = compare([REPORTS[name], REPORTS[name]])
    assert comparison.changes == ()
    same = "the same number of devices and the same cost" if REPORTS[name].fits else "the last does not fit"
    assert comparison.verdict.startswith(same)


def test_reasons_name_what_moved() -> None:
    why = {change.path: change.why for change in changed(REPORTS["16k"], REPORTS["32k"])}
    assert why["scenario.context_tokens"] == "given"
    assert why["kv_cache.bytes_per_request"] == "blocks per request x2.00"
    assert why["capacity.requests_per_replica"] == "blocks per request x2.00"
    assert why["fleet.active_replicas"] == "slots per replica /2.00"
    assert why["fleet.devices"] == "active replicas x2.00; spare replicas x2.00"


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("16k", "32k", "+$10,800.00 a month (+72 %), +6 devices; binds now: kv_memory"),
        ("32k", "16k", "$-10,800.00 a month"),
        ("16k", "too big", "the last does not fit: the model does not fit"),
        ("no room", "vllm", "the first does not fit, the last does; binds now: "),
    ],
)
def test_verdicts(old: str, new: str, verdict: str) -> None:
    expected = verdict.replace("$-", "-$")
    assert compare([REPORTS[old], REPORTS[new]]).verdict.startswith(expected)


def test_a_verdict_names_devices_that_are_billed_but_not_used() -> None:
    """4 GPUs of one instance against 5, which take two instances of 4."""
    price = {"usd_per_hour": 4, "devices": 4, "instance": "four"}
    old, new = (report("qwen3-0.6b", overrides={"price": price, "spares": {"replicas": spares}}) for spares in (3, 4))
    assert compare([old, new]).verdict.startswith("+$2,920.00 a month (+100 %), +1 device (+4 devices billed); binds")


def test_monthly_lines_come_go_and_move() -> None:
    old, new = with_lines(("support", 100), ("audit", 50)), with_lines(("support", 150), ("traffic", 20))
    moved = lines_that_moved(old, new)
    assert {label: (c.sign, c.old, c.new) for label, c in moved.items()} == {
        "support": ("~", "$100.00", "$150.00"),
        "audit": ("-", "$50.00", "-"),
        "traffic": ("+", "-", "$20.00"),
    }
    assert (moved["support"].difference, moved["support"].percent) == ("+$50.00", "+50 %")


def test_monthly_lines_of_one_name_are_one_amount() -> None:
    old, new = with_lines(("support", 100), ("support", 50)), with_lines(("support", 110), ("support", 50))
    assert (lines_that_moved(old, new)["support"].old, lines_that_moved(old, new)["support"].new) == (
        "$150.00",
        "$160.00",
    )


def test_a_negative_budget_has_no_percentage_and_no_factor() -> None:
    negative: dict[str, Any] = {c.path: c for c in changed(REPORTS["too big"], REPORTS["vllm"])}
    assert REPORTS["too big"].memory.kv_budget_bytes < 0
    assert negative["memory.kv_budget_bytes"].percent == ""
    assert negative["capacity.num_blocks"].why.startswith("KV budget -")
    assert " -> " in negative["capacity.num_blocks"].why


def test_three_reports_stand_side_by_side_without_changes() -> None:
    comparison = compare([REPORTS["16k"], REPORTS["32k"], REPORTS["vllm"]])
    assert len(comparison.reports) == 3
    assert comparison.changes == ()


def test_every_reason_has_a_label() -> None:
    rows = (*ROWS, *CARRY_ROWS, *DEMAND_ROWS)
    named = {row.path for row in rows} | _LABELS.keys()
    assert {parent for row in rows for parent in row.parents} <= named


def test_other_lengths_are_why_tokens_cost_what_they_do() -> None:
    workload = {**CHAT, "requests_per_month": 10**6, "prefix": {"shared_tokens": 500, "request_share": 1}}
    longer = {**workload, "input_tokens": {"mean": 2310}, "output_tokens": {"mean": 422}, "prefix": None}
    old, new = (report("llama-3.1-8b", overrides={"workload": each}) for each in (workload, longer))
    why = {change.path: change.why for change in changed(old, new)}
    assert "mean prompt x2.00" in why["cost.per_1m_input_tokens_usd"]
    assert "mean answer x2.00" in why["cost.per_1m_output_tokens_usd"]
    assert "cached prompt tokens" in why["latency.ttft_mean_s"]


def test_why_a_commitment_costs_something_else() -> None:
    old, new = (example("16k", {"commitment": {"devices": 4, "price": usd}}) for usd in (1, 2))
    moved = {change.label: change for change in changed(estimate(old), estimate(new))}
    assert moved["committed devices"].difference == "+$2,880.00"  # 4 x 720
    assert "commitment 4 devices at $1.00 per device-hour" in moved["committed devices"].why
    assert "devices" not in moved
    alone = {change.label: change for change in changed(REPORTS["16k"], estimate(new))}
    assert (alone["committed devices"].sign, alone["  of them committed"].new) == ("+", "4")


def test_growth_and_uncertain_demand_by_hand() -> None:
    """A tenth more each month: 6, 8, 9 and 9 devices at $1,800, and $4,100; worlds of $7,700, $14,900 and $47,300."""
    moved = {change.path: change for change in changed(REPORTS["16k"], REPORTS["grown"])}
    assert {path: change.new for path, change in moved.items() if path != "demand.enough_share"} == {
        "last_month.month": "4",
        "last_month.load": "1.33",
        "last_month.active_replicas": "7",
        "last_month.monthly_usd": "$20,300.00",
        "growth_usd": "$74,000.00",
        "demand.monthly_usd_low": "$7,700.00",
        "demand.monthly_usd_high": "$47,300.00",
        "demand.least_regret_replicas": "5",
        "demand.least_regret_monthly_usd": "$14,900.00",
        "demand.infeasible_share": "0.00 %",
    }
    why = {change.path: change.why for change in changed(REPORTS["grown"], REPORTS["steeper"])}
    assert "months x1.50" in why["growth_usd"]
    assert "load in the last x1.87" in why["last_month.active_replicas"]
    assert why["demand.monthly_usd_high"] == "active replicas x2.00; monthly cost x1.72"
    drawn = markdown.draw(compare([REPORTS["grown"], REPORTS["steeper"]])) + markdown.draw(REPORTS["grown"])
    assert drawn.count("cost of all months") == 2  # in the table and what changed, and not in one report alone
