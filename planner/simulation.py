"""The fleet that the formulas propose, tried against arrivals: Scenario and load -> Report.

report = simulate(scenario, load_of(scenario, Asked()), Fleet())
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf
from typing import Any

from planner.demand import plan_demand
from planner.deployment import deploy
from planner.errors import InputError
from planner.inputs import Failures as FailureRate
from planner.inputs import Scenario
from planner.plan import with_retries
from planner.report import Report
from planner.report_simulation import Simulation
from planner.simulate.asked import Asked, load_of
from planner.simulate.checks import Seen, checks_of
from planner.simulate.cluster import ROUTINGS, Cluster, Failures, Result
from planner.simulate.engine import Engine
from planner.simulate.hashes import Hashes
from planner.simulate.loads import ClosedLoop, Load
from planner.simulate.measures import Limits, Meter
from planner.simulate.outcome import measured
from planner.simulate.setting import setting_of
from planner.units import counted, show_seconds
from planner.workers import each_done

MOST_TRIED = 12
"""Fleets that are simulated in search of the least that is enough."""
LEAST_GAIN = 0.01
"""Of twice as many replicas, below which even more are not tried."""
MOST_LOST = 0.01
"""Of the submitted requests, those without an answer, where no success share is asked for."""
MOST_ENGINES = 4096
"""More engines than a simulation keeps."""
HOUR_S = 3600

Progress = Callable[[int], None]
Step = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Fleet:
    """What serves it."""

    replicas: int | None = None
    """None: as many as the estimate says, which is then confirmed or corrected."""
    routing: str = ROUTINGS[0]
    fails: bool = False
    """Nodes fail as often as the scenario's spares.failures says, and its spares serve too."""
    max_queue: int | None = None
    timeout_s: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """One simulation of several."""

    asked: Asked
    fleet: Fleet
    rate_per_s: float | None = None
    """In place of the load's own."""
    replicas: int | None = None


def simulate_all(
    scenario: Scenario, tasks: Sequence[Task], *, jobs: int | None = 1, step: Step = lambda _done, _of: None
) -> list[Report]:
    """A report of each task, in order.

    jobs: workers; 1: this process alone; None: as joblib.parallel_config says
    step: told how many requests of how many (None: not known) have been sent, or with workers how many tasks are done
    raises: as load_of and simulate
    """
    if jobs == 1 or len(tasks) == 1:
        return [_simulated(scenario, task, partial(_of, step, task.asked.requests), jobs) for task in tasks]
    reports = []
    for report in each_done(partial(_simulated, scenario), tasks, jobs):
        reports.append(report)
        step(len(reports), len(tasks))
    return reports


def _of(step: Step, of: int | None, done: int) -> None:
    step(done, of)


def _simulated(scenario: Scenario, task: Task, progress: Progress = lambda _done: None, jobs: int | None = 1) -> Report:
    asked = task.asked if task.rate_per_s is None else replace(task.asked, rate_per_s=task.rate_per_s)
    return simulate(
        scenario, load_of(scenario, asked), replace(task.fleet, replicas=task.replicas), progress, jobs=jobs
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """One fleet, simulated."""

    fields: dict[str, Any]
    meter: Meter
    misses: tuple[str, ...]


def simulate(
    scenario: Scenario,
    load: Load | ClosedLoop,
    fleet: Fleet,
    progress: Progress = lambda _done: None,
    *,
    jobs: int | None = 1,
) -> Report:
    """The estimate with the simulation of its fleet; without one where no fleet is enough by the formulas.

    Nor is there one where a replica's memory holds no request at all.

    jobs: workers over which replicas that know nothing of one another are spread; 1: this process alone; None: as
        joblib.parallel_config says
    raises: InputError where the scenario's parts do not go together, or the engine cannot be simulated
    """
    if isinstance(load, ClosedLoop):
        _check_closed(fleet)
    report = plan_demand(scenario)
    planned = report.fleet.active_replicas if report.fleet else None
    replicas = fleet.replicas or planned
    if replicas is None or not report.capacity.longest_context_tokens:
        return report
    served = with_retries(scenario)

    @cache
    def tried(count: int) -> Trial:
        return _try(served, load, fleet, count, progress, jobs)

    spare = report.fleet.spare_replicas if fleet.fails and report.fleet else 0
    trial = tried(replicas + spare)
    least = None
    if not fleet.replicas:
        least = _least(
            lambda count: not tried(count + spare).misses,
            replicas,
            lambda few, many: _helped(served, *(tried(count + spare).fields for count in (few, many))),
            MOST_ENGINES // scenario.parallelism.dp - spare,
        )
    found = Simulation(
        **trial.fields,
        seed=fleet.seed,
        replicas=replicas + spare,
        checks=checks_of(report, _seen(trial)),
        met=not trial.misses,
        misses=trial.misses,
        least_replicas=least,
        verdict="",
    )
    verdict = _verdict(report, found, fleet, replicas, least)
    return report.model_copy(update={"simulation": found.model_copy(update={"verdict": verdict})})


def _check_closed(fleet: Fleet) -> None:
    """raises: InputError with what no closed loop has"""
    given = {"--failures": fleet.fails, "--max-queue": fleet.max_queue is not None}
    problems = [
        f"{name}: needs requests that come by the clock, not a closed loop" for name, asked in given.items() if asked
    ]
    if fleet.routing != ROUTINGS[0]:
        problems.append("--routing: in a closed loop each user keeps to one replica")
    if problems:
        raise InputError(*problems)


def _try(
    scenario: Scenario,
    load: Load | ClosedLoop,
    fleet: Fleet,
    replicas: int,
    progress: Progress,
    jobs: int | None,
) -> Trial:
    """A fleet of so many replicas under the load."""
    engines = replicas * scenario.parallelism.dp
    if engines > MOST_ENGINES:
        raise InputError(f"fleet: {engines:,} engines are more than the {MOST_ENGINES:,} that a simulation keeps")
    apart = fleet.routing == ROUTINGS[0] and not fleet.fails and not isinstance(load, ClosedLoop)
    parts = _parts(replicas, scenario.parallelism.dp, jobs if apart and jobs is not None else 1)
    work = partial(_run, scenario, load, fleet, engines, progress=progress if len(parts) == 1 else None)
    first, *others = each_done(work, parts, jobs)
    for other in others:
        first.merge(other)
    fields = measured(first) | {"load": load.name, "load_facts": first.facts, "routing": fleet.routing}
    return Trial(fields, first.meter, tuple(_misses(scenario, fields)))


def _parts(replicas: int, ranks: int, jobs: int) -> list[range]:
    """Engines that one worker simulates: those of as many replicas as another's, or of one more."""
    count = min(replicas, jobs)
    return [range(replicas * i // count * ranks, replicas * (i + 1) // count * ranks) for i in range(count)]


def _run(
    scenario: Scenario,
    load: Load | ClosedLoop,
    fleet: Fleet,
    engines: int,
    mine: range,
    progress: Progress | None = None,
) -> Result:
    """Some engines of a fleet under the load."""
    setting = setting_of(deploy(scenario), max_queue=fleet.max_queue, timeout_s=fleet.timeout_s)
    objectives = scenario.workload.objectives
    first, gap = objectives.ttft_p95_s, objectives.itl_p95_s
    meter = Meter(Limits(None if first is None else float(first), None if gap is None else float(gap)))
    hashed = load.chunk_tokens and setting.memory.growing
    hashes = Hashes(setting.memory, load.chunk_tokens) if hashed else None
    cluster = Cluster(
        lambda meter: Engine(setting.memory, setting.rules, setting.times, meter, hashes),
        engines,
        meter,
        routing=fleet.routing,
        delay_s=setting.times.replica.times.server_request_s,
        failures=_failures(scenario, setting.ranks, fleet.seed) if fleet.fails else None,
        mine=mine,
        together=setting.together,
    )
    told = progress or (lambda _done: None)
    result = cluster.run_closed(load, told) if isinstance(load, ClosedLoop) else cluster.run(load, told)
    result.facts = load.facts()
    return result


def _failures(scenario: Scenario, ranks: int, seed: int) -> Failures:
    """Of nodes, from the failures of devices."""
    rate = scenario.spares.failures
    if rate is None:
        raise InputError("--failures: spares.failures is missing; it says how often devices fail")
    return failures_of(rate, scenario.spares.devices_per_node or scenario.price.devices, scenario, ranks, seed)


def failures_of(rate: FailureRate, node: int, scenario: Scenario, ranks: int, seed: int) -> Failures:
    """A node fails with any of its devices, and whatever replicas it holds with it.

    node: devices that fail together
    ranks: engines of a replica
    """
    devices = scenario.parallelism.tp * scenario.parallelism.pp * scenario.parallelism.dp
    together = max(node, devices)
    return Failures(
        mtbf_s=float(rate.device_hours_per_failure) * HOUR_S / together,
        mttr_s=float(rate.mttr_hours) * HOUR_S,
        engines_per_node=max(1, node // devices) * ranks,
        seed=seed,
    )


def _seen(trial: Trial) -> Seen:
    fields, meter = trial.fields, trial.meter
    done = meter.done_count

    def at(name: str, part: str) -> float | None:
        return None if fields[name] is None else float(getattr(fields[name], part))

    return Seen(
        offered_per_s=fields["offered_per_s"],
        input_tokens=meter.input_tokens / done if done else None,
        output_tokens=meter.output_tokens / done if done else None,
        hit_share=fields["hit_share"],
        tpot_mean_s=at("tpot_s", "mean"),
        itl_p95_s=at("itl_s", "p95"),
        ttft_p95_s=at("ttft_s", "p95"),
        active_mean=fields["running_mean"] + fields["waiting_mean"],
        preemptions=meter.preemptions,
        too_long=meter.too_long,
        completed=done,
        saturated=fields["saturated"],
        saturation=fields["saturation"],
    )


def _misses(scenario: Scenario, fields: dict[str, Any]) -> list[str]:
    """Objectives that the simulated fleet does not meet, and a queue without end."""
    asked, found = scenario.workload.objectives, []
    if fields["saturated"]:
        what = "too much was turned away" if fields["turned_away"] else "the queue grows without end"
        found.append(f"{what}: {fields['saturation']}")
    lost = fields["cancelled"] + fields["turned_away"] + fields["too_long"]
    if lost > MOST_LOST * fields["submitted"]:
        found.append(f"{lost:,} of {counted(fields['submitted'], 'request')} were cancelled, turned away or too long")
    for what, limit, measured_at in (
        ("p95 TTFT", asked.ttft_p95_s, fields["ttft_s"]),
        ("p95 of the gaps between tokens", asked.itl_p95_s, fields["itl_s"]),
    ):
        if limit is not None and (measured_at is None or measured_at.p95 > float(limit)):
            seen = "has no value" if measured_at is None else f"is {show_seconds(measured_at.p95)}"
            found.append(f"{what} {seen}; {show_seconds(float(limit))} is asked for")
    share = fields["in_time_share"]
    if asked.success_share is not None and share is not None:
        reached = share * float(scenario.workload.success_share)
        if reached < float(asked.success_share):
            found.append(
                f"the share of requests that end well and start in time is {reached:.2%}; {asked.success_share:%} are "
                "asked for"
            )
    return found


def _least(enough: Callable[[int], bool], first: int, helped: Callable[[int, int], bool], most: int) -> int | None:
    """The fewest replicas that are enough, by doubling steps away from the first and bisection; None: not found.

    At most MOST_TRIED fleets are asked, none larger than most but the first.
    helped: whether the second of two numbers is any better than the first; if twice as many are not, no more are tried
    """
    good, bad, step, left = None, 0, 1, MOST_TRIED
    count, before = first, first
    while left and (good is None or good - bad > 1):
        left -= 1
        if enough(count):
            good = count
        elif good is None and count >= 2 * before and not helped(before, count):
            return None
        else:
            bad = count
            before = count if count >= 2 * before else before
        if good is not None and bad:
            count = (good + bad) // 2
        elif good is None:
            if count >= most:
                return None
            count, step = min(most, count + step), step * 2
        else:
            count, step = max(1, count - step), step * 2
    return good


def _helped(scenario: Scenario, few: dict[str, Any], many: dict[str, Any]) -> bool:
    """Whether anything that a fleet can miss is better by LEAST_GAIN with more replicas."""
    asked = scenario.workload.objectives
    limits = {"ttft_s": asked.ttft_p95_s, "itl_s": asked.itl_p95_s}

    def missed(fields: dict[str, Any]) -> list[float]:
        times = [fields[name].p95 if fields[name] else inf for name, limit in limits.items() if limit is not None]
        late = 0.0 if asked.success_share is None else 1 - (fields["in_time_share"] or 0.0)
        return [*times, late, fields["cancelled"] + fields["turned_away"], fields["saturated"]]

    return any(before > (1 + LEAST_GAIN) * after for before, after in zip(missed(few), missed(many), strict=True))


def _verdict(report: Report, found: Simulation, fleet: Fleet, replicas: int, least: int | None) -> str:
    broken = [check for check in found.checks if not check.holds]
    why = "; ".join(f"{each.what}: {each.planned} planned, {each.simulated} simulated" for each in broken[:3])
    because = f" What did not hold: {why}." if why else ""
    of_these = f"{counted(replicas, 'replica')} {'is' if replicas == 1 else 'are'}"
    if fleet.replicas is not None:
        return f"{of_these} {'enough' if found.met else f'not enough: {found.misses[0]}'}.{because}"
    if least == replicas:
        return f"Confirmed: {of_these} enough, and no fewer.{because}"
    if least is None:
        return f"Not confirmed: {of_these} not enough, nor is any fleet tried.{because}"
    enough = f"{counted(least, 'replica')} {'is' if least == 1 else 'are'} enough"
    floor = ""
    if least < replicas and report.binding_limit == "kv_memory":
        floor = (
            " The formulas reserve every request at the full context, a safe floor; with "
            f"{counted(found.replicas, 'replica')} the cache was at most {found.kv_used_max:.0%} full."
        )
    return f"Corrected: {enough}, not {replicas:,} as the formulas say.{floor}{because}"
