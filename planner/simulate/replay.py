"""A recorded run once more, by the simulated engine: the same arrivals and lengths, other times."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.simulate.cluster import Cluster
from planner.simulate.engine import Engine
from planner.simulate.loads import Listed
from planner.simulate.measures import Limits, Meter, Point
from planner.simulate.requests import Request
from planner.simulate.rules import Memory, Rules
from planner.simulate.run import Run
from planner.simulate.steps import StepTimes


@dataclass(frozen=True, slots=True)
class Machine:
    """What replays a run: the engines of one replica."""

    memory: Memory
    rules: Rules
    ranks: int
    """Data-parallel ranks, each an engine that gets the next request where it has fewest."""
    together: bool = False
    """Their steps are one another's."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of the requests, in their order."""

    times: tuple[tuple[float, float], ...]
    """Of each: when its first token came, and its last [s]."""
    preemptions: int
    points: tuple[Point, ...]


class _Recorder(Meter):
    """Keeps each request's times."""

    def __init__(self) -> None:
        super().__init__(Limits())
        self.of_request: dict[int, tuple[float, float]] = {}

    def done(self, runs: list[Run]) -> None:
        """Requests got their last token."""
        super().done(runs)
        for run in runs:
            self.of_request[id(run.request)] = run.first_s, run.end_s


def replay(requests: Sequence[Request], machine: Machine, times: StepTimes) -> Replayed:
    """The requests through the engines.

    requests: in order of arrival, none longer than an engine takes
    """
    recorder = _Recorder()

    def engine(meter: Meter) -> Engine:
        return Engine(machine.memory, machine.rules, times, meter)

    together = machine.ranks if machine.together else 1
    Cluster(engine, machine.ranks, recorder, routing="least-loaded", together=together).run(Listed(requests))
    found = tuple(recorder.of_request[id(request)] for request in requests)
    return Replayed(found, recorder.preemptions, tuple(recorder.series.points))
