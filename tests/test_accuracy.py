"""Ranges around estimates: as wide as measured errors, and most measured rows are within them."""

import pytest

from planner.accuracy import kernel_p90, ranged, rounded, spread_of
from planner.calibrate.serving_errors import Spread
from planner.calibrate.shipped import shipped_calibration
from planner.serving_rows import read_latency
from planner.validate_serving import score_serving
from tests.scenarios import ORACLES


def spread(low: float, high: float) -> Spread:
    return Spread(metric="tpot", kind="dense", rows=10, p10_percent=low, p90_percent=high)


def test_a_range_undoes_the_errors() -> None:
    """Predictions that are 20 % low at their 10th percentile and 25 % high at their 90th."""
    found = ranged(1.0, spread(-20.0, 25.0), 5.0)
    assert (found.low, found.best, found.high) == pytest.approx((0.8, 1.0, 1.25))


def test_the_wider_error_counts_on_each_side() -> None:
    found = ranged(1.0, spread(-50.0, 2.0), 25.0)
    assert (found.low, found.high) == pytest.approx((0.8, 2.0))


@pytest.mark.parametrize(("low", "high"), [(-60.0, -30.0), (10.0, 40.0)])
def test_the_estimate_is_inside_even_where_all_errors_have_one_sign(low: float, high: float) -> None:
    found = ranged(2.0, spread(low, high), 0.0)
    assert found.low <= found.best <= found.high


def test_a_hopeless_calibration_still_gives_a_finite_range() -> None:
    assert ranged(1.0, spread(0.0, 0.0), 400.0).high == pytest.approx(20.0)


def test_another_gpus_constants_have_their_own_errors() -> None:
    own, other = (spread_of("tpot", "dense", own_constants=own) for own in (True, False))
    assert other.p10_percent < own.p10_percent
    assert spread_of("throughput", "MoE", own_constants=False).metric == "throughput"


def test_the_least_certain_kernel_counts_by_points_it_never_saw() -> None:
    calibration = shipped_calibration("h100-sxm-vllm")
    entries = [entry for entry in calibration.kernels if entry.family == "moe"]
    assert kernel_p90(entries) == max(entry.holdout.p90_percent for entry in entries if entry.holdout)
    assert kernel_p90([]) == 0


def test_times_are_rounded_to_what_every_machine_agrees_on() -> None:
    assert rounded(0.1 + 0.2) == 0.3
    assert rounded(123456.789) == 123457.0


def test_most_measured_rows_are_within_the_range_of_their_estimate() -> None:
    """On the public sample of the tests; the ranges promise four of five of all rows."""
    file = ORACLES / "serving_latency.csv"
    rows = read_latency(file.read_text("utf-8"), file.name)
    score = score_serving(rows, None)
    inside = []
    for place, found in score.predictions.items():
        row = rows[place]
        kind = "MoE" if any(name in row.model for name in ("MiniMax", "A22B", "gpt-oss", "DeepSeek")) else "dense"
        errors = spread_of("tpot", kind, own_constants=True)  # type: ignore[arg-type]
        range_ms = ranged(found["tpot_ms"], errors, 15.0)
        inside.append(range_ms.low <= row.measured["tpot_ms"] <= range_ms.high)
    assert len(inside) > 40
    assert sum(inside) / len(inside) >= 0.75
