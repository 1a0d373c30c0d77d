"""Timers against a simulated GPU and a simulated clock, and what a sample is worth."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.calibrate.timing import LEAST_CALLS, CudaTimer, Sample, WallTimer, rotation, spin_up, verdict

LAUNCH_S = 5e-6


class SimulatedOutOfMemoryError(RuntimeError):
    """As torch's is one."""


@dataclass
class SimulatedCuda:
    """torch.cuda as far as the timer uses it: a clock that kernels advance, and what may not be done when."""

    refuses_capture: bool = False
    now: float = 0.0
    log: list[str] = field(default_factory=list)
    capturing: list[float] | None = None
    on_side_stream: bool = False
    pending: bool = False
    OutOfMemoryError = SimulatedOutOfMemoryError

    def kernel(self, seconds: float) -> None:
        """A kernel launch."""
        self.pending = True
        if self.capturing is not None:
            self.capturing.append(seconds)
            return
        self.log.append("side kernel" if self.on_side_stream else "kernel")
        self.now += seconds

    def synchronize(self) -> None:
        assert self.capturing is None, "synchronising breaks a capture"
        self.pending = False
        self.log.append("synchronize")

    def Stream(self) -> "SimulatedStream":  # noqa: N802 - torch's name
        return SimulatedStream(self)

    def current_stream(self) -> "SimulatedStream":
        return SimulatedStream(self)

    @contextmanager
    def stream(self, _: "SimulatedStream") -> Iterator[None]:
        self.on_side_stream = True
        yield
        self.on_side_stream = False

    def CUDAGraph(self) -> "SimulatedGraph":  # noqa: N802 - torch's name
        return SimulatedGraph(self)

    @contextmanager
    def graph(self, graph: "SimulatedGraph", capture_error_mode: str) -> Iterator[None]:
        assert not self.pending, "capture before the warm-up has finished"
        assert "side kernel" in self.log, "capture without a warm-up on a side stream"
        assert capture_error_mode == "thread_local"
        if self.refuses_capture:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        self.capturing = graph.kernels
        yield
        self.capturing = None
        self.pending = False
        self.log.append("captured")

    def Event(self, enable_timing: bool) -> "SimulatedEvent":  # noqa: N802 - torch's name
        assert enable_timing
        return SimulatedEvent(self)


@dataclass
class SimulatedStream:
    cuda: SimulatedCuda

    def wait_stream(self, _: "SimulatedStream") -> None:
        self.cuda.log.append("wait")


@dataclass
class SimulatedGraph:
    cuda: SimulatedCuda
    kernels: list[float] = field(default_factory=list)

    def replay(self) -> None:
        assert self.cuda.capturing is None
        self.cuda.now += LAUNCH_S
        for seconds in self.kernels:
            self.cuda.kernel(seconds)


@dataclass
class SimulatedEvent:
    cuda: SimulatedCuda
    at: float | None = None

    def record(self) -> None:
        self.at = self.cuda.now

    def elapsed_time(self, end: "SimulatedEvent") -> float:
        """Milliseconds, as CUDA gives them."""
        assert not self.cuda.pending, "an event is read before the device has reached it"
        assert self.at is not None
        assert end.at is not None
        return (end.at - self.at) * 1000


def sample(*seconds: float) -> Sample:
    return Sample(seconds, "wall_clock")


def test_a_graph_of_rotated_calls_is_timed_between_events() -> None:
    cuda = SimulatedCuda()
    calls = [partial(cuda.kernel, 1e-3) for _ in range(10)]
    found = CudaTimer(cuda, replays=20).measure(calls)
    assert found.method == "cuda_graph"
    assert len(found.seconds) == 20
    assert found.median_s == pytest.approx(1e-3 + LAUNCH_S / 10)
    assert cuda.log.count("captured") == 1
    assert cuda.log.index("captured") > cuda.log.index("side kernel")
    assert cuda.log.count("kernel") == 21 * 10, "one untimed replay, then twenty"
    assert not found.noisy


def test_a_refused_capture_falls_back_to_events_and_says_so() -> None:
    cuda = SimulatedCuda(refuses_capture=True)
    found = CudaTimer(cuda, replays=5).measure([partial(cuda.kernel, 1e-3)] * 8)
    assert found.method == "cuda_events"
    assert found.median_s == pytest.approx(1e-3)
    assert "operation not permitted" in found.notes[0]
    assert "more" not in found.notes[0]


def test_out_of_memory_in_a_capture_is_not_taken_for_a_refusal() -> None:
    cuda = SimulatedCuda()

    def call() -> None:
        if cuda.capturing is not None:
            raise SimulatedOutOfMemoryError("out of memory")
        cuda.kernel(1e-3)

    with pytest.raises(SimulatedOutOfMemoryError):
        CudaTimer(cuda).measure([call])


def test_clocks_are_read_while_the_device_works() -> None:
    cuda = SimulatedCuda()
    seen: list[bool] = []
    CudaTimer(cuda, replays=20, observe=lambda: seen.append(cuda.pending)).measure([partial(cuda.kernel, 1e-3)] * 8)
    assert seen == [True, True]


def test_an_idle_device_works_until_its_clocks_have_risen() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    start = time.monotonic()
    spin_up(torch, "cpu", 0.1)
    assert time.monotonic() - start >= 0.1


@given(st.integers(1, 50))
def test_a_rotation_holds_whole_rounds_and_enough_calls(count: int) -> None:
    calls: list[Callable[[], object]] = [partial(int, i) for i in range(count)]
    work = rotation(calls)
    assert len(work) >= LEAST_CALLS
    assert len(work) % count == 0
    assert work[:count] == calls


@dataclass
class SimulatedCore:
    """A wall clock that calls advance, and a core that another process takes away now and then."""

    call_s: float = 0.01
    disturb_every: int = 0
    stolen_s: float = 0.5
    now: float = 0.0
    calls: int = 0
    switches: int = 0

    def call(self) -> None:
        self.calls += 1
        self.now += self.call_s
        if self.disturb_every and self.calls % self.disturb_every == 0:
            self.now += self.stolen_s
            self.switches += 1

    def timer(self, budget_s: float = 100.0) -> WallTimer:
        return WallTimer(20, budget_s, clock=lambda: self.now, switches=lambda: self.switches)


def test_disturbed_timings_are_set_aside() -> None:
    core = SimulatedCore(disturb_every=4)
    found = core.timer().measure([core.call])
    assert found.median_s == pytest.approx(0.01)
    assert found.iqr_share < 1e-9
    assert len(found.seconds) == 20
    assert found.set_aside == 6
    assert not found.disturbed


def test_a_core_that_is_always_shared_gives_a_noisy_sample() -> None:
    core = SimulatedCore(disturb_every=1)
    found = core.timer().measure([core.call])
    assert found.disturbed
    assert found.noisy
    assert found.notes
    assert len(found.seconds) == 40


def test_a_few_timings_left_alone_are_better_than_all_but_still_noisy() -> None:
    core = SimulatedCore(disturb_every=2)
    found = core.timer(budget_s=1.6).measure([core.call])
    assert len(found.seconds) in (3, 4)
    assert found.median_s == pytest.approx(0.01)
    assert found.noisy
    assert "fewer than 5" in found.notes[0]


def test_a_slow_call_ends_with_the_budget_but_not_before_enough_timings() -> None:
    core = SimulatedCore(call_s=1.0)
    assert len(core.timer(budget_s=0.1).measure([core.call]).seconds) == 5
    assert core.calls == 6, "one of them to warm up"


def test_time_is_per_call() -> None:
    core = SimulatedCore()
    assert core.timer().measure([core.call] * 7).median_s == pytest.approx(0.01)


def test_spread_and_drift() -> None:
    assert sample(1, 2, 3, 4, 5).iqr_share == pytest.approx(2 / 3)
    assert sample(1, 1, 1, 2, 2, 2).drift_share == pytest.approx(1 / 1.5)
    assert sample(1, 1, 1, 1).drift_share == 0
    assert (sample(1).iqr_share, sample(1).drift_share) == (0, 0)
    assert not sample(*[1.0] * 20).noisy
    assert sample(*[1.0] * 10, *[1.06] * 10).noisy
    assert not sample(*[1.0] * 10, *[1.02] * 10).noisy


@given(st.lists(st.floats(1e-6, 1), min_size=2, max_size=30), st.floats(1e-3, 1e3))
def test_shares_do_not_depend_on_the_unit(seconds: list[float], unit: float) -> None:
    one, other = Sample(tuple(seconds), ""), Sample(tuple(s * unit for s in seconds), "")
    assert math.isclose(one.iqr_share, other.iqr_share, rel_tol=1e-6, abs_tol=1e-9)
    assert math.isclose(one.drift_share, other.drift_share, rel_tol=1e-6, abs_tol=1e-9)


def test_the_worst_verdict_counts() -> None:
    assert verdict(right=False, throttled=True, noisy=True) == "wrong"
    assert verdict(right=True, throttled=True, noisy=True) == "throttled"
    assert verdict(right=True, throttled=False, noisy=True) == "noisy"
    assert verdict(right=True, throttled=False, noisy=False) == "ok"
