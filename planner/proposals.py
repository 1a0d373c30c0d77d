"""What would do where the scenario does not: proposed, never substituted."""

from collections.abc import Iterator

from planner.deployment import Deployment, deploy
from planner.errors import InputError
from planner.inputs import Scenario
from planner.objectives import objectives_of
from planner.pool import Pool
from planner.rank import governing_rank
from planner.replica import speed_of
from planner.units import counted

DEGREES = (2, 4, 8, 16)
"""Tensor parallelism that is tried."""


def that_fit(scenario: Scenario) -> tuple[str, ...]:
    """The least tensor parallelism at which one request fits."""
    for flags, deployment, pool in _wider(scenario):
        each = counted(pool.requests(scenario.context) * deployment.ranks.dp, "request")
        return (f"it would fit with {flags}: {each} of {scenario.context:,} tokens per replica",)
    return (f"no tensor parallelism up to {DEGREES[-1]} on this device makes it fit",)


def that_meet(scenario: Scenario) -> tuple[str, ...]:
    """The least tensor parallelism at which an idle replica meets every objective."""
    for flags, deployment, pool in _wider(scenario):
        speed = speed_of(deployment, pool)
        idle = speed.active(1)
        if all(objective.met(idle) for objective in objectives_of(scenario, speed)):
            return (f"every objective can be met with {flags}",)
    return (f"no tensor parallelism up to {DEGREES[-1]} on this device meets every objective",)


def _wider(scenario: Scenario) -> Iterator[tuple[str, Deployment, Pool]]:
    """(flags, deployment, its pool) of each larger tensor parallelism that goes and holds a request."""
    given = scenario.parallelism
    for tp in DEGREES:
        if tp <= given.tp:
            continue
        wider = given.model_copy(update={"tp": tp, "ep": tp * given.dp if given.ep > 1 else 1})
        try:
            deployment = deploy(scenario.model_copy(update={"parallelism": wider}))
        except InputError:
            continue
        pool = governing_rank(deployment).pool
        if pool.requests(scenario.context):
            yield f"--tp {tp}{f' --ep {wider.ep}' if wider.ep > 1 else ''}", deployment, pool
