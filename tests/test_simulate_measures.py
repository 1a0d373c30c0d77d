"""What a simulation measures, and what it concludes from it."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.report import Report
from planner.simulate.checks import Seen, checks_of
from planner.simulate.hashes import Parts
from planner.simulate.measures import (
    MOST_POINTS,
    MOST_SCOPES,
    OTHER_SCOPES,
    Limits,
    Meter,
    Point,
    Series,
)
from planner.simulate.outcome import _saturation
from planner.simulate.quantiles import GAPS_PER_S, Gaps
from planner.simulate.requests import Request
from planner.simulate.run import Run
from tests.scenarios import CHAT, report

ASKED = {**CHAT, "concurrency": None, "arrivals_per_s": 10}


@given(st.lists(st.tuples(st.floats(1e-4, 5.0), st.integers(1, 50)), min_size=1, max_size=60), st.floats(0.01, 0.99))
def test_gaps_have_the_percentiles_and_the_mean_of_all_of_them(
    given_gaps: list[tuple[float, int]], share: float
) -> None:
    gaps = Gaps()
    for seconds, count in given_gaps:
        gaps.add(seconds, count)
    every = sorted(seconds for seconds, count in given_gaps for _ in range(count))
    below = sum(seconds <= gaps.at(share) + 1 / GAPS_PER_S for seconds in every)
    assert below >= share * len(every)
    above = sum(seconds >= gaps.at(share) - 1 / GAPS_PER_S for seconds in every)
    assert above >= (1 - share) * len(every)
    assert gaps.mean == pytest.approx(sum(every) / len(every), abs=1 / GAPS_PER_S)


def test_no_gaps_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no gaps"):
        Gaps().at(0.5)


@given(st.floats(0, 1e7))
def test_a_series_stays_short_and_even(end_s: float) -> None:
    series = Series()
    while series.next_s <= end_s:
        series.add(Point(series.next_s, 0, 0, 0.0, 0, 0))
    assert len(series.points) <= MOST_POINTS
    assert {after.time_s - before.time_s for before, after in pairwise(series.points)} <= {series.every_s}
    assert not series.points or series.points[-1].time_s > end_s - 2 * series.every_s


def run_of(scope: str = "", **changed: Any) -> Run:
    run = Run(Request(1.0, 100, 11, (1,), scope), 1.0, Parts((1,), None, 0))
    run.started_s, run.first_s, run.end_s, run.cached = 1.5, 2.0, 4.0, 96
    for name, value in changed.items():
        setattr(run, name, value)
    return run


def test_a_request_is_measured_as_the_terms_are_defined() -> None:
    meter = Meter(Limits(ttft_s=1.0, tpot_s=0.2))
    meter.done([run_of()])
    meter.count()
    assert (meter.ttft.at(0.5), meter.e2e.at(0.5), meter.queued.at(0.5)) == (1.0, 3.0, 0.5)
    assert meter.tpot.at(0.5) == pytest.approx((3.0 - 1.0) / 10)
    assert (meter.good, meter.in_time, meter.cached_tokens) == (1, 1, 96)
    meter.done([run_of(first_s=2.1)])
    meter.count()
    assert (meter.good, meter.in_time) == (1, 1)
    meter.done([run_of(end_s=4.1)])
    meter.count()
    assert (meter.good, meter.in_time, meter.done_count) == (1, 2, 3)


def test_one_token_has_no_tpot() -> None:
    meter = Meter(Limits())
    run = Run(Request(0.0, 5, 1), 0.0, None)
    run.started_s = run.first_s = run.end_s = 1.0
    meter.done([run])
    meter.count()
    assert (meter.ttft.count, meter.tpot.count, meter.good) == (1, 0, 1)


def test_scopes_beyond_the_most_are_counted_together() -> None:
    meter = Meter(Limits())
    for i in range(MOST_SCOPES + 5):
        meter.done([run_of(f"tenant {i}")])
    meter.count()
    assert len(meter.scopes) == MOST_SCOPES + 1
    assert meter.scopes[OTHER_SCOPES] == [5, 500, 480]


def meter_with(waiting: list[int], submitted: int = 1000, turned_away: int = 0) -> Meter:
    meter = Meter(Limits())
    meter.arriving.points = [Point(float(i), 1, each, 0.1, 0, 0) for i, each in enumerate(waiting)]
    meter.submitted, meter.turned_away = submitted, turned_away
    return meter


@pytest.mark.parametrize(
    ("meter", "grows"),
    [
        (meter_with([10 * i for i in range(90)]), True),
        (meter_with([400] * 90), False),
        (meter_with([0] * 30 + [500] * 30 + [100] * 30), False),
        (meter_with([0] * 60 + [5] * 30), False),
        (meter_with([0] * 90, turned_away=20), True),
        (meter_with([0] * 90, turned_away=5), False),
        (meter_with([]), False),
    ],
)
def test_a_queue_that_grows_is_told_from_one_that_does_not(meter: Meter, grows: bool) -> None:
    assert _saturation(meter, 89.0)[0] is grows


def seen_of(planned: Report, **changed: Any) -> Seen:
    latency = planned.latency
    assert latency is not None
    fields: dict[str, Any] = {
        "offered_per_s": latency.arrivals_per_s,
        "input_tokens": float(latency.input_tokens),
        "output_tokens": float(latency.output_tokens),
        "hit_share": None,
        "tpot_mean_s": latency.tpot_s.best,
        "itl_p95_s": latency.itl_p95_s.best,
        "ttft_p95_s": latency.ttft_p95_s.best,
        "active_mean": latency.concurrency_mean,
        "preemptions": 0,
        "too_long": 0,
        "completed": 1000,
        "saturated": False,
        "saturation": "no queue",
    }
    return Seen(**{**fields, **changed})


def test_what_was_planned_holds_and_what_was_not_fails() -> None:
    planned = report("llama-3.1-8b", overrides={"workload": ASKED})
    assert all(check.holds for check in checks_of(planned, seen_of(planned)))
    for name, value, what in (
        ("offered_per_s", 11.0, "requests per second"),
        ("input_tokens", 1500.0, "mean prompt, tokens"),
        ("output_tokens", 190.0, "mean answer, tokens"),
        ("hit_share", 0.2, "prompt tokens found cached"),
        ("tpot_mean_s", 0.5, "mean TPOT"),
        ("itl_p95_s", 1.0, "p95 of the gaps between tokens"),
        ("ttft_p95_s", 9.0, "p95 TTFT"),
        ("active_mean", 300.0, "active requests"),
        ("preemptions", 11, "preemptions"),
        ("too_long", 1, "requests too long"),
        ("saturated", True, "the queue"),
    ):
        broken = [check.what for check in checks_of(planned, seen_of(planned, **{name: value})) if not check.holds]
        assert broken == [what]


def test_times_better_than_planned_hold() -> None:
    planned = report("llama-3.1-8b", overrides={"workload": ASKED})
    found = {check.what: check for check in checks_of(planned, seen_of(planned, ttft_p95_s=0.001))}
    assert found["p95 TTFT"].holds
    assert "better than planned" in found["p95 TTFT"].text
