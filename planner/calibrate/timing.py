"""Timing calls: CUDA graphs between events, or a wall clock on a CPU; then median, spread, drift and a verdict."""

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, Protocol

from planner.calibration_run import Verdict

NOISY_SHARE = 0.05
REPLAYS = 20
LEAST_CALLS = 8
"""Calls in a graph at least, so that its launch does not count as the kernel's time."""
WARM_UP = 3
HARDLY_ANY = 3
SPIN_UP_S = 0.2
SPIN_UP_WIDTH = 2048

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Sample:
    """Repeated timings of one call, and how they were taken."""

    seconds: tuple[float, ...]
    """Per call, one number a replay, in order [s]."""
    method: str
    """"cuda_graph", "cuda_events" or "wall_clock"."""
    set_aside: int = 0
    """Further timings that another process disturbed."""
    disturbed: bool = False
    """Too few were left alone."""
    notes: tuple[str, ...] = ()

    @property
    def median_s(self) -> float:
        """The middle timing [s]."""
        return statistics.median(self.seconds)

    @property
    def iqr_share(self) -> float:
        """Interquartile range over the median; 0 for a single timing."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median_s

    @property
    def drift_share(self) -> float:
        """How far the second half's median is from the first's, over the median of all."""
        half = len(self.seconds) // 2
        if not half:
            return 0.0
        first, second = statistics.median(self.seconds[:half]), statistics.median(self.seconds[-half:])
        return abs(second - first) / self.median_s

    @property
    def noisy(self) -> bool:
        """Spread or drift beyond what a settled machine shows, or disturbed timings."""
        return self.disturbed or max(self.iqr_share, self.drift_share) > NOISY_SHARE


def verdict(*, right: bool, throttled: bool, noisy: bool) -> Verdict:
    """What a point is worth: the worst of wrong, throttled, noisy and ok."""
    if not right:
        return "wrong"
    if throttled:
        return "throttled"
    return "noisy" if noisy else "ok"


class Timer(Protocol):
    """Times a rotation of calls."""

    def measure(self, calls: Sequence[Call]) -> Sample:
        """Seconds per call, the calls one after the other, again and again."""


def rotation(calls: Sequence[Call]) -> list[Call]:
    """The calls, whole rounds of them, until there are enough for one graph."""
    rounds = -(-LEAST_CALLS // len(calls))
    return list(calls) * rounds


@dataclass(frozen=True, slots=True)
class CudaTimer:
    """CUDA events around replays of one graph that holds a call per rotated input set."""

    cuda: Any
    """torch.cuda, or what a test gives for it."""
    replays: int = REPLAYS
    observe: Callable[[], None] = field(default=lambda: None)
    """Called while the GPU works: reads clocks."""

    def measure(self, calls: Sequence[Call]) -> Sample:
        """Seconds per call; eager events where the calls cannot be captured, and the sample says so.

        raises: cuda.OutOfMemoryError where memory runs out
        """
        work = rotation(calls)
        self._warm_up(work)
        try:
            replay = self._captured(work)
        except self.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            note = f"not captured in a CUDA graph ({reason[:120]}): launches are in the time"
            return Sample(self._timed(lambda: _run(work), len(work)), "cuda_events", notes=(note,))
        return Sample(self._timed(replay, len(work)), "cuda_graph")

    def _warm_up(self, work: Sequence[Call]) -> None:
        """A few calls on a side stream, as capture demands: lazy initialisation cannot be captured."""
        stream = self.cuda.Stream()
        stream.wait_stream(self.cuda.current_stream())
        with self.cuda.stream(stream):
            _run(work[:WARM_UP])
        self.cuda.current_stream().wait_stream(stream)
        self.cuda.synchronize()

    def _captured(self, work: Sequence[Call]) -> Call:
        graph = self.cuda.CUDAGraph()
        # thread_local: a communication library's watchdog thread may go on asking for events
        with self.cuda.graph(graph, capture_error_mode="thread_local"):
            _run(work)
        replay: Call = graph.replay
        return replay

    def _timed(self, replay: Call, calls: int) -> tuple[float, ...]:
        replay()
        self.cuda.synchronize()
        event = partial(self.cuda.Event, enable_timing=True)
        pairs = [(event(), event()) for _ in range(self.replays)]
        for i, (start, end) in enumerate(pairs):
            start.record()
            replay()
            end.record()
            if i in (self.replays // 2, self.replays - 1):
                self.observe()
        self.cuda.synchronize()
        return tuple(start.elapsed_time(end) / 1000 / calls for start, end in pairs)


@dataclass(frozen=True, slots=True)
class WallTimer:
    """A wall clock around a round of the calls, for CPUs; timings in which the core was taken away are set aside."""

    replays: int = REPLAYS
    budget_s: float = 1.0
    """Stop after this long, once there are enough timings."""
    least: int = 5
    clock: Callable[[], float] = time.perf_counter
    switches: Callable[[], int] = field(default=lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)
    """Involuntary context switches of this process so far."""

    def measure(self, calls: Sequence[Call]) -> Sample:
        """Seconds per call, the disturbed timings left out where enough others remain."""
        calls[0]()
        timings = list[tuple[float, bool]]()
        kept = 0
        end = self.clock() + self.budget_s
        while len(timings) < 2 * self.replays and kept < self.replays:
            before, start = self.switches(), self.clock()
            _run(calls)
            stop = self.clock()
            timings.append(((stop - start) / len(calls), self.switches() > before))
            kept += not timings[-1][1]
            if stop > end and len(timings) >= self.least:
                break
        return _undisturbed(timings, min(self.least, self.replays))


def _undisturbed(timings: Sequence[tuple[float, bool]], least: int) -> Sample:
    """The timings that nothing disturbed, noisy where they are fewer than `least`; all where they are hardly any."""
    kept = tuple(seconds for seconds, disturbed in timings if not disturbed)
    aside = len(timings) - len(kept)
    if len(kept) >= least:
        return Sample(kept, "wall_clock", aside)
    if len(kept) >= HARDLY_ANY:
        note = f"other processes left fewer than {least} timings alone"
        return Sample(kept, "wall_clock", aside, disturbed=True, notes=(note,))
    note = "other processes disturbed most timings: all of them were kept"
    return Sample(tuple(seconds for seconds, _ in timings), "wall_clock", disturbed=True, notes=(note,))


def spin_up(torch: ModuleType, device: str, seconds: float = SPIN_UP_S) -> None:
    """Work on a device that was idle, until its clocks have risen."""
    end = time.monotonic() + seconds
    with suppress(torch.OutOfMemoryError):  # each point will say so
        numbers = torch.randn(SPIN_UP_WIDTH, SPIN_UP_WIDTH, device=device)
        while time.monotonic() < end:
            torch.mm(numbers, numbers).sum().item()  # item waits for the device


def _run(calls: Sequence[Call]) -> None:
    for call in calls:
        call()
