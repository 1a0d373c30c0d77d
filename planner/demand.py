"""Demand that grows or is not known exactly: a plan for each month, and for each world, and the least regret.

report = plan_demand(scenario)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from itertools import accumulate, product
from math import ceil
from typing import Any

from pydantic import BaseModel

from planner.documents import validate
from planner.errors import InputError
from planner.inputs import Growth, Scenario
from planner.origin import Origin
from planner.plan import least_usd, monthly_usd
from planner.report import Fleet, Report
from planner.report_demand import DemandRange, GrowthMonth, World
from planner.tenants import plan_tenants

LEVELS = (("low", 0.3), ("mid", 0.4), ("high", 0.3))
"""Of an interval: the 10th, 50th and 90th percentile stand for the whole by Swanson's rule (Hurst, Brown and Swanson
2000, AAPG Bulletin 84(12), 1883-1891)."""
OVER, UNDER, EXPONENT = 1.0, 1.25, 1.2
"""Regret per dollar spent too much, and too little, and its power (Netflix-Skunkworks/service-capacity-modeling,
interface.py, CapacityRegretParameters.spend)."""

MOST_CANDIDATES = 100

UNCERTAIN = Origin("uncertain")

ALONE = ("context_tokens", "hours_per_month")
"""Fields of a scenario itself that may be uncertain."""


def plan_demand(scenario: Scenario, devices: int | None = None) -> Report:
    """tenants.plan_tenants, with the months of a growing load and the worlds of an uncertain one.

    raises: InputError where the scenario's parts do not go together
    """
    report = plan_tenants(scenario, devices)
    growth = tuple(_months(scenario, scenario.growth)) if scenario.growth else ()
    demand = _range(scenario) if scenario.uncertain else None
    return report.model_copy(update={"growth": growth, "demand": demand}) if growth or demand else report


def _months(scenario: Scenario, growth: Growth) -> Iterator[GrowthMonth]:
    for month, load in enumerate(_loads(growth), 1):
        found = _planned(grown(scenario, load))
        yield GrowthMonth(
            month=month,
            load=float(f"{load:.6g}"),
            active_replicas=found.fleet.active_replicas if found.fleet else None,
            billed_devices=found.fleet.billed_devices if found.fleet else None,
            monthly_usd=found.monthly_usd,
            reason=found.reason,
        )


def _loads(growth: Growth) -> Iterator[Decimal]:
    """Of each month, over that of the first."""
    return accumulate(range(growth.months - 1), lambda load, _: load * (1 + growth.per_month), initial=Decimal(1))


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a month or a world comes to."""

    fleet: Fleet | None = None
    monthly_usd: Decimal | None = None
    reason: str | None = None
    """Why there is no fleet."""


def _planned(scenario: Scenario) -> _Plan:
    """One that no plan can be made for is an answer too: the others stand."""
    try:
        found = plan_tenants(scenario)
    except InputError as error:
        return _Plan(reason=error.problems[0])
    if found.fleet is None or found.cost is None:
        return _Plan(reason=found.binding_reason)
    return _Plan(found.fleet, found.cost.monthly_usd)


def grown(scenario: Scenario, load: Decimal) -> Scenario:
    """The scenario at so many times its load: requests active, arriving and in a month."""
    workload = scenario.workload
    scaled: dict[str, Any] = {
        name: ceil(value * load)
        for name in ("concurrency", "requests_per_month")
        if (value := getattr(workload, name)) is not None
    }
    if workload.arrivals_per_s is not None:
        scaled["arrivals_per_s"] = workload.arrivals_per_s * load
    return scenario.model_copy(update={"workload": workload.model_copy(update=scaled)})


@dataclass(frozen=True, slots=True)
class _World:
    """One combination of values, and its plan."""

    values: dict[str, Decimal]
    weight: float
    scenario: Scenario | None
    """None where the values do not go together."""
    plan: _Plan

    @property
    def need(self) -> int | None:
        """Its own fleet's active replicas; None where it has none."""
        return self.plan.fleet.active_replicas if self.plan.fleet else None

    def regrets(self, counts: list[int]) -> dict[int, float]:
        """Of fleets of these numbers of active replicas; of none where it has no plan."""
        if self.scenario is None or self.need is None:
            return {}
        costs = monthly_usd(self.scenario, {*counts, self.need})
        return {count: regret(costs[count], costs[self.need]) for count in counts}


def _world(scenario: Scenario, values: dict[str, Decimal], weight: float) -> _World:
    """One whose values do not go together has no plan.

    raises: InputError where a field does not take its value, whatever the others are
    """
    found = _with_values(scenario, values)
    if isinstance(found, str):
        return _World(values, weight, None, _Plan(reason=found))
    return _World(values, weight, found, _planned(found))


def _range(scenario: Scenario) -> DemandRange:
    worlds = [_world(scenario, values, weight) for values, weight in worlds_of(scenario)]
    needs = sorted({world.need for world in worlds if world.need is not None})
    costs = [world.plan.monthly_usd for world in worlds if world.plan.monthly_usd is not None]
    candidates = _candidates(needs) if needs else []
    regrets = [world.regrets(candidates) for world in worlds]
    best = min(candidates, key=lambda count: (_expected(worlds, regrets, count), -count), default=None)
    middle = worlds[len(worlds) // 2].scenario
    return DemandRange(
        worlds=tuple(
            World(
                values=tuple(f"{path}={value}" for path, value in world.values.items()),
                weight=round(world.weight, 6),
                active_replicas=world.need,
                monthly_usd=world.plan.monthly_usd,
                regret=round(of_counts[best], 2) if of_counts and best is not None else None,
                reason=world.plan.reason,
            )
            for world, of_counts in zip(worlds, regrets, strict=True)
        ),
        active_replicas_low=min(needs, default=None),
        active_replicas_high=max(needs, default=None),
        monthly_usd_low=min(costs, default=None),
        monthly_usd_high=max(costs, default=None),
        infeasible_share=round(sum(world.weight for world in worlds if world.need is None), 6),
        least_regret_replicas=best,
        least_regret_monthly_usd=_usd_of(middle, best) if middle and best else None,
        enough_share=round(sum(world.weight for world in worlds if world.need and best and world.need <= best), 6),
    )


def _usd_of(scenario: Scenario, count: int) -> Decimal | None:
    """A fleet of so many active replicas; None where the scenario's parts do not go together."""
    try:
        return monthly_usd(scenario, (count,))[count]
    except InputError:
        return None


def _expected(worlds: list[_World], regrets: list[dict[int, float]], count: int) -> float:
    """Mean regret of a fleet over the worlds that have a plan."""
    return sum(world.weight * of[count] for world, of in zip(worlds, regrets, strict=True) if of)


def _candidates(needs: list[int]) -> list[int]:
    """Fleets that may be regretted least: every number between the least and the largest need, or at most the needs."""
    low, high = needs[0], needs[-1]
    return list(range(low, high + 1)) if high - low < MOST_CANDIDATES else needs


def horizon_usd(scenario: Scenario) -> tuple[Decimal | str, ...]:
    """What the scenario's deployment costs over all months of its growth, by world, resized every month.

    Where some month is not served, or a world does not go with the deployment, the reason
    raises: InputError where a field does not take its value, whatever the others are
    """
    loads = list(_loads(scenario.growth)) if scenario.growth else [Decimal(1)]
    found = (_with_values(scenario, values) for values, _ in worlds_of(scenario))
    return tuple(world if isinstance(world, str) else _months_usd(world, loads) for world in found)


def _months_usd(world: Scenario, loads: Sequence[Decimal]) -> Decimal | str:
    months: list[Decimal | str]
    scenarios = [grown(world, load) for load in loads]
    if world.workload.tenants is not None:  # hit rates follow from each month's load
        plans = map(_planned, scenarios)
        months = [plan.monthly_usd if plan.monthly_usd is not None else str(plan.reason) for plan in plans]
    else:
        try:
            months = least_usd(scenarios)
        except InputError as error:
            return "; ".join(error.problems)
    unserved = [why for why in months if isinstance(why, str)]
    return unserved[0] if unserved else sum((usd for usd in months if isinstance(usd, Decimal)), Decimal(0))


def worlds_of(scenario: Scenario) -> Iterator[tuple[dict[str, Decimal], float]]:
    """(value of each uncertain field, probability) of every combination; fields are independent."""
    intervals = scenario.uncertain.items()
    for levels in product(LEVELS, repeat=len(intervals)):
        values = {path: getattr(interval, name) for (path, interval), (name, _) in zip(intervals, levels, strict=True)}
        yield values, reduce(lambda weight, level: weight * level[1], levels, 1.0)


def _with_values(scenario: Scenario, values: dict[str, Decimal]) -> Scenario | str:
    """The scenario with these fields set, or why its values do not go together.

    raises: InputError where a field does not take its value, whatever the others are
    """
    places = [place for path in values for place in (f"uncertain.{path}:", f"{UNCERTAIN.at(path)}:")]
    try:
        return with_values(scenario, values)
    except InputError as error:
        if any(problem.startswith(tuple(places)) for problem in error.problems):
            raise
        return error.problems[0]


def with_values(scenario: Scenario, values: dict[str, Decimal]) -> Scenario:
    """The scenario with these fields set.

    raises: InputError where one is no field of it, or does not take the value, or the values do not go together
    """
    fields = _fields(scenario)
    for path, value in values.items():
        _set(fields, path, int(value) if value == int(value) else value)
    return validate(Scenario, {**fields, "uncertain": {}, "growth": None}, UNCERTAIN)


def _set(fields: dict[str, Any], path: str, value: Decimal | int) -> None:
    """One field of a scenario's, by its dotted path; parts on the way become mappings."""
    first, *inner = path.split(".")
    if first not in ("workload", "price", "spares", *ALONE):
        raise InputError(
            f"uncertain.{path}: only fields of workload, price and spares, and {' and '.join(ALONE)}, may vary"
        )
    if not inner:
        fields[first] = value
        return
    if isinstance(fields[first], BaseModel):
        fields[first] = fields[first].model_dump()
    target = fields[first]
    for name in inner[:-1]:
        target = target.get(name)
        if not isinstance(target, dict):
            raise InputError(f"uncertain.{path}: {name} is not given in the scenario")
    target[inner[-1]] = value


def _fields(model: BaseModel) -> dict[str, Any]:
    return {name: getattr(model, name) for name in type(model).model_fields}


def regret(usd: Decimal, optimal: Decimal) -> float:
    """How much one regrets a fleet in a world whose own would have been another.

        (x - y)^1.2 where it costs too much;  (1.25 (y - x))^1.2 where it is too small

    usd: x, what the fleet costs a month [USD]
    optimal: y, what the world's own would [USD]
    returns: regret [USD^1.2]
    source: Netflix-Skunkworks/service-capacity-modeling, interface.py (CapacityRegretParameters.spend)
    """
    spent = float(usd - optimal)
    return float((spent * OVER if spent >= 0 else -spent * UNDER) ** EXPONENT)
