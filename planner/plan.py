"""The straight line: Scenario -> Report."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any

from planner import __version__, fleet, proposals
from planner.cost import attempts_per_request
from planner.deployment import Deployment, deploy
from planner.derive import derivations, sources
from planner.errors import InputError
from planner.inputs import Scenario, Spares
from planner.latency import Performance, Speed
from planner.objectives import objectives_of
from planner.pool import Pool, longest_context
from planner.rank import Rank, governing_rank
from planner.remarks import assumptions, warnings
from planner.replica import speed_of
from planner.report import Capacity, Carry, Fleet, ModelFacts, Need, Report, ScenarioFacts
from planner.report_cost import Without, billed_usd, cost_lines, devices_of, prefix_lines, prefix_part, reused_prefix
from planner.report_cost import cost_part as cost_of
from planner.report_latency import latency_lines, latency_part, ranges_around, ranges_of
from planner.report_memory import cache_part, capacity_part, memory_part
from planner.sharding import Ranks
from planner.sizing import Sizing, active_in, arriving_at, size
from planner.units import ceil_div, counted, show_number

NO_SPEED: dict[str, Any] = {"tpot_s": None, "itl_p95_s": None, "ttft_p95_s": None, "misses": ()}
"""Of devices that run no replica, or one whose speed is not predicted."""


def estimate(scenario: Scenario, devices: int | None = None) -> Report:
    """The report on a scenario; with devices, also what that many of them carry.

    raises: InputError where the scenario's parts do not go together
    """
    submitted, scenario = scenario, with_retries(scenario)
    deployment = deploy(scenario)
    rank = governing_rank(deployment)
    capacity = capacity_part(deployment, rank.pool)
    fits = capacity.requests_per_replica > 0
    speed, why_not = _speed(deployment, rank.pool) if fits else (None, "")
    sizing = size(scenario, capacity, speed) if fits else Sizing((), scenario.workload.concurrency, None)
    ranges = ranges_of(deployment, speed) if speed else None
    latency = latency_part(scenario, speed, sizing, ranges) if speed and ranges else None
    fleet_part = _fleet(deployment, capacity, sizing.replicas) if sizing.replicas else None
    binding, reason = _binding(deployment, rank, capacity, sizing)
    memory, cache = memory_part(deployment, rank), cache_part(deployment, rank.pool)
    devices_part = devices_of(submitted, fleet_part) if fleet_part else []
    cost_part = cost_of(submitted, fleet_part, devices_part, latency) if fleet_part else None
    without = _without_prefix(deployment, rank.pool, capacity) if speed and fleet_part else None
    prefix = prefix_part(submitted, fleet_part, without)
    carry = _carry(deployment, rank.pool, capacity, devices, sizing.concurrency, speed)
    latency_derived = latency_lines(scenario, speed, sizing, latency) if speed and latency else ()
    return Report(
        planner_version=__version__,
        inputs_digest=digest(submitted),
        scenario=_scenario_facts(submitted, deployment.ranks, sizing.concurrency),
        fits=fits,
        meets_objectives=not fits or sizing.replicas is not None,
        binding_limit=binding,
        binding_reason=reason,
        model=_model_facts(deployment),
        memory=memory,
        kv_cache=cache,
        capacity=capacity,
        needs=sizing.needs,
        latency=latency,
        fleet=fleet_part,
        cost=cost_part,
        carry=carry,
        prefix=prefix,
        growth=(),
        demand=None,
        assumptions=assumptions(deployment, latency),
        warnings=(
            *warnings(deployment, rank.memory, capacity, latency, why_not, fleet_part, cost_part),
            *(carry.misses if carry else ()),
            *(() if fits else proposals.that_fit(scenario)),
            *(proposals.that_meet(scenario) if fits and not sizing.replicas else ()),
        ),
        derivations=(
            *derivations(deployment, rank, cache, capacity, sizing.needs, fleet_part),
            *(cost_lines(submitted, fleet_part, devices_part, cost_part, latency) if fleet_part and cost_part else ()),
            *(prefix_lines(submitted, prefix, cost_part) if prefix else ()),
            *latency_derived,
        ),
        sources=sources(scenario, speed),
    )


def monthly_usd(scenario: Scenario, counts: Iterable[int]) -> dict[int, Decimal]:
    """What fleets of these numbers of active replicas cost a month, spares and other lines included.

    raises: InputError where the scenario's parts do not go together
    """
    deployment = deploy(scenario)
    capacity = capacity_part(deployment, governing_rank(deployment).pool)
    return {count: _monthly_usd(scenario, _fleet(deployment, capacity, count)) for count in counts}


def least_usd(scenarios: Sequence[Scenario]) -> list[Decimal | str]:
    """What the fleet that each of these needs costs a month, as estimate has it, or why none serves it.

    scenarios: alike but for their load
    raises: InputError where their parts do not go together
    """
    deployment = deploy(scenarios[0])
    rank = governing_rank(deployment)
    capacity = capacity_part(deployment, rank.pool)
    if not capacity.requests_per_replica:
        return [_binding(deployment, rank, capacity, Sizing((), None, None))[1]] * len(scenarios)
    speed, _ = _speed(deployment, rank.pool)
    return [_least_usd(replace(deployment, scenario=each), capacity, speed) for each in scenarios]


def _least_usd(deployment: Deployment, capacity: Capacity, speed: Speed | None) -> Decimal | str:
    scenario = deployment.scenario
    sizing = size(with_retries(scenario), capacity, speed)
    if sizing.replicas is None:
        return sizing.binding.text
    return _monthly_usd(scenario, _fleet(deployment, capacity, sizing.replicas))


def devices_usd(deployment: Deployment, capacity: Capacity, active: int) -> Fraction:
    """Dollars a month of the devices billed for so many active replicas, spares and whole instances included."""
    return billed_usd(devices_of(deployment.scenario, _fleet(deployment, capacity, active)))


def _monthly_usd(scenario: Scenario, fleet_part: Fleet) -> Decimal:
    return cost_of(scenario, fleet_part, devices_of(scenario, fleet_part), None).monthly_usd


def _speed(deployment: Deployment, pool: Pool) -> tuple[Speed | None, str]:
    """(the speed of one replica, or why it is not predicted).

    raises: InputError where the scenario cannot do without
    """
    workload = deployment.scenario.workload
    try:
        return speed_of(deployment, pool), ""
    except InputError as error:
        why = error.problems[0]
        asked = workload.objectives
        needing = {
            "calibration": deployment.scenario.calibration,
            "workload.arrivals_per_s": deployment.scenario.arrivals_per_s,
            "workload.objectives": asked.ttft_p95_s or asked.itl_p95_s or asked.success_share,
        }
        for field, value in needing.items():
            if value is not None:
                raise InputError(f"{field}: speed cannot be predicted: {why}") from None
        return None, why


def digest(scenario: Scenario) -> str:
    """SHA-256 of the resolved inputs, so that two reports can be told to rest on the same ones."""
    return "sha256:" + hashlib.sha256(scenario.model_dump_json().encode()).hexdigest()


def with_retries(scenario: Scenario) -> Scenario:
    """What a fleet must serve: retries are load like any other."""
    workload = scenario.workload
    if not workload.retries_per_failure:
        return scenario
    attempts = attempts_per_request(workload.success_share, workload.retries_per_failure)
    rate, month = workload.arrivals_per_s, workload.requests_per_month
    load = {
        "arrivals_per_s": None if rate is None else rate * attempts.numerator / attempts.denominator,
        "requests_per_month": None if month is None else ceil(month * attempts),
    }
    return scenario.model_copy(update={"workload": workload.model_copy(update=load)})


def _scenario_facts(scenario: Scenario, ranks: Ranks, concurrency: int | None) -> ScenarioFacts:
    objectives = scenario.workload.objectives
    return ScenarioFacts(
        name=scenario.name,
        title=scenario.title,
        model=scenario.model.name,
        accelerator=scenario.accelerator.name,
        engine=scenario.engine.name,
        engine_version=scenario.engine.version,
        workload=scenario.workload.name,
        tp=ranks.tp,
        pp=ranks.pp,
        dp=ranks.dp,
        ep=ranks.ep,
        context_tokens=scenario.context,
        mean_tokens=scenario.workload.mean_tokens,
        concurrency=concurrency,
        arrivals_per_s=scenario.arrivals_per_s,
        ttft_p95_limit_s=objectives.ttft_p95_s,
        itl_p95_limit_s=objectives.itl_p95_s,
        success_share_limit=objectives.success_share,
        availability_limit=objectives.availability,
        requests_per_month=scenario.workload.requests_per_month,
        success_share=scenario.workload.success_share,
        retries_per_failure=scenario.workload.retries_per_failure,
        usd_per_device_hour=scenario.price.usd_per_hour / scenario.price.devices,
        price=scenario.price.label,
        commitment=scenario.commitment.label if scenario.commitment else None,
        peak_hours_share=scenario.commitment.peak_hours_share if scenario.commitment else None,
        api_price=scenario.api_price.label if scenario.api_price else None,
        hours_per_month=scenario.hours_per_month,
    )


def _model_facts(deployment: Deployment) -> ModelFacts:
    stack = deployment.stack
    return ModelFacts(
        model_type=deployment.scenario.model.config["model_type"],
        parameters=stack.parameters,
        active_parameters=stack.active_parameters,
        layers=len(stack.layers),
        max_positions=stack.max_positions,
        dtype=deployment.dtype,
        quantisation=deployment.quantisation.name if deployment.quantisation else None,
    )


def _binding(deployment: Deployment, rank: Rank, capacity: Capacity, sizing: Sizing) -> tuple[str, str]:
    """(the limit that binds, why)."""
    memory, pool, scenario = rank.memory, rank.pool, deployment.scenario
    if memory.kv_budget.bytes <= 0:
        taken = memory.device.bytes - memory.kv_budget.bytes
        return "device_memory", (
            f"the model does not fit: weights, workspace and reserve take {taken:,} B of the device's "
            f"{memory.device.bytes:,} B"
        )
    if capacity.requests_per_replica == 0:
        return "kv_memory", (
            f"not one request of {counted(scenario.context, 'token')} fits: it needs "
            f"{pool.reserved_blocks(scenario.context):,} blocks and {pool.usable_blocks:,} are usable; the longest "
            f"context that fits is {counted(capacity.longest_context_tokens, 'token')}"
        )
    if sizing.replicas == 1:
        slots = counted(capacity.slots_per_replica, "slot")
        return "one_replica", f"one replica is the smallest fleet: {sizing.concurrency:,} of its {slots} needed"
    return sizing.binding.limit, sizing.binding.text


def _fleet(deployment: Deployment, capacity: Capacity, active: int) -> Fleet:
    scenario, per_replica = deployment.scenario, deployment.ranks.devices
    plan = fleet.spare_plan(active, *_spare_rule(deployment))
    found, replicas = plan.redundancy, active + plan.replicas
    spread = fleet.instances_apart(plan, active, scenario.spares, per_replica, scenario.price)
    bill = fleet.bill(replicas, per_replica, scenario.price, scenario.commitment, spread)
    return Fleet(
        active_replicas=active,
        spare_replicas=plan.replicas,
        spare_rules=tuple(Need(limit=rule.name, replicas=rule.replicas, text=rule.text) for rule in plan.rules),
        devices_per_replica=per_replica,
        devices=replicas * per_replica,
        billed_devices=bill.committed.billed_devices + bill.beyond.billed_devices,
        committed_devices=bill.committed.billed_devices,
        nodes=bill.nodes,
        slots=active * capacity.slots_per_replica,
        availability=found.availability if found else None,
        availability_one_fewer=found.one_fewer if found else None,
    )


def _without_prefix(deployment: Deployment, pool: Pool, capacity: Capacity) -> Without | None:
    """The same plan were no prefix shared, which only speed can tell from this one; None where none is."""
    scenario = deployment.scenario
    if reused_prefix(scenario) is None:
        return None
    workload = scenario.workload.model_copy(update={"prefix": None})
    plain = replace(deployment, scenario=scenario.model_copy(update={"workload": workload}))
    try:
        sizing = size(plain.scenario, capacity, speed_of(plain, pool))
    except InputError as error:
        return Without(None, error.problems[0])
    found = _fleet(plain, capacity, sizing.replicas) if sizing.replicas else None
    return Without(found, sizing.binding.text)


def _spare_rule(deployment: Deployment) -> tuple[Spares, Decimal | None, int, int]:
    """What spares of a deployment follow from, beside the number of its active replicas."""
    scenario = deployment.scenario
    availability = scenario.workload.objectives.availability
    return scenario.spares, availability, deployment.ranks.devices, scenario.price.devices


def _carry(
    deployment: Deployment,
    pool: Pool,
    capacity: Capacity,
    devices: int | None,
    concurrency: int | None,
    speed: Speed | None,
) -> Carry | None:
    """What this many devices carry at the scenario's context, and the context they carry its concurrency at."""
    if devices is None or concurrency is None:
        return None
    per_replica = deployment.ranks.devices
    rule = _spare_rule(deployment)
    replicas = devices // per_replica
    active = fleet.active_within(replicas, *rule)
    waived = replicas > 0 and active == 0
    active = replicas if waived else active
    spare = 0 if waived or not active else fleet.spare_plan(active, *rule).replicas
    slots = active * capacity.slots_per_replica
    if speed and active and deployment.scenario.arrivals_per_s is not None:
        at = arriving_at(speed, deployment.scenario, active)
        concurrency = active_in(deployment.scenario.workload, at, active)
    per_rank = ceil_div(concurrency, active * deployment.ranks.dp) if active else 0
    schedulable = bool(active) and (not deployment.max_num_seqs or per_rank <= deployment.max_num_seqs)
    return Carry(
        devices=devices,
        active_replicas=active,
        spare_replicas=spare,
        spares_waived=waived,
        idle_devices=devices - (active + spare) * per_replica,
        requests_at_context=slots,
        running_requests=min(slots, concurrency),
        queued_requests=max(0, concurrency - slots),
        longest_context_tokens=longest_context(pool, per_rank, deployment.stack.max_positions) if schedulable else 0,
        **(_carried_speed(deployment, speed, active, min(slots, concurrency)) if speed and active else NO_SPEED),
    )


def _carried_speed(deployment: Deployment, speed: Speed, active: int, running: int) -> dict[str, Any]:
    """Times of the requests that this many replicas run, and the objectives that they miss."""
    scenario, ranges = deployment.scenario, ranges_of(deployment, speed)
    given = scenario.arrivals_per_s is None
    at = speed.active(ceil_div(running, active)) if given else arriving_at(speed, scenario, active)
    return {
        "tpot_s": ranges_around(at.tpot.seconds, ranges.tpot, ranges),
        "itl_p95_s": ranges_around(at.itl_p95_s, ranges.tpot, ranges),
        "ttft_p95_s": None if at.saturated else ranges_around(at.ttft_p95_s, ranges.ttft, ranges),
        "misses": tuple(_misses(scenario, speed, at, active)),
    }


def _misses(scenario: Scenario, speed: Speed, at: Performance, active: int) -> Iterator[str]:
    """What these devices do not do: keep up with what arrives, and meet each objective."""
    if at.saturated:
        rate, serving = show_number(at.arrivals_per_s * active), counted(active, "active replica")
        yield (
            f"{rate} requests a second are more than the {serving} of these devices can serve: the queue grows without "
            "end"
        )
    for objective in objectives_of(scenario, speed):
        if not objective.met(at) and not (at.saturated and objective.queues):
            yield f"{objective.what} is {objective.shown(at)} on these devices; {objective.asked}"
