"""What a workload asks of a fleet's speed: when each objective is met, and how a reader is told."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from planner.inputs import Scenario
from planner.latency import PERCENTILE, Performance, Speed
from planner.units import show_seconds

DIGITS = 4
"""Of times that stand beside the limit they are held against."""
SHARE_DIGITS = 4
"""After the point: a share is met as it is shown."""


@dataclass(frozen=True, slots=True)
class Objective:
    """One objective."""

    name: str
    what: str
    """As text names what it bounds."""
    met: Callable[[Performance], bool]
    shown: Callable[[Performance], str]
    """What that comes to at a load."""
    asked: str
    queues: bool = True
    """Whether a queue without end misses it."""
    alone: str = ""
    """Why no load meets it, where that can be said shortly."""


def objectives_of(scenario: Scenario, speed: Speed) -> list[Objective]:
    """The objectives that a scenario's workload has, as far as speed decides them."""
    asked, found = scenario.workload.objectives, []
    if asked.ttft_p95_s is not None:
        found.append(_ttft(float(asked.ttft_p95_s), speed))
    if asked.itl_p95_s is not None:
        found.append(_itl(float(asked.itl_p95_s)))
    if asked.success_share is not None:
        found.append(_success(scenario, asked.success_share))
    return found


def _ttft(limit: float, speed: Speed) -> Objective:
    slow, prefill = speed.p95_prefill
    alone = f"{slow:,}-token prompts cannot meet {show_seconds(limit)}: {show_seconds(prefill)} of prefill alone"
    return Objective(
        "ttft_p95",
        "p95 TTFT",
        lambda at: at.within(limit) >= PERCENTILE,
        lambda at: show_seconds(at.ttft_p95_s, DIGITS),
        f"{show_seconds(limit)} is asked for",
        alone=alone if prefill > limit else "",
    )


def _itl(limit: float) -> Objective:
    return Objective(
        "itl_p95",
        "p95 of the gaps between tokens",
        lambda at: at.itl_p95_s <= limit,
        lambda at: show_seconds(at.itl_p95_s, DIGITS),
        f"{show_seconds(limit)} is asked for",
        queues=False,
    )


def _success(scenario: Scenario, share: Decimal) -> Objective:
    """Requests that end well, times those whose first token comes in time: the two are taken as independent."""
    ends, limit = scenario.workload.success_share, scenario.workload.objectives.ttft_p95_s

    def reached(at: Performance) -> float:
        return float(ends) * (1.0 if limit is None else at.within(float(limit)))

    alone = f"{ends:%} of the requests end well whatever the fleet, and {share:%} are asked for" if ends < share else ""
    return Objective(
        "success_share",
        "the share of requests that end well and start in time",
        lambda at: round(reached(at), SHARE_DIGITS) >= float(share),
        lambda at: f"{reached(at):.2%}",
        f"{share:%} are asked for",
        alone=alone,
    )
