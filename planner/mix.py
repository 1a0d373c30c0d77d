"""A fleet of several GPU types, each for the sizes of requests that it serves cheapest, against a single type."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate
from math import ceil

from planner.cost import device_month_usd
from planner.deployment import Deployment, deploy
from planner.errors import InputError
from planner.inputs import Scenario
from planner.latency import PERCENTILE, Band, Performance, Speed, longest_answer, mix_of
from planner.mix_solver import TOLERANCE, Mixed, cheapest_mix, load_of
from planner.objectives import objectives_of
from planner.plan import devices_usd, with_retries
from planner.pool import Pool
from planner.queueing import concurrency_quantile
from planner.rank import governing_rank
from planner.replica import replica_of, slots_at, times_of
from planner.report import Capacity
from planner.report_memory import capacity_part
from planner.report_mix import MixPart, MixPlan
from planner.serving import Replica
from planner.sizing import CONCURRENCY_PERCENTILE, MOST_REPLICAS, SLOT_WAIT_SHARE
from planner.units import cents, counted

RATE_STEPS = 20
"""Halvings of the rate that one replica serves: to a millionth of what it does at most."""

LEAST_SHARE = 0.005
"""Of a bucket, that is told: less is shown as 0 %."""


MOST_TABLED = 2000
"""Divided by the number of types: up to twice as many replicas of each are tried one by one, and beyond in steps of at
most one in so many."""

Single = tuple[Fraction, int]
"""Of a fleet of one type: dollars a month, and which type."""


@dataclass(frozen=True, slots=True)
class Offered:
    """One type of replica: its deployment, and what one costs a month."""

    scenario: Scenario
    deployment: Deployment
    pool: Pool
    capacity: Capacity
    replica: Replica
    usd: Fraction


def plan_mix(scenarios: Sequence[Scenario]) -> MixPlan:
    """The cheapest fleet of these types, by size of request; never dearer than the best of a single type.

    scenarios: one of each type, alike but for device, parallelism, engine and price
    raises: InputError where no arrivals are given, or some size is served by no type
    """
    scenarios = [with_retries(scenario) for scenario in scenarios]
    rate = scenarios[0].arrivals_per_s
    if rate is None:
        raise InputError("a mix needs arrivals: --arrivals, or workload.arrivals_per_s")
    if scenarios[0].workload.tenants:
        raise InputError(
            "workload.tenants: how often a mix of types finds prefixes is not predicted: search without --mix"
        )
    bands = mix_of(scenarios[0]).bands
    rates = [float(rate) * band.share for band in bands]
    offers = [found for found in map(_offered, scenarios) if found is not None]
    if not offers:
        raise InputError("no type holds a request and has its speed predicted: there is nothing to mix")
    begins = [0.0, *accumulate(band.share for band in bands)]
    judged = [begin < PERCENTILE - 1e-9 for begin in begins[:-1]]
    capacities = [
        [_capacity(offer, band, first_token=first) for offer in offers]
        for band, first in zip(bands, judged, strict=True)
    ]
    edges = [0, *(band.tokens for band in bands[:-1])]
    spared, found, cost, single = _cheapest(offers, rates, capacities)
    others = sum((Fraction(each.usd) for each in scenarios[0].other_monthly), Fraction(0))
    return MixPlan(
        parts=tuple(
            MixPart(
                choice=_label(offer),
                active_replicas=count,
                devices=count * offer.deployment.ranks.devices,
                monthly_usd=cents(_usd([offer], [count])),
                serves=tuple(
                    f"{shares[place]:.0%} of prompts of {above + 1:,} to {counted(band.tokens, 'token')}"
                    for above, band, shares in zip(edges, bands, found.shares, strict=True)
                    if shares[place] >= LEAST_SHARE
                ),
            )
            for place, (offer, count) in enumerate(zip(spared, found.replicas, strict=True))
            if count
        ),
        monthly_usd=cents(cost + others),
        best_single=_label(offers[single[1]]) if single else None,
        best_single_monthly_usd=cents(single[0] + others) if single else None,
    )


def _offered(scenario: Scenario) -> Offered | None:
    """None where a type holds no request, or its speed is not predicted."""
    try:
        deployment = deploy(scenario)
        pool = governing_rank(deployment).pool
        if not pool.requests(scenario.context):
            return None
        replica = replica_of(deployment, times_of(deployment))
    except InputError:
        return None
    usd = device_month_usd(deployment.ranks.devices, scenario.price, scenario.hours_per_month)
    return Offered(scenario, deployment, pool, capacity_part(deployment, pool), replica, usd)


def _capacity(offer: Offered, band: Band, *, first_token: bool) -> float:
    """Requests of a bucket that one replica serves within the objectives, if it serves no others [1/s].

    By bisection below what it does with every slot in use; 0 where even an idle one misses an objective.
    first_token: the objective of p95 TTFT holds; False: for prompts beyond that percentile, which may all miss it
    """
    scenario, deployment, pool = offer.scenario, offer.deployment, offer.pool
    mix = mix_of(scenario)
    alone = replace(mix, bands=(replace(band, share=1.0),), input_tokens=band.tokens, variation=0.0)
    alone = replace(alone, cached_tokens=int(band.cached * band.hit_share))
    slots = slots_at(deployment, pool, band.tokens, mix.output_tokens)
    if not slots:
        return 0.0
    speed = Speed(offer.replica, alone, slots)
    objectives = [each for each in objectives_of(scenario, speed) if first_token or each.name != "ttft_p95"]
    reserved = slots_at(deployment, pool, min(scenario.context, band.tokens + longest_answer(scenario)), 0)
    bursts = float(scenario.workload.burstiness)

    def serves(at: Performance) -> bool:
        active = concurrency_quantile(at.concurrency, CONCURRENCY_PERCENTILE, bursts)
        fits = active <= reserved and at.slot_wait.probability <= SLOT_WAIT_SHARE
        return not at.saturated and fits and all(objective.met(at) for objective in objectives)

    most = speed.saturated_tokens_per_s / mix.output_tokens
    if not serves(speed.arriving(most * 2**-RATE_STEPS, bursts)):
        return 0.0
    low, high = 0.0, most
    for _ in range(RATE_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if serves(speed.arriving(middle, bursts)) else (low, middle)
    return low


def _cheapest(
    offers: Sequence[Offered], rates: Sequence[float], capacities: Sequence[Sequence[float]]
) -> tuple[Sequence[Offered], Mixed, Fraction, Single | None]:
    """(the types as they are spared, the cheapest fleet, what it costs, the cheapest of one type that serves all)."""
    loads = [
        [load_of(rate, of_types[kind]) for rate, of_types in zip(rates, capacities, strict=True) if of_types[kind] > 0]
        for kind in range(len(offers))
    ]
    needs = [_needed(sum(of_type)) for of_type in loads]
    whole = [kind for kind, of_type in enumerate(loads) if len(of_type) == len(rates) and needs[kind] <= MOST_REPLICAS]
    singles = [(usd, kind) for kind in whole if (usd := _fleet_usd(offers[kind], needs[kind])) is not None]
    single = min(singles, default=None)
    exact = max(1, MOST_TABLED // len(offers))
    best: tuple[Fraction, Sequence[Offered], Mixed] | None = None
    for types, spared in _spared(offers, len(rates)):
        most_usd = min((each[0] for each in (single, best) if each is not None), default=None)
        tables = [_table(offer, need, most_usd, exact) for offer, need in zip(spared, needs, strict=True)]
        found = _trimmed(spared, cheapest_mix(tables, rates, capacities, types), rates, capacities)
        cost = _usd(spared, found.replicas)
        best = (cost, spared, found) if best is None or cost < best[0] else best
    if best is None:
        raise ValueError("nothing is offered")
    if single is None or best[0] < single[0]:
        return best[1], best[2], best[0], single
    of_types = range(len(offers))
    counts = tuple(needs[kind] if kind == single[1] else 0 for kind in of_types)
    alone = Mixed(counts, (tuple(float(kind == single[1]) for kind in of_types),) * len(rates))
    return offers, alone, single[0], single


def _spared(offers: Sequence[Offered], buckets: int) -> Iterator[tuple[int, Sequence[Offered]]]:
    """(types of a mix at most, each with the spares that one of so many takes).

    Enough of all n types work for a share A of the time where each is short for (1 - A) / n of it, whether they fail
    together or not.
    """
    target = offers[0].scenario.workload.objectives.availability
    if target is None:
        yield len(offers), offers
        return
    least = min(2, len(offers))
    for types in range(least, max(least, min(len(offers), buckets)) + 1):
        yield types, [_available(offer, 1 - (1 - target) / types) for offer in offers]


def _available(offer: Offered, share: Decimal) -> Offered:
    """The same for another availability."""
    workload = offer.scenario.workload
    objectives = workload.objectives.model_copy(update={"availability": share})
    update = {"workload": workload.model_copy(update={"objectives": objectives})}
    return replace(offer, deployment=replace(offer.deployment, scenario=offer.scenario.model_copy(update=update)))


def _needed(load: float) -> int:
    """Replicas for so many replicas' load."""
    return ceil(load - TOLERANCE)


def _table(offer: Offered, need: int, most_usd: Fraction | None, exact: int) -> list[tuple[int, Fraction]]:
    """Numbers of replicas, and what each costs: those of which no larger one costs as little.

    need: for all that the type serves
    most_usd: of a fleet that is known; more is not worth a thought
    """
    found = [(0, Fraction(0))]
    for count in _counts(min(need, MOST_REPLICAS), exact):
        if most_usd is not None and count * offer.usd > most_usd:
            break
        usd = _fleet_usd(offer, count)
        if usd is not None:
            found.append((count, usd))
    kept: list[tuple[int, Fraction]] = []
    for count, usd in reversed(found):
        if not kept or usd < kept[-1][1]:
            kept.append((count, usd))
    return kept[::-1]


def _counts(need: int, exact: int) -> Iterator[int]:
    """1 to need: every number, and beyond twice `exact` in steps of at most one in so many."""
    count = 1
    while count < need:
        yield count
        count += max(1, count // exact)
    if need:
        yield need


def _trimmed(
    offers: Sequence[Offered], found: Mixed, rates: Sequence[float], capacities: Sequence[Sequence[float]]
) -> Mixed:
    """The least replicas that cost no more and do the work: whole instances and steps leave some with none."""
    replicas = []
    for kind, (offer, count) in enumerate(zip(offers, found.replicas, strict=True)):
        work = [
            shares[kind] * load_of(rate, of_types[kind])
            for shares, rate, of_types in zip(found.shares, rates, capacities, strict=True)
            if of_types[kind] > 0
        ]
        need = _needed(sum(work))
        costs = {each: _fleet_usd(offer, each) for each in range(min(need, count), count + 1)}
        replicas.append(min((usd, each) for each, usd in costs.items() if usd is not None)[1])
    return Mixed(tuple(replicas), found.shares)


def _usd(offers: Sequence[Offered], counts: Sequence[int]) -> Fraction:
    costs = [_fleet_usd(offer, count) for offer, count in zip(offers, counts, strict=True)]
    return sum((usd for usd in costs if usd is not None), Fraction(0))


def _fleet_usd(offer: Offered, active: int) -> Fraction | None:
    """Dollars a month of so many active replicas of a type, its own spares and whole instances included.

    None where no spares reach the availability that is asked for
    """
    if not active:
        return Fraction(0)
    try:
        return devices_usd(offer.deployment, offer.capacity, active)
    except InputError:
        return None


def _label(offer: Offered) -> str:
    ranks = offer.deployment.ranks
    degrees = " ".join(
        f"{name}{degree}" for name, degree in (("TP", ranks.tp), ("PP", ranks.pp), ("DP", ranks.dp)) if degree > 1
    )
    return " ".join(part for part in (offer.scenario.accelerator.name, degrees, offer.deployment.kv_dtype) if part)
