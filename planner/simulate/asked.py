"""The load that a simulation is asked for: a trace, or requests made from the scenario's workload."""

from dataclasses import dataclass, replace
from pathlib import Path

from planner.errors import InputError
from planner.inputs import Scenario
from planner.simulate.arrivals import Arrivals, arrivals_of, generated
from planner.simulate.changes import Changed, at_rate
from planner.simulate.loads import ClosedLoop, Load
from planner.simulate.traces import open_trace

GENERATED_REQUESTS = 10_000
"""Where nobody says how many."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The load that is asked for."""

    trace: Path | None = None
    form: str | None = None
    """Of the trace; None: what its first line tells."""
    skip_bad: bool = False
    arrivals: str | None = None
    """poisson, gamma, fixed or closed; None: as the workload says."""
    variation: float | None = None
    """Squared coefficient of variation of gamma gaps; None: what the workload's burstiness comes to."""
    rate_per_s: float | None = None
    speed: float | None = None
    """Of a trace's clock."""
    requests: int | None = None
    users: int | None = None
    think_s: float = 0.0
    most_input_tokens: int | None = None
    most_output_tokens: int | None = None
    seed: int = 0


def load_of(scenario: Scenario, asked: Asked) -> Load | ClosedLoop:
    """The load that is asked for, by a trace or by the scenario's workload.

    raises: InputError where options do not go together, or the workload lacks what they need
    """
    _check(asked)
    load = _load(scenario, asked)
    if asked.think_s and not isinstance(load, ClosedLoop):
        raise InputError("--think: needs a closed loop, as --users makes one")
    return load


def _load(scenario: Scenario, asked: Asked) -> Load | ClosedLoop:
    if asked.trace is not None:
        load: Load = _changed(open_trace(asked.trace, asked.form, asked.skip_bad), asked)
        return ClosedLoop(load, asked.users, asked.think_s) if asked.users else load
    workload, count = scenario.workload, asked.requests or GENERATED_REQUESTS
    asked = replace(asked, requests=None)
    users = asked.users or (workload.concurrency if asked.arrivals == "closed" else None)
    if asked.arrivals is None and asked.rate_per_s is None and scenario.arrivals_per_s is None:
        users = users or workload.concurrency
    if users:
        return ClosedLoop(_changed(generated(workload, count, asked.seed, None), asked), users, asked.think_s)
    return _changed(generated(workload, count, asked.seed, _arrivals(scenario, asked)), replace(asked, rate_per_s=None))


def _check(asked: Asked) -> None:
    of_trace = {"--trace-format": asked.form, "--skip-bad": asked.skip_bad or None, "--speed": asked.speed}
    made = {"--arrival-law": asked.arrivals if asked.arrivals != "closed" else None, "--variation": asked.variation}
    paced = {"--rate": asked.rate_per_s, "--speed": asked.speed, "--variation": asked.variation}
    problems = [f"{name}: needs a --trace" for name, given in of_trace.items() if given and asked.trace is None]
    if asked.trace is not None:
        problems += [f"{name}: a trace has its own arrivals" for name, given in made.items() if given is not None]
    if asked.arrivals == "closed" and asked.trace is not None and not asked.users:
        problems.append("--arrival-law closed: a trace says no number of users; --users does")
    if asked.users and asked.arrivals not in (None, "closed"):
        problems.append(f"--arrival-law {asked.arrivals}: in a closed loop answers decide when requests come")
    if asked.users:
        problems += [f"{name}: in a closed loop answers decide when requests come" for name, v in paced.items() if v]
    if asked.rate_per_s and asked.speed:
        problems.append("--rate and --speed: one of the two sets a trace's pace")
    if asked.arrivals == "closed" and asked.rate_per_s:
        problems.append("--rate: in a closed loop answers decide when requests come")
    if asked.variation is not None and asked.arrivals != "gamma":
        problems.append("--variation: needs --arrival-law gamma")
    if problems:
        raise InputError(*problems)


def _changed(load: Load, asked: Asked) -> Load:
    changed = Changed(
        load,
        speed=asked.speed or 1.0,
        most_requests=asked.requests,
        most_input_tokens=asked.most_input_tokens,
        most_output_tokens=asked.most_output_tokens,
    )
    return changed if asked.rate_per_s is None else at_rate(changed, asked.rate_per_s)


def _arrivals(scenario: Scenario, asked: Asked) -> Arrivals:
    rate = asked.rate_per_s or (float(scenario.arrivals_per_s) if scenario.arrivals_per_s is not None else None)
    if rate is None:
        raise InputError(
            f"workload {scenario.workload.name} says no rate of arrivals; --rate does, or --users for a closed loop"
        )
    if asked.arrivals == "gamma" and asked.variation is not None:
        return Arrivals(rate, asked.variation)
    fixed = {"poisson": 1.0, "fixed": 0.0}
    return Arrivals(rate, fixed[asked.arrivals]) if asked.arrivals in fixed else arrivals_of(scenario.workload, rate)
