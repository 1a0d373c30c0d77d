"""The fit finds known constants in noisy points, never looks at the held-out third, and says what it cannot do."""

import builtins
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from planner.calibrate.accuracy import percentile, seconds_of, summary
from planner.calibrate.fit import L2, fit, free_constants, held_out, with_measured
from planner.calibrate.forms import Peaks
from planner.calibrate.points import FAMILIES, CollectivePoint, DecodePoint, GemmPoint, Point, PrefillPoint
from planner.calibrate.shipped import calibration_names, shipped_calibration
from planner.calibration import CollectiveConstants, KernelConstants
from planner.errors import InputError, MachineError

PEAKS = Peaks(3.35e12, 989e12)
NOISE = 0.03
DECODE = KernelConstants(
    floor_us=9.0, memory_efficiency=0.85, compute_efficiency=0.5, serial_ns_per_step=0.5, norm=3.0, item_ns=10.0
)
GEMM = KernelConstants(floor_us=4.0, memory_efficiency=0.8, compute_efficiency=0.7, norm=2.0)


def noisy(points: Sequence[Point], constants: KernelConstants | CollectiveConstants) -> list[Point]:
    """The points as constants would time them, with noise, and one in twenty three times as long."""
    dice = random.Random(7)  # noqa: S311 - noise, not a secret
    measured = []
    for i, point in enumerate(points):
        factor = (3.0 if i % 20 == 0 else 1.0) * dice.lognormvariate(0, NOISE)
        measured.append(replace(point, seconds=seconds_of(replace(point, seconds=1.0), constants, PEAKS) * factor))
    return measured


def decode_points() -> list[Point]:
    shapes = [(8, 1), (32, 8), (64, 8), (32, 32)]
    sizes = [(batch, tokens) for batch in (1, 4, 16, 64, 256) for tokens in (128, 512, 2048, 8192, 32768)]
    return [DecodePoint("bfloat16", q, kv, 128, *size, 1.0) for q, kv in shapes for size in sizes]


def gemm_points() -> list[Point]:
    shapes = [(n, k) for n in (1024, 4096, 16384) for k in (1024, 4096, 8192)]
    return [GemmPoint("bfloat16", n, k, 4**i, 1.0) for n, k in shapes for i in range(8)]


def test_cold_caches_say_nothing_about_l2() -> None:
    pytest.importorskip("scipy")
    found = fit(noisy(gemm_points(), GEMM), PEAKS).constants
    assert isinstance(found, KernelConstants)
    assert (found.l2_reach, found.l2_speedup) == (0, 1)
    assert found.serial_ns_per_step >= 0
    assert set(L2) <= set(free_constants("gemm", 1000, l2=True))


def test_decode_constants_are_found_among_noise_and_outliers() -> None:
    pytest.importorskip("scipy")
    fitted = fit(noisy(decode_points(), DECODE), PEAKS)
    found = fitted.constants
    assert isinstance(found, KernelConstants)
    assert found.floor_us == pytest.approx(DECODE.floor_us, rel=0.05)
    assert found.memory_efficiency == pytest.approx(DECODE.memory_efficiency, rel=0.05)
    assert found.item_ns == pytest.approx(DECODE.item_ns, rel=0.25)
    assert fitted.holdout is not None
    assert fitted.holdout.median_percent < 4
    assert abs(fitted.holdout.bias_percent) < 2
    assert fitted.residual.max_percent > 50  # the outliers stay outliers


def test_gemm_constants_are_found() -> None:
    pytest.importorskip("scipy")
    found = fit(noisy(gemm_points(), GEMM), PEAKS).constants
    assert isinstance(found, KernelConstants)
    assert found.floor_us == pytest.approx(GEMM.floor_us, rel=0.1)
    assert found.memory_efficiency == pytest.approx(GEMM.memory_efficiency, rel=0.1)
    assert found.compute_efficiency == pytest.approx(GEMM.compute_efficiency, rel=0.05)


def test_a_collective_is_found_and_a_short_run_frees_only_the_roofline() -> None:
    pytest.importorskip("scipy")
    truth = CollectiveConstants(latency_us=12, gb_per_s=200)
    points: list[Point] = [CollectivePoint("all_reduce", "bfloat16", 8, 1024 << i, 1.0) for i in range(20)]
    exact = [replace(point, seconds=seconds_of(point, truth, PEAKS)) for point in points]
    collective = fit(exact, PEAKS).constants
    assert isinstance(collective, CollectiveConstants)
    form = {"latency_us", "gb_per_s", "norm"}
    assert collective.model_dump(include=form) == pytest.approx(truth.model_dump(include=form), rel=1e-2)
    assert collective.measured_bytes == tuple(1024 << i for i, point in enumerate(exact) if not held_out(point))
    few = fit(noisy(gemm_points()[:20], GEMM), PEAKS).constants
    assert isinstance(few, KernelConstants)
    assert (few.serial_ns_per_step, few.activation_passes, few.l2_reach) == (0, 0, 0)


def test_noise_makes_no_small_message_slower_than_a_large_one() -> None:
    times = {1024: (7e-6, 9e-6), 2048: (6e-6,), 4096: (11e-6,)}
    points = [CollectivePoint("alltoall", "half", 4, size, each) for size, found in times.items() for each in found]
    found = with_measured(CollectiveConstants(latency_us=9, gb_per_s=1), points)
    assert (found.measured_bytes, found.measured_us) == ((1024, 2048, 4096), (6, 6, 11))


def test_held_out_points_never_touch_the_constants() -> None:
    pytest.importorskip("scipy")
    points = noisy(gemm_points(), GEMM)
    spoilt = [replace(point, seconds=point.seconds * 50) if held_out(point) else point for point in points]
    assert 0.2 < sum(map(held_out, points)) / len(points) < 0.45
    clean, other = fit(points, PEAKS), fit(spoilt, PEAKS)
    assert clean.constants == other.constants
    assert clean.residual == other.residual
    assert other.holdout is not None
    assert other.holdout.median_percent > 90
    assert fit(points, PEAKS) == clean


def test_the_third_is_chosen_by_shape_alone() -> None:
    point = PrefillPoint("bfloat16", "bfloat16", 32, 8, 128, 4, 512, 1.0)
    others = [
        replace(point, seconds=2.0),
        replace(point, kernel="fa3"),
        replace(point, dtype="fp8", kv_dtype="fp8"),
    ]
    assert {held_out(other) for other in others} == {held_out(point)}
    assert {held_out(replace(point, seq=seq)) for seq in range(1, 50)} == {True, False}


@pytest.mark.parametrize("points", [decode_points()[:3], [*decode_points()[:5], *gemm_points()[:5]], []])
def test_too_few_points_or_several_families_are_refused(points: list[Point]) -> None:
    with pytest.raises(InputError, match="at least 4 points of one family"):
        fit(points, PEAKS)


def test_without_scipy_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("scipy"):
            raise ImportError(name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MachineError, match=r"fitting needs scipy: pip install 'llm-serving-planner\[calibrate\]'"):
        fit(decode_points(), PEAKS)


def test_errors_are_summed_up_as_published() -> None:
    errors = summary([0.1, -0.2, 0.3, -0.4, 0.5])
    assert (errors.median_percent, errors.max_percent, errors.bias_percent, errors.points) == (30, 50, 10, 5)
    assert errors.p90_percent == pytest.approx(46)
    assert percentile([1.0], 0.9) == 1


def test_no_shipped_table_shows_a_held_out_point() -> None:
    seen = 0
    for name in calibration_names():
        for entry in shipped_calibration(name).kernels:
            if entry.table is None:
                continue
            for row in entry.table.rows:
                fields = dict(zip(entry.table.columns, row, strict=True))
                fields.pop("measured_us")
                shape: dict[str, Any] = {"dtype": "any", "seconds": 1.0, **fields}
                if entry.family == "prefill_attention":
                    shape["kv_dtype"] = "any"
                assert not held_out(FAMILIES[entry.family](**shape)), (name, entry.key, row)
                seen += 1
    assert seen > 100
