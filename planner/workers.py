"""Work spread over processes, in order: here, or by joblib's workers on this machine or a cluster."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

Item = TypeVar("Item")
Done = TypeVar("Done")


def each_done(
    work: Callable[[Item], Done], items: Sequence[Item], jobs: int | None, per_round: int = 1
) -> Iterator[Done]:
    """What the work makes of each item, in order.

    jobs: workers; 1: this process alone; None: as joblib.parallel_config says
    per_round: items of each worker between two times that results are given out
    """
    if jobs == 1 or len(items) == 1:
        yield from map(work, items)
        return
    import joblib

    with ExitStack() as stack:
        with _uninterrupted():
            workers = stack.enter_context(joblib.Parallel(n_jobs=jobs))
            if jobs is not None:
                workers([joblib.delayed(int)()])  # so that every worker starts here
        size = per_round * joblib.effective_n_jobs(jobs)
        for i in range(0, len(items), size):
            yield from workers(joblib.delayed(work)(item) for item in items[i : i + size])


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold interrupts back, for good in processes that start here: a terminal stops this one, and it stops them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # else it is started with the first worker, and lets interrupts through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
