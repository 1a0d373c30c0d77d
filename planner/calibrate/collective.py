"""All-reduce over the GPUs of this machine (NCCL), or over two processes of the CPU (gloo): a process per rank."""

import multiprocessing
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from planner.calibrate import reference
from planner.calibrate.points import CollectivePoint
from planner.calibrate.timing import CudaTimer, Sample, WallTimer

DEADLINE_S = 180
"""A rank that fails leaves the others waiting: after this long, all are ended."""
LIMITS = {"float32": 1e-4, "bfloat16": 2e-2}
"""Largest error of a sum: ranks add in the dtype, one rounding for each, so bfloat16 has twice a kernel's limit."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """One size of message, as the slowest rank saw it."""

    point: CollectivePoint
    sample: Sample
    error: float

    @property
    def right(self) -> bool:
        """The sum is right on every rank."""
        return reference.is_right(self.error, LIMITS[self.point.dtype])


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
            found = [_received(receive, deadline_s) for receive, _ in ends]
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


def _received(receive: Any, deadline_s: float) -> list[Reduced]:
    if not receive.poll(deadline_s):
        raise RanksFailedError(f"a rank did not finish within {deadline_s:.0f} s")
    try:
        found: list[Reduced] | str = receive.recv()
    except EOFError:
        raise RanksFailedError("a rank ended without an answer") from None
    if isinstance(found, str):
        raise RanksFailedError(found)
    return found


def _slowest(ranks: Sequence[Reduced]) -> Reduced:
    """A collective has taken as long as its last rank; its error is the worst one."""
    slowest = max(ranks, key=lambda reduced: reduced.sample.median_s)
    errors = [reduced.error for reduced in ranks]
    worst = next((error for error in errors if error != error), max(errors))  # a NaN is the worst
    return Reduced(slowest.point, slowest.sample, worst)


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
    timer = CudaTimer(torch.cuda, replays) if cuda else WallTimer(replays, budget_s=float("inf"), switches=lambda: 0)
    device = f"cuda:{rank}" if cuda else "cpu"
    try:
        return [_reduce(torch, distributed, point, rank, device, timer) for point in points]
    finally:
        distributed.destroy_process_group()


def _reduce(
    torch: ModuleType, distributed: ModuleType, point: CollectivePoint, rank: int, device: str, timer: Any
) -> Reduced:
    """One size: the sum against a float64 one of the same numbers, then the time."""
    inputs = [buffer(torch, point, other) for other in range(point.ranks)]
    expected = sum(tensor.double() for tensor in inputs)
    summed = inputs[rank].to(device)
    distributed.all_reduce(summed)
    error = reference.error(summed.cpu().view(1, -1), expected.view(1, -1))
    sent = inputs[rank].to(device).zero_()  # sums of sums would grow without bound over the replays
    distributed.barrier()
    return Reduced(point, timer.measure([partial(distributed.all_reduce, sent)]), error)


def buffer(torch: ModuleType, point: CollectivePoint, rank: int) -> Any:
    """The random numbers that a rank contributes: every rank can make those of all."""
    dtype = getattr(torch, point.dtype)
    generator = torch.Generator("cpu").manual_seed(1000 * rank + point.bytes % 997)
    return torch.randn(point.bytes // dtype.itemsize, generator=generator).to(dtype)
