"""A fleet of several GPU types, each for the sizes of requests that it serves cheapest, against a single type."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from math import ceil

from planner.cost import device_month_usd
from planner.deployment import Deployment, deploy
from planner.errors import InputError
from planner.inputs import Scenario
from planner.latency import PERCENTILE, Band, Performance, Speed, longest_answer, mix_of
from planner.mix_solver import Mixed, cheapest_mix
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
from planner.sizing import CONCURRENCY_PERCENTILE, SLOT_WAIT_SHARE
from planner.units import cents, counted

RATE_STEPS = 20
"""Halvings of the rate that one replica serves: to a millionth of what it does at most."""

LEAST_SHARE = 0.005
"""Of a bucket, that is told: less is shown as 0 %."""


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
    found = cheapest_mix([offer.usd for offer in offers], rates, capacities)
    single = _best_single(offers, rates, capacities)
    cost = _usd(offers, found.replicas)
    if single is not None and (own := _usd(offers, single.replicas)) <= cost:
        found, cost = single, own
    others = sum((Fraction(each.usd) for each in scenarios[0].other_monthly), Fraction(0))
    return MixPlan(
        parts=tuple(
            MixPart(
                choice=_label(offer),
                active_replicas=count,
                devices=count * offer.deployment.ranks.devices,
                monthly_usd=cents(_fleet_usd(offer, count)),
                serves=tuple(
                    f"{shares[place]:.0%} of prompts of {above + 1:,} to {counted(band.tokens, 'token')}"
                    for above, band, shares in zip(edges, bands, found.shares, strict=True)
                    if shares[place] >= LEAST_SHARE
                ),
            )
            for place, (offer, count) in enumerate(zip(offers, found.replicas, strict=True))
            if count
        ),
        monthly_usd=cents(cost + others),
        best_single=_label(offers[single.replicas.index(max(single.replicas))]) if single else None,
        best_single_monthly_usd=cents(_usd(offers, single.replicas) + others) if single else None,
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


def _best_single(
    offers: Sequence[Offered], rates: Sequence[float], capacities: Sequence[Sequence[float]]
) -> Mixed | None:
    """The cheapest fleet of one type that serves all buckets; None where no type does."""
    best: tuple[Fraction, int, int] | None = None
    for kind in range(len(offers)):
        of_buckets = [of_types[kind] for of_types in capacities]
        if not all(capacity > 0 for capacity in of_buckets):
            continue
        count = ceil(sum(rate / capacity for rate, capacity in zip(rates, of_buckets, strict=True)))
        usd = _fleet_usd(offers[kind], count)
        if best is None or usd < best[0]:
            best = usd, kind, count
    if best is None:
        return None
    _, kind, count = best
    shares = tuple(float(place == kind) for place in range(len(offers)))
    return Mixed(tuple(count if place == kind else 0 for place in range(len(offers))), (shares,) * len(rates))


def _usd(offers: Sequence[Offered], counts: Sequence[int]) -> Fraction:
    return sum((_fleet_usd(offer, count) for offer, count in zip(offers, counts, strict=True)), Fraction(0))


def _fleet_usd(offer: Offered, active: int) -> Fraction:
    """Dollars a month of so many active replicas of a type, its own spares and whole instances included."""
    return devices_usd(offer.deployment, offer.capacity, active) if active else Fraction(0)


def _label(offer: Offered) -> str:
    ranks = offer.deployment.ranks
    degrees = " ".join(
        f"{name}{degree}" for name, degree in (("TP", ranks.tp), ("PP", ranks.pp), ("DP", ranks.dp)) if degree > 1
    )
    return " ".join(part for part in (offer.scenario.accelerator.name, degrees, offer.deployment.kv_dtype) if part)
