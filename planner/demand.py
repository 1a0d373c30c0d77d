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
from planner.plan import estimate, least_usd, monthly_usd
from planner.report import Report
from planner.report_demand import DemandRange, GrowthMonth, World

LEVELS = (("low", 0.3), ("mid", 0.4), ("high", 0.3))
"""Of an interval: the 10th, 50th and 90th percentile stand for the whole by Swanson's rule (Hurst, Brown and Swanson
2000, AAPG Bulletin 84(12), 1883-1891)."""
OVER, UNDER, EXPONENT = 1.0, 1.25, 1.2
"""Regret per dollar spent too much, and too little, and its power (Netflix-Skunkworks/service-capacity-modeling,
interface.py, CapacityRegretParameters.spend)."""

MOST_CANDIDATES = 100

ALONE = ("context_tokens", "hours_per_month")
"""Fields of a scenario itself that may be uncertain."""


def plan_demand(scenario: Scenario, devices: int | None = None) -> Report:
    """plan.estimate, with the months of a growing load and the worlds of an uncertain one.

    raises: InputError where the scenario's parts do not go together
    """
    report = estimate(scenario, devices)
    growth = tuple(_months(scenario, scenario.growth)) if scenario.growth else ()
    demand = _range(scenario) if scenario.uncertain else None
    return report.model_copy(update={"growth": growth, "demand": demand}) if growth or demand else report


def _months(scenario: Scenario, growth: Growth) -> Iterator[GrowthMonth]:
    for month, load in enumerate(_loads(growth), 1):
        found = estimate(grown(scenario, load))
        yield GrowthMonth(
            month=month,
            load=float(f"{load:.6g}"),
            active_replicas=found.fleet.active_replicas if found.fleet else None,
            billed_devices=found.fleet.billed_devices if found.fleet else None,
            monthly_usd=found.cost.monthly_usd if found.cost else None,
        )


def _loads(growth: Growth) -> Iterator[Decimal]:
    """Of each month, over that of the first."""
    return accumulate(range(growth.months - 1), lambda load, _: load * (1 + growth.per_month), initial=Decimal(1))


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
class _Planned:
    """A world with a plan."""

    scenario: Scenario
    weight: float
    need: int
    """Its own fleet's active replicas."""

    def regrets(self, counts: list[int]) -> dict[int, float]:
        """Of fleets of these numbers of active replicas."""
        costs = monthly_usd(self.scenario, {*counts, self.need})
        return {count: regret(costs[count], costs[self.need]) for count in counts}


def _range(scenario: Scenario) -> DemandRange | None:
    worlds = list(worlds_of(scenario))
    reports = [estimate(world) for _, _, world in worlds]
    planned = [
        _Planned(world, weight, report.fleet.active_replicas) if report.fleet else None
        for (_, weight, world), report in zip(worlds, reports, strict=True)
    ]
    found = [each for each in planned if each is not None]
    if not found:
        return None
    candidates = _candidates(sorted({each.need for each in found}))
    regrets = [each.regrets(candidates) if each else None for each in planned]
    best = min(candidates, key=lambda count: (_expected(planned, regrets, count), -count))
    costs = [report.cost.monthly_usd for report in reports if report.cost]
    return DemandRange(
        worlds=tuple(
            World(
                values=tuple(f"{path}={value}" for path, value in values.items()),
                weight=round(weight, 6),
                active_replicas=each.need if each else None,
                monthly_usd=report.cost.monthly_usd if report.cost else None,
                regret=round(of_counts[best], 2) if of_counts else None,
            )
            for (values, weight, _), report, each, of_counts in zip(worlds, reports, planned, regrets, strict=True)
        ),
        active_replicas_low=min(each.need for each in found),
        active_replicas_high=max(each.need for each in found),
        monthly_usd_low=min(costs),
        monthly_usd_high=max(costs),
        infeasible_share=round(1 - sum(each.weight for each in found), 6),
        least_regret_replicas=best,
        least_regret_monthly_usd=monthly_usd(worlds[len(worlds) // 2][2], (best,))[best],
        enough_share=round(sum(each.weight for each in found if each.need <= best), 6),
    )


def _expected(planned: list[_Planned | None], regrets: list[dict[int, float] | None], count: int) -> float:
    """Mean regret of a fleet over the worlds that have a plan."""
    return sum(each.weight * of[count] for each, of in zip(planned, regrets, strict=True) if each and of)


def _candidates(needs: list[int]) -> list[int]:
    """Fleets that may be regretted least: every number between the least and the largest need, or at most the needs."""
    low, high = needs[0], needs[-1]
    return list(range(low, high + 1)) if high - low < MOST_CANDIDATES else needs


def horizon_usd(scenario: Scenario) -> tuple[Decimal | str, ...]:
    """What the scenario's deployment costs over all months of its growth, by world, resized every month.

    Where some month is not served, or a world does not go with the deployment, the reason
    """
    loads = list(_loads(scenario.growth)) if scenario.growth else [Decimal(1)]
    return tuple(_months_usd(world, loads) for _, _, world in worlds_of(scenario))


def _months_usd(world: Scenario, loads: Sequence[Decimal]) -> Decimal | str:
    try:
        months = least_usd([grown(world, load) for load in loads])
    except InputError as error:
        return "; ".join(error.problems)
    unserved = [why for why in months if isinstance(why, str)]
    return unserved[0] if unserved else sum((usd for usd in months if isinstance(usd, Decimal)), Decimal(0))


def worlds_of(scenario: Scenario) -> Iterator[tuple[dict[str, Decimal], float, Scenario]]:
    """(value of each uncertain field, probability, the scenario with them) of every combination.

    raises: InputError where a field cannot vary so
    assumes: fields are independent
    """
    intervals = scenario.uncertain.items()
    for levels in product(LEVELS, repeat=len(intervals)):
        values = {path: getattr(interval, name) for (path, interval), (name, _) in zip(intervals, levels, strict=True)}
        yield values, reduce(lambda weight, level: weight * level[1], levels, 1.0), with_values(scenario, values)


def with_values(scenario: Scenario, values: dict[str, Decimal]) -> Scenario:
    """The scenario with these fields set.

    raises: InputError where one is no field of it, or does not take the value
    """
    for path, value in values.items():
        scenario = _set(scenario, path, int(value) if value == int(value) else value)
    return scenario.model_copy(update={"uncertain": {}, "growth": None})


def _set(scenario: Scenario, path: str, value: Decimal | int) -> Scenario:
    first, *inner = path.split(".")
    if first not in ("workload", "price", "spares", *ALONE):
        raise InputError(
            f"uncertain.{path}: only fields of workload, price and spares, and {' and '.join(ALONE)}, may vary"
        )
    if not inner:
        return validate(Scenario, {**_fields(scenario), first: value}, Origin("uncertain"))
    part = getattr(scenario, first)
    fields = part.model_dump()
    target = fields
    for name in inner[:-1]:
        target = target.get(name)
        if not isinstance(target, dict):
            raise InputError(f"uncertain.{path}: {name} is not given in the scenario")
    target[inner[-1]] = value
    return scenario.model_copy(update={first: validate(type(part), fields, Origin("uncertain", (first,)))})


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
