"""Tenants that share a service: hit rates of both scopes, what isolation costs, and when nothing is said of it."""

from decimal import Decimal
from math import exp, floor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.compare import compare
from planner.demand import plan_demand
from planner.errors import InputError
from planner.mix import plan_mix
from planner.plan import digest, estimate
from planner.render import markdown
from planner.render.text import draw, plain
from planner.report import Report
from planner.report_money import CacheScope, Isolation
from planner.tenants import plan_tenants
from tests.scenarios import scenario

SHARED: dict[str, Any] = {
    "name": "shared",
    "context_tokens": 16384,
    "input_tokens": {"mean": 7000, "max": 14000},
    "output_tokens": {"mean": 150, "max": 500},
    "arrivals_per_s": 30,
    "requests_per_month": 20_000_000,
    "prefix": {"shared_tokens": 6000, "request_share": "0.9"},
    "tenants": {"count": 200, "cache_scope": "per_tenant"},
    "source": "test",
}


def planned(model: str = "llama-3.1-8b", **changed: Any) -> Report:
    """At a dollar per device-hour; __ stands for a dot."""
    changed = {name.replace("__", "."): value for name, value in changed.items()}
    return plan_tenants(scenario(model, overrides={"workload": SHARED, "spares": {"fraction": 0}, **changed}))


def isolation(**changed: Any) -> Isolation:
    found = planned(**changed).isolation
    assert found is not None
    return found


def test_the_plan_of_each_scope_is_that_of_its_hit_rate() -> None:
    """What a scope's plan counts on is what a workload that gives so many hits is planned with."""
    for scope in ("shared", "per_tenant"):
        report = planned(workload__tenants__cache_scope=scope)
        assert report.isolation is not None
        found: CacheScope = getattr(report.isolation, scope)
        assert found.hit_rate is not None
        hits = Decimal("0.9") * Decimal(str(found.hit_rate))
        given = {"workload.prefix.request_share": hits, "workload.tenants": None}
        plain_plan = estimate(scenario("llama-3.1-8b", overrides={"workload": SHARED, "spares.fraction": 0, **given}))
        assert (report.fleet, report.latency, report.cost) == (plain_plan.fleet, plain_plan.latency, plain_plan.cost)
        assert plain_plan.fleet is not None
        assert plain_plan.cost is not None
        assert found.active_replicas == plain_plan.fleet.active_replicas
        assert found.monthly_usd == plain_plan.cost.monthly_usd
        assert (found.binding_limit, found.binding_reason) == (plain_plan.binding_limit, plain_plan.binding_reason)


def test_a_hit_rate_by_hand_from_the_figures_of_the_report() -> None:
    """200 equal tenants: a request finds its prefix where its tenant's last came no longer ago than W + t.

    28,068 blocks of 16 tokens are 449,088; each request has 7,000 + 150 - 0.9 x 6,000 = 1,750 tokens of its own, and
    holds 1,675 of them on average.
    """
    report = planned()
    assert report.isolation is not None
    assert report.latency is not None
    assert report.fleet is not None
    apart, rate, request_s = report.isolation.per_tenant, report.latency.arrivals_per_s, report.latency.request_s.best
    assert rate is not None
    assert apart.stays_s is not None
    each = rate / report.fleet.active_replicas
    assert apart.free_tokens == int(449_088 - each * request_s * 1675)
    found = 1 - exp(-each * 0.9 / 200 * (request_s + apart.stays_s))
    assert apart.hit_rate == pytest.approx(floor(found * 1000) / 1000, abs=0.001)
    held = 200 * 6000 * found + each * 1750 * apart.stays_s
    assert held == pytest.approx(apart.free_tokens, rel=1e-4)


def test_isolation_costs_the_replicas_that_lost_hits_take() -> None:
    found = isolation()
    shared, apart = found.shared, found.per_tenant
    assert (shared.prefixes, apart.prefixes) == (1, 200)
    assert (shared.hit_rate, apart.hit_rate) == (1, 0.272)
    assert found.hit_rate_lost == pytest.approx(0.728)
    assert (shared.active_replicas, apart.active_replicas) == (4, 7)
    assert (shared.monthly_usd, apart.monthly_usd) == (Decimal("2920.00"), Decimal("5110.00"))  # x $1 x 730 h
    assert found.monthly_usd == Decimal("2190.00")
    assert found.money.startswith("$2,190.00 a month; with a scope per tenant kv_memory binds: KV memory holds 27")


def test_where_as_many_devices_are_billed_isolation_costs_nothing_and_the_limit_says_why() -> None:
    found = isolation(workload__arrivals_per_s=1)
    assert found.hit_rate_lost is not None
    assert found.hit_rate_lost > 0
    assert found.monthly_usd == 0
    assert found.money.startswith("nothing: as many devices are billed; one_replica binds:")


def test_one_tenant_loses_nothing() -> None:
    found = isolation(workload__tenants={"count": 1, "cache_scope": "per_tenant"})
    assert found.shared == found.per_tenant
    assert found.hit_rate_lost == found.monthly_usd == 0


def test_popular_tenants_find_more() -> None:
    """99 tenants with one request in ten, and one with the rest."""
    skewed = isolation(workload__tenants={"count": 100, "cache_scope": "shared", "popularity": [891, *[1] * 99]})
    equal = isolation(workload__tenants={"count": 100, "cache_scope": "shared"})
    assert skewed.shared.hit_rate == equal.shared.hit_rate
    assert (skewed.per_tenant.hit_rate or 0) > (equal.per_tenant.hit_rate or 0)


@given(st.integers(1, 2000), st.integers(1, 200), st.integers(1, 60))
@settings(max_examples=25, deadline=None)
def test_isolation_is_never_free_money(tenants: int, prefixes: int, per_s: int) -> None:
    """A scope per tenant finds no more, and its fleet costs no less; figures depend on no other scope being planned."""
    shares = {"count": tenants, "prefixes": prefixes}
    load: dict[str, Any] = {"workload__arrivals_per_s": per_s}
    first = isolation(workload__tenants={**shares, "cache_scope": "shared"}, **load)
    second = isolation(workload__tenants={**shares, "cache_scope": "per_tenant"}, **load)
    assert (first.shared, first.per_tenant) == (second.shared, second.per_tenant)
    assert first.hit_rate_lost is not None
    assert first.hit_rate_lost >= 0
    assert first.monthly_usd is not None
    assert first.monthly_usd >= 0


def test_no_fleet_even_where_every_prefix_is_found() -> None:
    report = planned(workload__objectives={"ttft_p95_s": "0.01"})
    assert report.fleet is None
    assert report.isolation is not None
    assert report.isolation.shared.hit_rate is report.isolation.hit_rate_lost is None
    assert report.isolation.money.startswith("no fleet serves the load even with a shared scope: 14,000-token prompts")


def test_a_fleet_only_where_the_scope_is_shared() -> None:
    """Prompts of 14,000 tokens that find 12,000 of them cached in nearly all requests, or in few of them."""
    tight: dict[str, Any] = {
        "workload__input_tokens": {"mean": 13_000, "max": 14_000},
        "workload__prefix": {"shared_tokens": 12_000, "request_share": 1},
    }
    report = planned(workload__objectives={"ttft_p95_s": "0.3"}, **tight)
    assert report.isolation is not None
    assert report.isolation.shared.active_replicas is not None
    assert (report.fleet, report.isolation.per_tenant.active_replicas, report.isolation.monthly_usd) == (None,) * 3
    assert report.isolation.money.startswith("no fleet serves the load with a scope per tenant: ")


@pytest.mark.parametrize(
    ("changed", "warned"),
    [
        ({"engine_options.prefix_caching": False}, "prefix caching is off"),
        ({"workload.prefix.request_share": 0}, "no request begins with a prefix"),
        ({"workload.prefix.shared_tokens": 0}, "no request begins with a prefix"),
        (
            {"context_tokens": 7200, "workload.prefix.shared_tokens": 6900},
            "no prompt is longer than the prefix of 6,900 tokens: the longest has 6,700",
        ),
        (
            {"memory.weights_gib": 15, "workload.arrivals_per_s": None, "workload.concurrency": 9},
            "speed is not predicted",
        ),
    ],
)
def test_why_nothing_is_predicted_is_said(changed: dict[str, Any], warned: str) -> None:
    report = planned(**changed)
    assert report.isolation is None
    if "prefix" in warned:
        assert report.prefix is None
        assert not any("find the shared prefix" in line for line in report.assumptions)
    assert any(f"what each scope of the prefix cache finds is not predicted: {warned}" in w for w in report.warnings)


@pytest.mark.parametrize(
    ("tenants", "message"),
    [
        ({"count": 0, "cache_scope": "shared"}, "workload.tenants.count"),
        ({"count": 2}, "workload.tenants.cache_scope: missing"),
        ({"count": 2, "cache_scope": "per_client"}, "workload.tenants.cache_scope: .*'shared' or 'per_tenant'"),
        ({"count": 2, "cache_scope": "shared", "popularity": [1]}, "popularity has 1 weight and needs 2"),
        ({"count": 1, "cache_scope": "shared", "popularity": [0]}, "popularity"),
        (
            {"count": 1, "cache_scope": "shared", "prefixes": 2, "prefix_popularity": [1] * 3},
            "has 3 weights and needs 2",
        ),
        ({"count": 200, "cache_scope": "shared", "popularity": [1] * 200}, "popularity"),
    ],
)
def test_tenants_that_cannot_be_read_are_refused(tenants: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        planned(workload__tenants=tenants)


def test_tenants_need_a_prefix_and_no_mix() -> None:
    with pytest.raises(InputError, match="tenants needs prefix"):
        planned(workload__prefix=None)
    with pytest.raises(InputError, match=r"workload.tenants: how often a mix .* search without --mix"):
        plan_mix([scenario("llama-3.1-8b", overrides={"workload": SHARED})])


def test_what_is_assumed_is_said() -> None:
    lines = " ".join(planned().assumptions)
    assert "Che's approximation" in lines
    assert "every tenant and prefix equally popular" in lines
    assert "set from the authenticated identity" in lines
    given = " ".join(planned(workload__tenants=None).assumptions)
    assert "90% of the requests find the shared prefix cached, as given: workload.tenants says" in given


def test_every_format_and_a_comparison_show_both_scopes() -> None:
    apart, shared = planned(), planned(workload__tenants__cache_scope="shared")
    assert apart.inputs_digest == digest(scenario("llama-3.1-8b", overrides={"workload": SHARED, "spares.fraction": 0}))
    assert Report.model_validate_json(apart.model_dump_json()) == apart
    for text in (plain(draw(apart, 200, brief=False), 200), markdown.draw(apart)):
        for shown in (
            "prefix found, shared",
            "27.20 %",
            "isolation costs a month",
            "$2,190.00",
            "active replicas, per tenant",
        ):
            assert shown in text
    moved = {change.path: change for change in compare([apart, shared]).changes}
    assert moved["isolation.cache_scope"].new == "shared"
    assert "cache scope per_tenant -> shared" in moved["fleet.active_replicas"].why
    assert "isolation.per_tenant.hit_rate" not in moved
    more = planned(workload__tenants={"count": 400, "cache_scope": "per_tenant"})
    moved = {change.path: change for change in compare([apart, more]).changes}
    assert moved["isolation.per_tenant.hit_rate"].why.startswith("tenants x2.00")


def test_months_and_worlds_are_planned_with_their_own_hit_rates() -> None:
    given = {"workload": SHARED, "spares": {"fraction": 0}, "growth": {"per_month": 1, "months": 2}}
    uncertain = {"workload.tenants.count": {"low": 1, "mid": 200, "high": 1000}}
    report = plan_demand(scenario("llama-3.1-8b", overrides={**given, "uncertain": uncertain}))
    assert report.growth[1].active_replicas == planned(workload__arrivals_per_s=60).fleet.active_replicas  # type: ignore[union-attr]
    assert report.demand is not None
    needs = [world.active_replicas for world in report.demand.worlds]
    assert needs == [4, 7, planned(workload__tenants__count=1000).fleet.active_replicas]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ({"shared_tokens": 14_001, "request_share": "0.1"}, "shared_tokens 14,001 is over the longest prompt, 14,000"),
        ({"shared_tokens": 8000, "request_share": "0.9"}, "mean 7,000 is below prefix.request_share x .*, 7,200"),
    ],
)
def test_prompts_hold_the_prefix_that_they_begin_with(prefix: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        planned(workload__prefix=prefix)
    assert planned(workload__prefix={"shared_tokens": 7770, "request_share": "0.9"}).fleet is not None
