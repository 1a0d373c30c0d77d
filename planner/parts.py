"""What reports are made of: their frozen base, and the parts that are about money."""

from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, ConfigDict

from planner.printable import Printable


class Part(BaseModel):
    """Base of every part of a report."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)


class CostLine(Part):
    """One monthly line."""

    name: Printable
    text: Printable
    monthly_usd: Decimal


class Cost(Part):
    """Dollars a month, and per 1,000 requests where the workload says how many there are."""

    currency: Literal["USD"]
    lines: tuple[CostLine, ...]
    monthly_usd: Decimal
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


class PrefixReuse(Part):
    """Prompt positions whose prefill a shared prefix avoids."""

    requests_per_month: int
    saved_positions_per_month: int
