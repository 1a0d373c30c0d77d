"""Workloads: lengths, load, prefix sharing, and what counts as good service."""

from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.input_types import Count, CountOrNone, Input, Number, Positive, PositiveShare, Share
from planner.printable import Name, Printable
from planner.units import counted

MOST_WEIGHTS = 100
"""Of tenants or prefixes whose popularity is given one by one."""
PERCENTILES = ("p50", "p90", "p95", "p99", "max")


class Lengths(Input):
    """A distribution of lengths in tokens."""

    mean: Count
    p50: Count | None = None
    p90: Count | None = None
    p95: Count | None = None
    p99: Count | None = None
    max: Count | None = None

    @model_validator(mode="after")
    def _ascending(self) -> "Lengths":
        given = [(name, value) for name in PERCENTILES if (value := getattr(self, name)) is not None]
        for (name, shorter), (after, longer) in pairwise(given):
            if longer < shorter:
                raise ValueError(f"{after} {longer:,} is below {name} {shorter:,}")
        if self.max is not None and self.mean > self.max:
            raise ValueError(f"mean {self.mean:,} is over max {self.max:,}")
        return self


class Prefix(Input):
    """A prompt prefix that many requests share."""

    shared_tokens: CountOrNone
    """Length of the shared prefix."""
    request_share: Share
    """Share of the requests that begin with it; all of them find it cached, unless the workload gives tenants."""


class Tenants(Input):
    """Who shares the service, and which of them may reuse what another left in the prefix cache."""

    count: Count
    """Tenants that share the service."""
    cache_scope: Literal["shared", "per_tenant"]
    """Whose cached prefixes a request may find: any tenant's, or its own only. The scope comes from the authenticated
    identity, never from what a client says."""
    prefixes: Count = 1
    """Different prefixes of prefix.shared_tokens each, the same ones for every tenant."""
    popularity: Annotated[tuple[Positive, ...], Field(max_length=MOST_WEIGHTS)] | None = None
    """Requests of each tenant, over one another; absent: equal."""
    prefix_popularity: Annotated[tuple[Positive, ...], Field(max_length=MOST_WEIGHTS)] | None = None
    """Requests that begin with each prefix, over one another; absent: equal."""

    @model_validator(mode="after")
    def _one_weight_each(self) -> "Tenants":
        for name, weights, count in (
            ("popularity", self.popularity, self.count),
            ("prefix_popularity", self.prefix_popularity, self.prefixes),
        ):
            if weights is not None and len(weights) != count:
                raise ValueError(f"{name} has {counted(len(weights), 'weight')} and needs {count:,}, one each")
        return self


class Objectives(Input):
    """What the fleet must meet; what is absent is not asked for."""

    ttft_p95_s: Positive | None = None
    """95th percentile over requests of the time to first token, queueing included [s]."""
    itl_p95_s: Positive | None = None
    """95th percentile over all gaps between tokens [s]."""
    success_share: PositiveShare | None = None
    """Share of the submitted requests that end well and get their first token in time."""
    availability: Annotated[PositiveShare, Field(lt=1)] | None = None
    """Share of the time that enough replicas work; with spares.replica_availability it says how many are spare."""


class Workload(Input):
    """What is asked of the service: lengths, load and what counts as success."""

    name: Name
    title: Printable | None = None
    context_tokens: Count
    """Longest request to plan for, input and output together."""
    input_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    concurrency: Count | None = None
    """Requests active at the peak; absent: what arrivals_per_s keeps active."""
    arrivals_per_s: Positive | None = None
    """Requests that arrive at the peak, over the whole fleet [1/s]."""
    peak_to_mean: Annotated[Positive, Field(ge=1, le=1000)] | None = None
    """The busiest ten minutes over the month's mean; with requests_per_month it gives arrivals_per_s where nothing else
    says the load."""
    burstiness: Annotated[Positive, Field(ge=Decimal("0.01"), le=10_000)] = Decimal(1)
    """Variance over mean of the number of requests active at once, were nothing to queue: 1 for Poisson arrivals."""
    requests_per_month: Count | None = None
    """Requests submitted in a month."""
    prefix: Prefix | None = None
    tenants: Tenants | None = None
    """Who shares the prefix; planner then computes how often it is found in a finite cache."""
    success_share: PositiveShare = Decimal(1)
    """Share of the submitted requests that end well, after every retry."""
    retries_per_failure: Annotated[Number, Field(le=1000)] = Decimal(0)
    """Times that a request which does not end well is tried again, in vain; arrivals_per_s and requests_per_month count
    requests once, so retries are load beside them. concurrency counts whatever is active."""
    objectives: Objectives = Objectives()
    percentile_method: Printable | None = None
    source: Printable
    licence: Printable | None = None
    as_of: date | None = None
    assumed: tuple[str, ...] = ()
    """Fields that are an assumption and not from the source."""
    notes: Printable | None = None

    @property
    def mean_tokens(self) -> int | None:
        """Mean length of a request, input and output together."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens.mean + self.output_tokens.mean

    @model_validator(mode="after")
    def _load_is_given(self) -> "Workload":
        by_month = self.peak_to_mean is not None and self.requests_per_month is not None
        if self.concurrency is None and self.arrivals_per_s is None and not by_month:
            raise ValueError(
                "concurrency or arrivals_per_s is needed: how many requests are active, or arrive; requests_per_month "
                "with peak_to_mean also says it"
            )
        return self

    @model_validator(mode="after")
    def _tenants_share_a_prefix(self) -> "Workload":
        if self.tenants and self.prefix is None:
            raise ValueError("tenants needs prefix: what their prompts begin with, and in how many of the requests")
        return self

    @model_validator(mode="after")
    def _prefix_within_prompts(self) -> "Workload":
        if self.prefix is None or not self.prefix.request_share:
            return self
        tokens, prompts = self.prefix.shared_tokens, self.input_tokens
        longest = prompts.max if prompts and prompts.max else self.context_tokens
        if tokens > longest:
            raise ValueError(f"prefix.shared_tokens {tokens:,} is over the longest prompt, {longest:,} tokens")
        least = tokens * self.prefix.request_share
        if prompts and prompts.mean < least:
            raise ValueError(
                f"input_tokens.mean {prompts.mean:,} is below prefix.request_share x prefix.shared_tokens, {least:,.0f}"
            )
        return self

    @model_validator(mode="after")
    def _mean_within_context(self) -> "Workload":
        mean = self.mean_tokens
        if mean is not None and mean > self.context_tokens:
            raise ValueError(
                f"mean input and output together are {mean:,} tokens, over context_tokens {self.context_tokens:,}"
            )
        return self
