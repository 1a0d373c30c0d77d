"""A run's straight line on the CPU: gate, names, time, verdict; what is skipped, and what the file says in the end."""

import math
import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("scipy", reason="needs scipy")

from planner.calibrate import collective, run  # noqa: E402 - after the skips
from planner.calibrate.conclude import conclude  # noqa: E402
from planner.calibrate.curves import curves_of, point_of  # noqa: E402
from planner.calibrate.device import SLOWDOWNS, Nvml, Watch  # noqa: E402
from planner.calibrate.forms import work_of  # noqa: E402
from planner.calibrate.kernels import Kernel, Lab, kernels_of, open_lab  # noqa: E402
from planner.calibrate.points import (  # noqa: E402
    FAMILY_OF,
    BandwidthPoint,
    CollectivePoint,
    DecodePoint,
    GemmPoint,
    Point,
)
from planner.calibrate.run import Bench, Peaks  # noqa: E402
from planner.calibrate.shipped import calibration_yaml  # noqa: E402
from planner.calibrate.timing import Call, CudaTimer, Sample  # noqa: E402
from planner.calibration_run import CalibrationRun, Environment, RunPoint  # noqa: E402
from planner.documents import load_mapping, validate  # noqa: E402
from planner.errors import MachineError  # noqa: E402
from planner.origin import Origin  # noqa: E402
from tests.test_calibrate_timing import SimulatedCuda  # noqa: E402

POINT = DecodePoint("float32", 4, 2, 32, 1, 100, 0.0)
STEADY, NOISY = Sample((1e-3,) * 20, "cuda_graph"), Sample((1e-3,) * 10 + (2e-3,) * 10, "cuda_graph")


@dataclass
class ScriptedTimer:
    """Gives the samples it was told to, and does to the watch what a hot GPU would."""

    samples: Sequence[Sample] = (STEADY,)
    hot: Callable[[], None] = lambda: None
    rounds: list[int] = field(default_factory=list)

    def measure(self, calls: Sequence[Call]) -> Sample:
        self.rounds.append(len(calls))
        self.hot()
        return self.samples[min(len(self.rounds), len(self.samples)) - 1]


def bench(timer: ScriptedTimer | None = None, watch: Watch | None = None, cache_bytes: int = 2**20) -> Bench:
    peaks = Peaks(100.0, (("float32", 1.0),))
    lab = open_lab(torch, "cpu")
    return Bench(lab, False, timer or ScriptedTimer(), watch or Watch(Nvml()), cache_bytes, peaks)


def measured(
    monkeypatch: pytest.MonkeyPatch, bench: Bench, change: Callable[[Kernel], Kernel] = lambda kernel: kernel
) -> RunPoint:
    """One point on its first backend, changed."""
    kernel = change(kernels_of(bench.lab, POINT, cuda=False)[0])
    monkeypatch.setattr(run, "kernels_of", lambda *_, **__: (kernel,))
    (found,) = run.measure(bench, [POINT], lambda _: None)
    return found


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


def test_a_point_says_what_was_achieved_of_what(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, bench())
    assert (found.family, found.backend, found.verdict) == ("decode_attention", "flash_attention", "ok")
    assert found.median_us == 1000
    assert found.moved_bytes == int(work_of(POINT).bytes)
    assert found.achieved_gb_per_s == pytest.approx(found.moved_bytes / 1e-3 / 1e9, rel=1e-4)
    assert found.share_of_datasheet_gb_per_s == pytest.approx(found.moved_bytes / 1e-3 / 100e9, rel=1e-4)
    assert found.flops == 4 * 4 * 32 * 100
    assert found.share_of_datasheet_tflop_per_s == pytest.approx(found.flops / 1e-3 / 1e12, rel=1e-4)
    assert found.error is not None
    assert found.error < 1e-5
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in found.kernels
    assert point_of(found) == replace(POINT, seconds=1e-3, kernel="flash_attention")


@pytest.mark.parametrize("value", [1.001, math.nan])
def test_a_wrong_point_is_never_timed(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    timer = ScriptedTimer()
    found = measured(monkeypatch, bench(timer), lambda k: replace(k, call=lambda *given: k.call(*given) * value))
    assert found.verdict == "wrong"
    assert found.median_us is None
    assert timer.rounds == []
    assert (found.error is None) == math.isnan(value)
    assert "float64 reference" in found.notes[0]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "out of memory"),
        (MemoryError(), "out of memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory"),
        (RuntimeError("No available kernel. Aborting execution.\nmore"), "not available here: No available kernel"),
    ],
)
def test_what_cannot_run_is_skipped_and_says_why(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    for where in ("inputs", "call"):
        found = measured(monkeypatch, bench(), lambda k, w=where: replace(k, **{w: raising(error)}))  # type: ignore[misc]
        assert found.verdict == "skipped"
        assert found.notes[0].startswith(reason)
        assert "more" not in found.notes[0]


def test_a_broken_device_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(MachineError, match=r"the GPU failed at decode attention .* illegal memory access"):
        measured(monkeypatch, bench(), lambda k: replace(k, call=raising(error)))


def test_an_operator_that_lost_the_core_once_is_not_taken_for_the_kernel() -> None:
    calls = [("aten::bmm", 100.0), ("aten::transpose", 1.0)] * 3
    calls[1] = ("aten::transpose", 8000.0)
    assert run.heaviest(calls) == ("aten::bmm",)
    assert run.heaviest([("a", 30.0), ("b", 70.0), ("c", 10.0)]) == ("b", "a")
    assert run.heaviest([]) == ()


def test_a_noisy_point_is_timed_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = ScriptedTimer((NOISY, STEADY))
    found = measured(monkeypatch, bench(timer))
    assert (found.verdict, len(timer.rounds)) == ("ok", 2)
    assert "first timing was noisy" in found.notes[0]
    timer = ScriptedTimer((NOISY,))
    assert measured(monkeypatch, bench(timer)).verdict == "noisy"
    assert len(timer.rounds) == 2


def test_kernels_are_named_after_the_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = ScriptedTimer()
    monkeypatch.setattr(run, "kernel_names", lambda *_: (f"after {len(timer.rounds)} timing",))
    assert measured(monkeypatch, bench(timer)).kernels == ("after 1 timing",)


def test_a_core_that_is_taken_away_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = ScriptedTimer((replace(STEADY, disturbed=True),))
    assert measured(monkeypatch, bench(timer)).verdict == "noisy"
    assert len(timer.rounds) == 1


def test_a_throttled_point_is_not_worth_a_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(Nvml())

    def hot() -> None:
        watch.reasons |= 0x40

    timer = ScriptedTimer((NOISY,), hot)
    found = measured(monkeypatch, bench(timer, watch))
    assert (found.verdict, len(timer.rounds)) == ("throttled", 1)
    assert SLOWDOWNS[0x40] in found.notes


def test_on_a_gpu_each_backend_is_captured_or_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's path with torch's CPU kernels behind a simulated CUDA: graphs, paged kernels, missing backends."""
    cuda, watch = SimulatedCuda(), Watch(Nvml())
    lab = open_lab(torch, "cpu")
    peaks = Peaks(100.0, (("bfloat16", 1.0),))

    def counted(lab: Lab, point: Point, *, cuda: bool) -> tuple[Kernel, ...]:
        return tuple(replace(kernel, call=launched(kernel.call)) for kernel in kernels_of(lab, point, cuda=cuda))

    def launched(call: Callable[..., Any]) -> Callable[..., Any]:
        def launch(*given: Any) -> Any:
            cuda.kernel(1e-3)
            return call(*given)

        return launch

    monkeypatch.setattr(run, "kernels_of", counted)
    spun: list[str] = []
    monkeypatch.setattr(run, "spin_up", lambda _, device: spun.append(device))
    monkeypatch.setattr(run, "kernel_names", lambda *_: ("flash_fwd_splitkv_kernel",))
    on_gpu = Bench(lab, True, CudaTimer(cuda, observe=watch.observe), watch, 2**16, peaks)
    found = {p.backend: p for p in run.measure(on_gpu, [replace(POINT, dtype="bfloat16")], lambda _: None)}
    flash = found["flash_attention"]
    assert (flash.verdict, flash.method, flash.timings) == ("ok", "cuda_graph", 20)
    assert flash.median_us == pytest.approx(1000, rel=0.01)
    assert flash.kernels == ("flash_fwd_splitkv_kernel",)
    assert found["cudnn_attention"].verdict == "skipped", "a CPU build has none"
    assert {point.verdict for name, point in found.items() if name != "flash_attention"} == {"skipped"}
    assert cuda.log.count("captured") == 1
    assert spun == ["cpu"], "once, before the first point"


def test_input_sets_together_exceed_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = ScriptedTimer()
    found = measured(monkeypatch, bench(timer, cache_bytes=2**20))
    assert found.rotated_bytes >= 5 * 2**20
    assert found.rotated_bytes - 5 * 2**20 < found.rotated_bytes / timer.rounds[0], "and by less than one set"
    assert not [note for note in found.notes if "warm" in note]
    tiny = measured(monkeypatch, bench(timer, cache_bytes=2**30))
    assert timer.rounds[-1] == run.MOST_SETS
    assert "warm" in tiny.notes[-1]


def test_rotated_sets_are_copies_elsewhere_with_the_same_layout() -> None:
    given = kernels_of(open_lab(torch, "cpu"), POINT, cuda=False)[0].inputs()
    sets = run.rotated(given, 10 * sum(tensor.numel() * 4 for tensor in given))
    assert len(sets) == 10
    assert len({inputs[1].data_ptr() for inputs in sets}) == 10
    for inputs in sets:
        for one, other in zip(inputs, given, strict=True):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()


def test_all_reduce_over_two_processes() -> None:
    points = tuple(CollectivePoint("all_reduce", "float32", 2, size, 0.0, "gloo") for size in (1024, 2**18))
    small, large = run.all_reduces(points, 5)
    for found, point in zip((small, large), points, strict=True):
        assert found.verdict in ("ok", "noisy")
        assert found.backend == "gloo"
        assert found.timings == 5
        assert found.error is not None
        assert found.error < 1e-6
        assert found.shape["bytes"] == point.bytes
        assert found.rotated_bytes == point.bytes
        assert "not flushed" in found.notes[-1]


def test_ranks_that_fail_skip_their_points() -> None:
    points = (CollectivePoint("all_reduce", "no_such_dtype", 2, 1024, 0.0, "gloo"),)
    (found,) = run.all_reduces(points, 5)
    assert found.verdict == "skipped"
    assert "no_such_dtype" in found.notes[0]
    with pytest.raises(collective.RanksFailedError, match="within 0 s"):
        collective.measure((replace(points[0], dtype="float32"),), 5, deadline_s=0.1)


def test_the_slowest_rank_and_the_worst_error_count() -> None:
    point = CollectivePoint("all_reduce", "float32", 2, 1024, 0.0, "gloo")
    fast = collective.Reduced(point, Sample((1.0,), "wall_clock"), math.nan)
    slow = collective.Reduced(point, Sample((2.0,), "wall_clock"), 0.0)
    found = collective._slowest([fast, slow])
    assert found.sample.median_s == 2
    assert math.isnan(found.error)
    assert not found.right


def test_a_failing_rank_is_heard_while_the_others_wait() -> None:
    (quiet, _keep), (failing, send) = (multiprocessing.Pipe(duplex=False) for _ in range(2))
    send.send("rank 1: out of memory")
    start = time.monotonic()
    with pytest.raises(collective.RanksFailedError, match="rank 1: out of memory"):
        collective.received([quiet, failing], 30)
    send.close()
    assert time.monotonic() - start < 5


def test_a_rank_that_failed_because_another_did_does_not_hide_why() -> None:
    (first, send_first), (second, send_second) = (multiprocessing.Pipe(duplex=False) for _ in range(2))
    send_second.send("rank 1: connection closed by peer")
    cause = threading.Timer(0.3, send_first.send, ["rank 0: no such dtype"])
    cause.start()
    with pytest.raises(
        collective.RanksFailedError, match=r"^rank 0: no such dtype; rank 1: connection closed by peer$"
    ):
        collective.received([first, second], 30)
    cause.join()


def test_ranks_answer_in_their_own_order() -> None:
    (first, send_first), (second, send_second) = (multiprocessing.Pipe(duplex=False) for _ in range(2))
    points = [CollectivePoint("all_reduce", "float32", 2, size, 0.0, "gloo") for size in (1, 2)]
    one, two = ([collective.Reduced(point, STEADY, 0.0)] for point in points)
    send_second.send(two)
    send_first.send(one)
    assert collective.received([first, second], 30) == [one, two]


def test_one_throttled_rank_throttles_the_point() -> None:
    point = CollectivePoint("all_reduce", "bfloat16", 2, 1024, 0.0, "nccl")
    cool = collective.Reduced(point, STEADY, 0.0, notes=("warm",), lowest_sm_clock_mhz=1980)
    hot = replace(cool, throttled=(SLOWDOWNS[0x40],), lowest_sm_clock_mhz=900)
    found = run._reduced(collective._slowest([cool, hot]))
    assert (found.verdict, found.lowest_sm_clock_mhz) == ("throttled", 900)
    assert found.notes == (SLOWDOWNS[0x40], "warm")


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_sums_of_sums_stay_in_range_and_are_never_zero(ranks: int) -> None:
    numbers = torch.randn(1000).to(torch.bfloat16) * collective.first_scale(ranks, 20)
    for _ in range(20 + 3):
        assert torch.isfinite(numbers).all()
        assert numbers.count_nonzero() > 990
        numbers *= ranks


def environment(**changes: Any) -> Environment:
    fields = {
        "measured_at": datetime(2026, 11, 30, tzinfo=UTC),
        "planner": "0",
        "command": "device=cuda:0",
        "device": "Simulated GPU",
        "l2_bytes": 0,
        "torch": "2.13.0+cu130",
        "python": "3.11",
        "platform": "Linux",
        "threads": 1,
        "datasheet_gb_per_s": 1000.0,
        "datasheet_tflop_per_s": {"bfloat16": 100.0},
    }
    return Environment.model_validate(fields | changes)


def decode_points(backend: str, floor_us: float, verdict: str = "ok") -> list[RunPoint]:
    """What a GPU of 800 of 1,000 GB/s and this floor would give."""
    found = []
    for kv_tokens in (128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072):
        point = DecodePoint("bfloat16", 32, 8, 128, 1, kv_tokens, 0.0)
        microseconds = floor_us + work_of(point).bytes / 800e9 * 1e6
        found.append(run_point(point, backend, microseconds, verdict))
    return found


def run_point(point: Point, backend: str, microseconds: float, verdict: str = "ok") -> RunPoint:
    fields = {"family": FAMILY_OF[type(point)], "backend": backend, "shape": run.fields_of(point)}
    return RunPoint.model_validate(fields | {"verdict": verdict, "median_us": microseconds, "timings": 20})


def test_a_run_recovers_floor_and_bandwidth_and_marks_the_fastest() -> None:
    points = decode_points("slow", 30.0) + decode_points("quick", 10.0)
    found = conclude(environment(), points)
    by_kernel = {fit.kernel: fit for fit in found.kernels}
    assert {name: fit.fastest for name, fit in by_kernel.items()} == {"slow": False, "quick": True}
    constants = by_kernel["quick"].constants
    assert getattr(constants, "floor_us", 0) == pytest.approx(10, rel=0.03)
    assert getattr(constants, "memory_efficiency", 0) == pytest.approx(0.8, rel=0.03)
    assert by_kernel["quick"].residual.p90_percent < 2
    assert found.environment.peak_gb_per_s == 1000


def test_wrong_throttled_and_skipped_points_never_reach_a_fit() -> None:
    bad = [p for verdict in ("wrong", "throttled", "skipped") for p in decode_points("lies", 0.001, verdict)]
    found = conclude(environment(), decode_points("right", 10.0) + bad)
    assert [fit.kernel for fit in found.kernels] == ["right"]
    assert len(found.points) == 40, "and all of them are kept"
    with pytest.raises(MachineError, match="none of 30 points"):
        conclude(environment(), bad)


def test_noisy_points_are_fitted_only_where_few_are_ok() -> None:
    steady, noisy = decode_points("backend", 10.0), decode_points("backend", 25.0, "noisy")
    (fit,) = conclude(environment(), steady + noisy[:3]).kernels
    assert fit.notes is None
    assert fit.residual.p90_percent < 2
    (fit,) = conclude(environment(), steady[:3] + noisy[3:]).kernels
    assert "noisy points were fitted too" in str(fit.notes)


def test_a_fit_that_should_not_be_trusted_says_why() -> None:
    short = conclude(environment(), decode_points("few", 10.0)[:5])
    assert "points for 4 constants: too few to trust them" in str(short.kernels[0].notes)
    fast = [p.model_copy(update={"median_us": (p.median_us or 0) / 20}) for p in decode_points("fast", 10.0)]
    (fit,) = conclude(environment(), fast).kernels
    assert "memory_efficiency is at its bound of 1.05" in str(fit.notes)
    wild = [p.model_copy(update={"median_us": 10.0 ** (i % 4)}) for i, p in enumerate(decode_points("wild", 10.0))]
    (fit,) = conclude(environment(), wild).kernels
    assert "of the held-out points is off by more than" in str(fit.notes)


def test_what_was_never_to_be_measured_is_left_out() -> None:
    assert conclude(environment(), decode_points("quick", 10.0), ("experts",)).left_out == ("experts",)


def test_without_a_datasheet_the_best_measured_counts_as_the_peak() -> None:
    bandwidth = run_point(BandwidthPoint("copy", 2**30, 0.0), "copy", 1000.0)
    bandwidth = bandwidth.model_copy(update={"achieved_gb_per_s": 850.0})
    product = run_point(GemmPoint("bfloat16", 64, 64, 64, 0.0), "mm", 10.0)
    product = product.model_copy(update={"achieved_tflop_per_s": 70.0})
    bare = environment(datasheet_gb_per_s=None, datasheet_tflop_per_s={})
    found = conclude(bare, [bandwidth, product, *decode_points("backend", 10.0)])
    assert (found.environment.peak_gb_per_s, found.environment.peak_tflop_per_s) == (850, {"bfloat16": 70})
    assert "this run" in found.peaks
    assert any("gemm bfloat16 mm: 1 point is too few" in line for line in found.left_out)


def test_the_file_is_read_back_as_it_was(tmp_path: Path) -> None:
    found = conclude(environment(), decode_points("quick", 10.0) + decode_points("lies", 1.0, "wrong"))
    path = tmp_path / "run.yaml"
    path.write_text(calibration_yaml(found), "utf-8")
    assert validate(CalibrationRun, load_mapping(path), Origin(str(path))) == found


def test_a_curve_lies_on_its_points() -> None:
    (curve,) = curves_of(conclude(environment(), decode_points("quick", 10.0)))
    (series,) = curve.series
    assert len(series.measured) == len(series.fitted) == 10
    for (x, y), (fitted_x, fitted_y) in zip(series.measured, series.fitted, strict=True):
        assert fitted_x == x
        assert fitted_y == pytest.approx(y, rel=0.05)
        assert y < 800
