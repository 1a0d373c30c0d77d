"""Tenants that share a service: how often each scope of the prefix cache lets a request find its prefix, and the money.

report = plan_tenants(scenario)
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import floor, inf

from planner.accuracy import rounded
from planner.derive_cache import line
from planner.inputs import Scenario
from planner.latency import why_no_prefix
from planner.plan import digest, estimate
from planner.prefix_cache import Alike, characteristic_s, free_tokens, hit_rate
from planner.report import Derivation, Report
from planner.report_money import CacheScope, Isolation
from planner.units import show_seconds
from planner.workload_inputs import Tenants, Workload

CHE = "Che, Tung and Wang 2002, IEEE JSAC 20(7), 1305-1314"
HIT_PARTS = 1000
"""Hit rates are planned with in whole thousandths, rounded down."""
MOST_ROUNDS = 10
"""Of plan and hit rate, each following from the other."""
SCOPES = ("shared", "per_tenant")


@dataclass(frozen=True, slots=True)
class _Cache:
    """One replica's cache (one data-parallel rank's) under a plan's load."""

    prefixes: tuple[Alike, ...]
    tokens: int
    """Of a prefix."""
    pool_tokens: int
    per_s: float
    """All requests at it."""
    request_s: float
    own: int
    """Tokens of a request that no other shares."""
    held: float
    """Of them, those that it holds on average while it runs."""

    @property
    def free(self) -> float:
        """Tokens for prefixes and what ended requests leave."""
        return free_tokens(self.pool_tokens, self.per_s, self.request_s, self.held)

    @property
    def stays_s(self) -> float:
        """How long a prefix stays after its last request."""
        own_per_s = self.per_s * self.own
        return characteristic_s(self.prefixes, self.tokens, self.free, own_per_s, self.request_s)

    @property
    def hit_rate(self) -> float:
        """Of the requests that begin with a prefix."""
        return hit_rate(self.prefixes, self.request_s + self.stays_s)


@dataclass(frozen=True, slots=True)
class _Settled:
    """A plan whose cache finds as much as the plan counts on."""

    report: Report
    hits: Decimal
    cache: _Cache | None
    """None where no fleet serves the load."""


def plan_tenants(scenario: Scenario, devices: int | None = None) -> Report:
    """plan.estimate, with prefixes found as often as the cache's scope allows, and what isolation costs.

    raises: InputError where the scenario's parts do not go together
    """
    tenants, prefix = scenario.workload.tenants, scenario.workload.prefix
    first = estimate(scenario, devices)
    if tenants is None or prefix is None:
        return first
    if why := _why_not(scenario, first):
        warned = f"what each scope of the prefix cache finds is not predicted: {why}"
        return first.model_copy(update={"warnings": (*first.warnings, warned)})
    plans = {scope: _settled(scenario, tenants, scope, first, devices) for scope in SCOPES}
    planned = plans[tenants.cache_scope].report
    found = _isolation(tenants, plans["shared"], plans["per_tenant"])
    derived = tuple(each for scope in SCOPES for each in _lines(tenants, scope, plans[scope]))
    update = {"isolation": found, "inputs_digest": digest(scenario), "derivations": (*planned.derivations, *derived)}
    return planned.model_copy(update=update)


def _why_not(scenario: Scenario, report: Report) -> str:
    if why := why_no_prefix(scenario):
        return why
    if not report.fits:
        return "not one request fits"
    if report.latency is None:
        return "speed is not predicted, and prefix.request_share is taken as found"
    if not report.kv_cache.bytes_per_token:
        return "the model's cache does not grow with its tokens, and prefix.request_share is taken as found"
    return ""


def _settled(scenario: Scenario, tenants: Tenants, scope: str, report: Report, devices: int | None) -> _Settled:
    """Plan and hit rate in turn until they agree, else the lower of the last two.

    report: where every prefix is found
    """
    hits = before = Decimal(1)
    for _ in range(MOST_ROUNDS):
        cache = _cache_of(scenario.workload, tenants, scope, report)
        found = Decimal(floor(cache.hit_rate * HIT_PARTS)) / HIT_PARTS if cache else hits
        if found == hits:
            return _Settled(report, hits, cache)
        before, hits = hits, found
        report = estimate(_with_hits(scenario, hits), devices)
    hits = min(before, hits)
    report = estimate(_with_hits(scenario, hits), devices)
    return _Settled(report, hits, _cache_of(scenario.workload, tenants, scope, report))


def _with_hits(scenario: Scenario, hits: Decimal) -> Scenario:
    """The scenario where this share of the requests with a prefix finds it."""
    prefix = scenario.workload.prefix
    if prefix is None:
        return scenario
    found = prefix.model_copy(update={"request_share": prefix.request_share * hits})
    return scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"prefix": found})})


def _cache_of(workload: Workload, tenants: Tenants, scope: str, report: Report) -> _Cache | None:
    """One cache of the fleet, to which requests are spread evenly; None where there is no fleet."""
    speed, prefix, cache = report.latency, workload.prefix, report.kv_cache
    if report.fleet is None or speed is None or speed.arrivals_per_s is None or prefix is None:
        return None
    per_s = speed.arrivals_per_s / report.fleet.active_replicas / report.scenario.dp
    shared = int(prefix.shared_tokens * prefix.request_share)
    own = max(1, speed.input_tokens + speed.output_tokens - shared)
    return _Cache(
        prefixes=_prefixes(tenants, scope, per_s * float(prefix.request_share)),
        tokens=prefix.shared_tokens,
        pool_tokens=report.capacity.usable_blocks * cache.bytes_per_block // cache.bytes_per_token,
        per_s=per_s,
        request_s=speed.request_s.best,
        own=own,
        held=max(0.0, own - speed.output_tokens / 2),
    )


def _prefixes(tenants: Tenants, scope: str, per_s: float) -> tuple[Alike, ...]:
    """What the cache keeps apart, by how often it is asked for."""
    of_prefix = _shares(tenants.prefix_popularity, tenants.prefixes)
    of_tenant = _shares(tenants.popularity, tenants.count) if scope == "per_tenant" else {1.0: 1}
    return tuple(
        Alike(prefixes * sharing, per_s * share * of_one)
        for share, prefixes in of_prefix.items()
        for of_one, sharing in of_tenant.items()
    )


def _shares(weights: tuple[Decimal, ...] | None, count: int) -> dict[float, int]:
    """How many have each share of the requests."""
    if weights is None:
        return {1 / count: count}
    total = sum(weights)
    return Counter(float(weight / total) for weight in weights)


def _scope(tenants: Tenants, scope: str, plan: _Settled) -> CacheScope:
    report, cache = plan.report, plan.cache
    stays = cache.stays_s if cache else inf
    return CacheScope(
        prefixes=_count(tenants, scope),
        hit_rate=float(plan.hits) if cache else None,
        stays_s=rounded(stays) if stays < inf else None,
        free_tokens=int(cache.free) if cache else None,
        active_replicas=report.fleet.active_replicas if report.fleet else None,
        billed_devices=report.fleet.billed_devices if report.fleet else None,
        monthly_usd=report.cost.monthly_usd if report.cost else None,
        binding_limit=report.binding_limit,
        binding_reason=report.binding_reason,
    )


def _count(tenants: Tenants, scope: str) -> int:
    return tenants.prefixes * (tenants.count if scope == "per_tenant" else 1)


def _isolation(tenants: Tenants, shared: _Settled, apart: _Settled) -> Isolation:
    one, each = _scope(tenants, "shared", shared), _scope(tenants, "per_tenant", apart)
    both = one.hit_rate is not None and each.hit_rate is not None
    dear, cheap = each.monthly_usd, one.monthly_usd
    more = None if dear is None or cheap is None else dear - cheap
    return Isolation(
        tenants=tenants.count,
        cache_scope=tenants.cache_scope,
        shared=one,
        per_tenant=each,
        hit_rate_lost=float(shared.hits - apart.hits) if both else None,
        monthly_usd=more,
        money=_money(one, each, more),
    )


def _money(one: CacheScope, each: CacheScope, more: Decimal | None) -> str:
    """What isolation costs, and the limit that binds."""
    if one.monthly_usd is None:
        return f"no fleet serves the load even with a shared scope: {one.binding_reason}"
    if more is None:
        return f"no fleet serves the load with a scope per tenant: {each.binding_reason}"
    if more > 0:
        return f"${more:,} a month; with a scope per tenant {each.binding_limit} binds: {each.binding_reason}"
    return f"nothing: as many devices are billed; {each.binding_limit} binds: {each.binding_reason}"


def _lines(tenants: Tenants, scope: str, plan: _Settled) -> Iterator[Derivation]:
    """How a hit rate came about."""
    cache = plan.cache
    if cache is None:
        return
    free = int(cache.free)
    running = f"{cache.per_s:.6g} requests/s x {show_seconds(cache.request_s)} x {cache.held:,.0f} tokens of their own"
    yield line(f"isolation.{scope}.free_tokens", f"{cache.pool_tokens:,} of one cache - {running} = {free:,} tokens")
    count = _count(tenants, scope)
    prefixes = f"{count:,} prefix{'' if count == 1 else 'es'} of {cache.tokens:,} tokens"
    text = f"{prefixes} and {cache.per_s * cache.own:,.0f} tokens/s that no other request shares"
    stays = cache.stays_s
    if stays == inf:
        text = f"{text} fit into {free:,} free tokens for good"
    else:
        text = f"{text} in {free:,} free tokens: a prefix stays {show_seconds(stays)} after its last request"
    yield line(f"isolation.{scope}.stays_s", text, "computed", CHE)
    text = f"requests that come within {show_seconds(cache.request_s)} + that time of another with their prefix"
    yield line(f"isolation.{scope}.hit_rate", f"{text}: {plan.hits:f} of all that begin with one", "computed", CHE)
