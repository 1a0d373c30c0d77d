"""Which candidate of a search one regrets least, where its load grows or is not known exactly."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction

from planner.demand import horizon_usd, regret, worlds_of
from planner.errors import InputError
from planner.inputs import Scenario
from planner.search_report import Choice, Regretted, SearchDemand, SearchWorld
from planner.units import cents

MOST_PLANS = 200_000
"""Choices times worlds times months that one search plans."""

Horizon = tuple[Decimal | str, ...]
"""By world, dollars over all months, or why it is not served."""


def check_demand(scenario: Scenario, choices: int, *, one_price: bool) -> None:
    """Refuse demand that a search cannot vary, before anything is planned.

    one_price: all choices are billed at the same price
    raises: InputError with the field
    """
    prices = [path for path in scenario.uncertain if path.split(".")[0] == "price"]
    if prices and not one_price:
        why = "is one price's figure, and a search has a price for each device: give one --gpu with its --price"
        raise InputError(*(f"uncertain.{path}: {why}" for path in prices))
    worlds, months = len(list(worlds_of(scenario))), _months(scenario)
    plans = choices * worlds * months
    if plans > MOST_PLANS:
        raise InputError(
            f"{choices:,} choices x {worlds:,} worlds x {months:,} months = {plans:,} plans, and a search makes at "
            f"most {MOST_PLANS:,}: give fewer"
        )


def _months(scenario: Scenario) -> int:
    return scenario.growth.months if scenario.growth else 1


def horizon_of(scenario: Scenario) -> Horizon | None:
    """What a choice costs by world; None where demand neither grows nor is uncertain."""
    return horizon_usd(scenario) if scenario.growth or scenario.uncertain else None


def search_demand(scenario: Scenario, horizons: Mapping[Choice, Horizon]) -> SearchDemand:
    """Candidates by regret, the least first.

    horizons: of each candidate, by rank
    """
    worlds = list(worlds_of(scenario))
    weights = [weight for _, weight in worlds]
    by_choice = {choice: [_usd(cost) for cost in horizon] for choice, horizon in horizons.items()}
    least = [
        min((usd for usd in costs if usd is not None), default=None) for costs in zip(*by_choice.values(), strict=True)
    ]
    found = [_regretted(choice, costs, least, weights) for choice, costs in by_choice.items()]
    return SearchDemand(
        months=_months(scenario),
        worlds=tuple(
            SearchWorld(
                values=tuple(f"{path}={value}" for path, value in values.items()),
                weight=round(weight, 6),
                least_usd=usd,
                unserved=str(first) if usd is None else None,
            )
            for (values, weight), usd, first in zip(worlds, least, next(iter(horizons.values())), strict=True)
        ),
        infeasible_share=_share([weight for weight, usd in zip(weights, least, strict=True) if usd is None]),
        regretted=tuple(sorted(found, key=lambda each: (each.unserved_share, each.regret))),
    )


def _usd(cost: Decimal | str) -> Decimal | None:
    return cost if isinstance(cost, Decimal) else None


def _share(weights: Sequence[float]) -> float:
    return round(sum(weights), 6)


def _regretted(
    choice: Choice, costs: Sequence[Decimal | None], least: Sequence[Decimal | None], weights: Sequence[float]
) -> Regretted:
    worlds = [world for world in zip(weights, costs, least, strict=True) if world[2] is not None]
    served = [(weight, usd, lowest) for weight, usd, lowest in worlds if usd is not None and lowest is not None]
    return Regretted(
        choice=choice,
        by_world_usd=tuple(costs),
        mean_usd=_mean([(weight, usd) for weight, usd, _ in served]),
        most_over_usd=max((usd - lowest for _, usd, lowest in served), default=None),
        regret=round(mean_regret(served), 2),
        unserved_share=_share([weight for weight, usd, _ in worlds if usd is None]),
    )


def mean_regret(served: Sequence[tuple[float, Decimal, Decimal]]) -> float:
    """How much one regrets a candidate over the worlds that it serves.

        sum over w of p_w (x_w - y_w)^1.2

    served: p_w, probability of each world [1]; x_w and y_w, what the candidate and the cheapest one cost in it [USD]
    returns: regret [USD^1.2]
    source: Netflix-Skunkworks/service-capacity-modeling, capacity_planner.py (_regret), whose worlds are equally likely
    """
    return sum(weight * regret(usd, lowest) for weight, usd, lowest in served)


def _mean(of_worlds: Sequence[tuple[float, Decimal]]) -> Decimal | None:
    """By probability."""
    whole = sum((Fraction(weight) for weight, _ in of_worlds), Fraction(0))
    return (
        cents(sum((Fraction(weight) * Fraction(usd) for weight, usd in of_worlds), Fraction(0)) / whole)
        if whole
        else None
    )
