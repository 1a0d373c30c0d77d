"""All-reduce over the GPUs of this machine (NCCL), or over two processes of the CPU (gloo): a process per rank."""

import math
import multiprocessing
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from multiprocessing import connection
from pathlib import Path
from types import ModuleType
from typing import Any

from planner.calibrate import reference
from planner.calibrate.device import Watch, watch_of
from planner.calibrate.points import CollectivePoint
from planner.calibrate.timing import LEAST_CALLS, CudaTimer, Sample, Timer, WallTimer, spin_up

DEADLINE_S = 180
"""Ranks that wait for one another for ever are ended after this long."""
OTHERS_S = 2
"""Once a rank has failed, the others have so long to say why they did."""
LIMITS = {"float32": 1e-4, "bfloat16": 2e-2}
"""Largest error of a sum: ranks add in the dtype, one rounding for each, so bfloat16 has twice a kernel's limit."""

WARM = "all-reduce buffers were not flushed from caches: those that fit were warm, as a kernel before would leave them"


@dataclass(frozen=True, slots=True)
class Reduced:
    """One size of message, as the slowest rank saw it."""

    point: CollectivePoint
    sample: Sample
    error: float
    throttled: tuple[str, ...] = ()
    """Why a GPU slowed itself down meanwhile."""
    notes: tuple[str, ...] = ()
    lowest_sm_clock_mhz: int | None = None
    buffer_bytes: int = 0
    """Of all the buffers of a rank that the calls went round [B]."""

    @property
    def right(self) -> bool:
        """The sum is right on every rank."""
        return reference.is_right(self.error, LIMITS[self.point.dtype])


@dataclass(frozen=True, slots=True)
class Rank:
    """What one rank measures with."""

    rank: int
    device: str
    timer: Timer
    watch: Watch | None
    """None on a CPU."""
    replays: int


class RanksFailedError(Exception):
    """The ranks did not finish; says why."""


def measure(points: Sequence[CollectivePoint], replays: int, deadline_s: float = DEADLINE_S) -> list[Reduced]:
    """Every point over its ranks (the same number for all), in new processes.

    raises: RanksFailedError where a rank fails or does not finish in time
    """
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        ranks = points[0].ranks
        ends = [context.Pipe(duplex=False) for _ in range(ranks)]
        store = str(Path(folder) / "store")
        processes = [
            context.Process(target=work, args=(send, rank, tuple(points), store, replays), daemon=True)
            for rank, (_, send) in enumerate(ends)
        ]
        try:
            with _interrupts_ignored():
                for process, (_, send) in zip(processes, ends, strict=True):
                    process.start()
                    send.close()  # ours: the child has its own, and its end is seen by the other closing
            found = received([receive for receive, _ in ends], deadline_s)
        finally:
            for process in processes:
                if process.pid is not None:
                    process.terminate()
                    process.join()
    return [_slowest(of_rank) for of_rank in zip(*found, strict=True)]


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes started within ignore Ctrl-C, which reaches them all: the first one hears it and ends the others."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def received(ends: Sequence[Any], deadline_s: float) -> list[list[Reduced]]:
    """What each rank sends, in the order of the ranks.

    raises: RanksFailedError soon after any rank fails, though the others wait for it, with what each that failed says:
        which of them was the cause, the order in which they are heard does not tell; or after the deadline
    """
    found: dict[Any, list[Reduced]] = {}
    failed: dict[Any, str] = {}
    end = time.monotonic() + deadline_s
    while waited := [one for one in ends if one not in found and one not in failed]:
        ready = connection.wait(waited, max(0.0, end - time.monotonic()))
        if not ready:
            break
        for one in ready:
            answer = _answer(one)
            if isinstance(answer, str):
                failed[one] = answer
                end = min(end, time.monotonic() + OTHERS_S)
            else:
                found[one] = answer
    if failed:
        raise RanksFailedError("; ".join(dict.fromkeys(failed[one] for one in ends if one in failed)))
    if waited:
        raise RanksFailedError(f"a rank did not finish within {deadline_s:.0f} s")
    return [found[one] for one in ends]


def _answer(receive: Any) -> list[Reduced] | str:
    """What a rank measured, or why it failed."""
    try:
        found: list[Reduced] | str = receive.recv()
    except EOFError:
        return "a rank ended without an answer"
    return found


def _slowest(ranks: Sequence[Reduced]) -> Reduced:
    """A collective has taken as long as its last rank; its error is the worst one, and any GPU may have held it up."""
    slowest = max(ranks, key=lambda reduced: reduced.sample.median_s)
    errors = [reduced.error for reduced in ranks]
    worst = next((error for error in errors if error != error), max(errors))  # a NaN is the worst
    clocks = [reduced.lowest_sm_clock_mhz for reduced in ranks if reduced.lowest_sm_clock_mhz is not None]
    return replace(
        slowest,
        error=worst,
        throttled=_together(reduced.throttled for reduced in ranks),
        notes=_together(reduced.notes for reduced in ranks),
        lowest_sm_clock_mhz=min(clocks, default=None),
    )


def _together(notes: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Each note once."""
    return tuple(dict.fromkeys(note for of_rank in notes for note in of_rank))


def work(send: Any, rank: int, points: Sequence[CollectivePoint], store: str, replays: int) -> None:
    """One rank's process: its measurements, or what stopped it, through the pipe."""
    try:
        send.send(_rank(rank, points, store, replays))
    except Exception as error:  # whatever stops a rank must reach the one who waits
        send.send(f"rank {rank}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    finally:
        send.close()


def _rank(rank: int, points: Sequence[CollectivePoint], store: str, replays: int) -> list[Reduced]:
    torch, distributed = import_module("torch"), import_module("torch.distributed")
    backend, ranks = points[0].kernel, points[0].ranks
    cuda = backend == "nccl"
    if cuda:
        torch.cuda.set_device(rank)
    options = {"device_id": torch.device("cuda", rank)} if cuda else {}
    distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks, **options)
    device = f"cuda:{rank}" if cuda else "cpu"
    watch = watch_of(torch, rank) if cuda else None
    timer: Timer = WallTimer(replays, budget_s=float("inf"), switches=lambda: 0)
    if watch:
        timer = CudaTimer(torch.cuda, replays, observe=watch.observe)
        spin_up(torch, device)
    bench = Rank(rank, device, timer, watch, replays)
    try:
        return [_reduce(torch, distributed, point, bench) for point in points]
    finally:
        distributed.destroy_process_group()


def _reduce(torch: ModuleType, distributed: ModuleType, point: CollectivePoint, bench: Rank) -> Reduced:
    """One size: the sum against a float64 one of the same numbers, then the time."""
    inputs = [buffer(torch, point, other) for other in range(point.ranks)]
    expected = sum(tensor.double() for tensor in inputs)
    summed = inputs[bench.rank].to(bench.device)
    distributed.all_reduce(summed)
    error = reference.error(summed.cpu().view(1, -1), expected.view(1, -1))
    small = inputs[bench.rank].to(bench.device) * first_scale(point.ranks, bench.replays)
    sent = [small.clone() for _ in range(LEAST_CALLS if bench.watch else 1)]
    distributed.barrier()
    if bench.watch:
        bench.watch.reset()
    sample = bench.timer.measure([partial(distributed.all_reduce, one) for one in sent])
    found = Reduced(point, sample, error, notes=(WARM,), buffer_bytes=len(sent) * point.bytes)
    return _watched(found, bench.watch) if bench.watch else found


def _watched(found: Reduced, watch: Watch) -> Reduced:
    """With what the GPU's clocks did meanwhile."""
    unwatched = () if watch.nvml.handle is not None else ("clocks and throttling were not watched",)
    return replace(
        found,
        throttled=watch.throttled,
        notes=(*found.notes, *watch.notes, *unwatched),
        lowest_sm_clock_mhz=watch.lowest_sm_clock_mhz,
    )


def first_scale(ranks: int, replays: int) -> float:
    """What to scale numbers by that are summed in place again and again, so that none leaves the range of a float.

    Each call multiplies by the ranks: half of the replays lie below 1 and half above. Zeros would stay in range, but
    a link and a GPU draw less power on them.
    """
    return math.pow(ranks, -replays / 2)


def buffer(torch: ModuleType, point: CollectivePoint, rank: int) -> Any:
    """The random numbers that a rank contributes: every rank can make those of all."""
    dtype = getattr(torch, point.dtype)
    generator = torch.Generator("cpu").manual_seed(1000 * rank + point.bytes % 997)
    return torch.randn(point.bytes // dtype.itemsize, generator=generator).to(dtype)
