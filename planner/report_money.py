"""The parts of a report that are about money."""

from decimal import Decimal
from typing import Literal

from planner.printable import Printable
from planner.report_base import Part


class CostLine(Part):
    """One monthly line."""

    name: Printable
    text: Printable
    monthly_usd: Decimal


class ApiComparison(Part):
    """A hosted API beside the fleet, whose cost is the reservation: it is paid whatever is served."""

    monthly_usd: Decimal | None
    """What the API bills for the month's requests; None where nobody says how many there are."""
    break_even_requests: int
    """Requests a month at which both cost the same; with fewer the API is cheaper."""
    most_requests: int | None
    """Requests a month that the fleet's active replicas can do; None where speed is not predicted."""


class Cost(Part):
    """Dollars a month, and per 1,000 requests where the workload says how many there are."""

    currency: Literal["USD"]
    lines: tuple[CostLine, ...]
    monthly_usd: Decimal
    """The reservation: what holding the capacity costs, used or not; the whole bill."""
    other_monthly_usd: Decimal
    """What of it is not for devices."""
    list_usd: Decimal | None
    """The devices that the fleet uses, at list price; None where the list price of some is not known."""
    effective_usd: Decimal
    """The same devices at the prices paid: after discount and commitment."""
    billed_usd: Decimal
    """Devices as billed: whole instances, and the whole commitment."""
    retried_requests: int
    """Retries a month: load beside the requests submitted."""
    in_time_share: Decimal
    """Of the requests, those whose first token comes within the limit asked for; 1 where none is."""
    per_1000_submitted_usd: Decimal | None
    per_1000_successful_usd: Decimal | None
    """Successful: submitted x the share that ends well x the share in time."""
    prefill_share: float | None
    """Of a busy replica's time, what prompts take; it and the figures below are None where speed is not predicted, or
    nobody says how many requests a month has."""
    per_1m_input_tokens_usd: Decimal | None
    """Input tokens, cached ones included, bear the whole bill in the ratio of the time that prompts take."""
    per_1m_output_tokens_usd: Decimal | None
    """Output tokens bear the rest of it."""
    month_utilisation: float | None
    """Share of the capacity billed in the month that its requests use."""
    usage_usd: Decimal | None
    """That share of the reservation: what the capacity used costs."""
    api: ApiComparison | None


class PrefixReuse(Part):
    """Prompt positions whose prefill a shared prefix avoids."""

    requests_per_month: int
    saved_positions_per_month: int
    replicas_without: int | None
    """Active replicas that the same load takes without the prefix; None where that is not known, or none suffice."""
    saved_monthly_usd: Decimal | None
    """Dollars a month for the devices that are not needed; None where nothing is claimed."""
    money: Printable
    """What reuse saves in money, or why it saves none."""


class CacheScope(Part):
    """The plan where a request may find the cached prefixes of one scope."""

    prefixes: int
    """Different ones in the cache, each with its own blocks."""
    hit_rate: float | None
    """Of the requests that begin with a prefix, the share that finds it cached; None where no fleet serves the load."""
    stays_s: float | None
    """How long a prefix stays after its last request has ended (Che's characteristic time); None where it is never
    evicted, or there is no fleet."""
    free_tokens: int | None
    """Of one cache, what running requests do not hold with what is their own; None where there is no fleet."""
    active_replicas: int | None
    billed_devices: int | None
    monthly_usd: Decimal | None
    binding_limit: Printable
    binding_reason: Printable


class Isolation(Part):
    """What it costs that tenants do not find one another's cached prefixes."""

    tenants: int
    cache_scope: Literal["shared", "per_tenant"]
    """That the report plans with."""
    shared: CacheScope
    """One scope for all tenants."""
    per_tenant: CacheScope
    """One scope for each, from the authenticated identity."""
    hit_rate_lost: float | None
    """Hit rate of the shared scope less that of one per tenant."""
    monthly_usd: Decimal | None
    """Dollars a month of one scope per tenant less those of the shared one; None where one of them has no fleet."""
    money: Printable
    """What isolation costs, or why it costs nothing."""
