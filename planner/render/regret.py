"""A search's candidates over the months of a growing load and the worlds of an uncertain one."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from planner.render.choice import named
from planner.render.parts import Part
from planner.render.tables import MOST_WORLDS, show
from planner.search_report import Choice, Regretted, SearchDemand, SearchResult
from planner.units import counted

MOST_BESIDE = 4
"""Candidates that are told world by world; a saved search holds all."""


def regret_tables(result: SearchResult, top: int) -> Iterator[Part]:
    """The least regretted candidates, and where there are several worlds, what they cost more in each."""
    found = result.demand
    if found is None:
        return
    ranks = {each.choice: f"{rank:,}" for rank, each in enumerate(result.candidates, 1)}
    yield _candidates(result, found, _ranked(found.regretted[:top], ranks))
    if len(found.worlds) > 1:
        yield _worlds(found, _ranked(found.regretted[:MOST_BESIDE], ranks))


def _ranked(regretted: Sequence[Regretted], ranks: Mapping[Choice, str]) -> list[tuple[str, Regretted]]:
    """Each with its number in the table of the cheapest."""
    return [(ranks[each.choice], each) for each in regretted]


def _candidates(result: SearchResult, found: SearchDemand, ranked: Sequence[tuple[str, Regretted]]) -> Part:
    unserved = any(each.unserved_share for each in found.regretted)
    heads = [("", False), ("choice", False), ("mean cost", True), ("at most over the cheapest", True), ("regret", True)]
    rows = [
        [
            rank,
            named(result.space, each.choice),
            show(each.mean_usd, "usd"),
            show(each.most_over_usd, "usd"),
            show(None if each.mean_usd is None else each.regret, "number"),
            *([show(each.unserved_share, "share")] if unserved else []),
        ]
        for rank, each in ranked
    ]
    return Part(f"Least regret over {_over(found)}", [*heads, *([("unserved", True)] if unserved else [])], rows)


def _worlds(found: SearchDemand, ranked: Sequence[tuple[str, Regretted]]) -> Part:
    heads = [("world", False), ("probability", True), ("the cheapest", True)]
    more = [(f"number {rank}", True) for rank, _ in ranked]
    likeliest = sorted(enumerate(found.worlds), key=lambda each: -each[1].weight)[:MOST_WORLDS]
    rows = [
        [
            ", ".join(world.values),
            show(world.weight, "share"),
            show(world.least_usd, "usd"),
            *(_over_least(each, place, world.least_usd) for _, each in ranked),
        ]
        for place, world in likeliest
    ]
    return Part(
        "By world: the cheapest candidate there, and by how much those of least regret are dearer",
        heads + more,
        rows,
    )


def _over_least(each: Regretted, place: int, least: Decimal | None) -> str:
    usd = each.by_world_usd[place]
    return "unserved" if usd is None or least is None else show(usd - least, "usd")


def _over(found: SearchDemand) -> str:
    """'9 worlds, 12 months together'."""
    worlds = [counted(len(found.worlds), "world")] if len(found.worlds) > 1 else []
    months = f"{counted(found.months, 'month')} together" if found.months > 1 else "a month"
    return ", ".join([*worlds, months])


def regret_lines(result: SearchResult) -> Iterator[str]:
    """The pick, and the worlds that nothing serves."""
    found = result.demand
    if found is None:
        return
    pick = found.regretted[0]
    if pick.mean_usd is not None:
        over = "the cheapest in every world that it serves"
        if pick.most_over_usd:
            over = f"at most {show(pick.most_over_usd, 'usd')} over the cheapest of a world"
        yield f"{named(result.space, pick.choice)}: {show(pick.mean_usd, 'usd')} on average over {_over(found)}; {over}"
        yield "every candidate's fleet is resized for each world and month"
    if pick.unserved_share:
        yield f"it leaves worlds unserved that others serve, with a probability of {show(pick.unserved_share, 'share')}"
    unserved = [world for world in found.worlds if world.least_usd is None]
    for world in unserved[:MOST_WORLDS]:
        yield f"no candidate serves {', '.join(world.values) or 'every month'}, such as the cheapest: {world.unserved}"
    if unserved and len(found.worlds) > 1:
        yield f"these worlds have a probability of {show(found.infeasible_share, 'share')} and count for no regret"
