"""The parts of a report on demand that grows or is not known exactly."""

from decimal import Decimal

from planner.printable import Printable
from planner.report_base import Part


class GrowthMonth(Part):
    """The plan for the load of one month."""

    month: int
    """From 1, the load as given."""
    load: float
    """Over that of the first month."""
    active_replicas: int | None
    """None where no fleet serves it."""
    billed_devices: int | None
    monthly_usd: Decimal | None
    reason: Printable | None = None
    """Why no fleet serves it; None where one does."""


class World(Part):
    """One combination of low, mid and high values of what is uncertain."""

    values: tuple[Printable, ...]
    """path=value of each."""
    weight: float
    """Its probability."""
    active_replicas: int | None
    """What it needs; None where no fleet serves it."""
    monthly_usd: Decimal | None
    regret: float | None
    """Of the fleet of least regret, in this world [USD^1.2]."""
    reason: Printable | None = None
    """Why no fleet serves it; None where one does."""


class DemandRange(Part):
    """What the plan comes to over all worlds, and the fleet that one regrets least; None where no world has a plan."""

    worlds: tuple[World, ...]
    active_replicas_low: int | None
    active_replicas_high: int | None
    monthly_usd_low: Decimal | None
    monthly_usd_high: Decimal | None
    infeasible_share: float
    """Probability of the worlds that no fleet serves."""
    least_regret_replicas: int | None
    """Active ones."""
    least_regret_monthly_usd: Decimal | None
    """In the middle world; None also where its figures do not go together."""
    enough_share: float
    """Probability that it is enough."""
