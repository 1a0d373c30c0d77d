"""The parts of a result on fleets of several GPU types."""

from decimal import Decimal

from planner.printable import Printable
from planner.report_base import Part


class MixPart(Part):
    """The replicas of one type in a mixed fleet."""

    choice: Printable
    active_replicas: int
    devices: int
    """Of the active ones."""
    monthly_usd: Decimal
    """Spares of this type and whole instances included."""
    serves: tuple[Printable, ...]
    """Shares of the sizes of requests that it takes."""


class MixPlan(Part):
    """The cheapest fleet by size of request, and the best of a single type under the same model."""

    parts: tuple[MixPart, ...]
    monthly_usd: Decimal
    """Of all parts, and the other monthly lines once."""
    best_single: Printable | None
    """None where no single type serves all sizes."""
    best_single_monthly_usd: Decimal | None
