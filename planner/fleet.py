"""Replicas, spares, devices and the whole instances that hold them."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from planner.availability import Domain, Redundancy, domain_of, redundancy, surviving_a_zone, together
from planner.inputs import Commitment, Price, Spares
from planner.units import ceil_div, counted, scale_up


def active_replicas(concurrency: int, slots: int) -> int:
    """Replicas that run this many requests at once.

        ceil(n / s)

    concurrency: n, requests active at the peak [1]
    slots: s, requests that one replica runs at once [1]
    returns: replicas [1]
    source: definition; every active request is fully reserved
    """
    return ceil_div(concurrency, slots)


@dataclass(frozen=True, slots=True)
class SpareRule:
    """One reason for spares, and how many it asks for."""

    name: str
    replicas: int
    text: str


@dataclass(frozen=True, slots=True)
class SparePlan:
    """Replicas held beside the active ones: as many as the rule that asks for most."""

    rules: tuple[SpareRule, ...]
    redundancy: Redundancy | None = None
    """Where an availability is asked for."""

    @property
    def replicas(self) -> int:
        """Spare replicas."""
        return max(rule.replicas for rule in self.rules)


def spare_plan(
    active: int, spares: Spares, availability: Decimal | None = None, devices_per_replica: int = 1, unit: int = 1
) -> SparePlan:
    """Replicas held beside the active ones.

    active: replicas needed
    availability: the fleet's, where spares say how often replicas work
    unit: devices of an instance, which are bought together, and fail together unless spares say otherwise
    raises: InputError where an availability cannot be reached
    """
    if active == 0:
        return SparePlan((SpareRule("none", 0, "no active replica"),))
    if availability is None or not spares.by_availability:
        return SparePlan((_plain_rule(active, spares), *_zone_rule(active, spares)))
    domain = _domain(spares, devices_per_replica, unit)
    found = redundancy(active, domain, float(availability))
    each = ceil_div(found.lots, found.domains) * domain.lot
    text = (
        f"{counted(found.domains, 'domain')} of {'at most ' if each > 1 else ''}{counted(each, 'replica')} that fail "
        f"together, each working {domain.availability:.4%} of the time: enough work {found.availability:.4%} of it"
    )
    asked = SpareRule("availability", found.replicas - active, text)
    upgrade = SpareRule("rolling_upgrade", 1, "one replica at a time is taken out")
    return SparePlan((asked, upgrade, *_zone_rule(active, spares)), found)


def _plain_rule(active: int, spares: Spares) -> SpareRule:
    if spares.replicas is not None:
        return SpareRule("given", spares.replicas, "given")
    fraction = spares.fraction or Decimal(0)
    return SpareRule("fraction", scale_up(active, fraction), f"ceil({active:,} x {fraction})")


def _zone_rule(active: int, spares: Spares) -> tuple[SpareRule, ...]:
    if spares.zones is None:
        return ()
    total = surviving_a_zone(active, spares.zones)
    text = f"ceil({active:,} x {spares.zones} / {spares.zones - 1}) - {active:,}, so that one zone may fail"
    return (SpareRule("zone", total - active, text),)


def _domain(spares: Spares, devices_per_replica: int, unit: int) -> Domain:
    node = spares.devices_per_node
    if spares.failures is not None:
        return domain_of(spares.failures, devices_per_replica, node or unit, unit)
    works = float(spares.replica_availability or 0)
    return Domain(works, *together(devices_per_replica, node, unit)) if node else Domain(works, 1)


def active_within(
    replicas: int, spares: Spares, availability: Decimal | None = None, devices_per_replica: int = 1, unit: int = 1
) -> int:
    """Most active replicas whose spares fit into this many replicas as well, on no more instances."""
    lots = ceil_div(replicas, _domain(spares, devices_per_replica, unit).lot)

    def fit(active: int) -> bool:
        plan = spare_plan(active, spares, availability, devices_per_replica, unit)
        return active + plan.replicas <= replicas and (plan.redundancy is None or plan.redundancy.lots <= lots)

    return _most(replicas, fit)


def _most(high: int, fit: Callable[[int], bool]) -> int:
    """Most of 1 to high that fit, or 0: by bisection, where none fits beyond one that does not."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fit(middle) else (low, middle - 1)
    return low


def instances_apart(plan: SparePlan, active: int, spares: Spares, devices_per_replica: int, price: Price) -> int:
    """Least instances over which replicas are spread: those that an availability counts on, and those of every zone.

    Replicas beyond those that survive a zone's loss may run on any of them.
    """
    node = spares.devices_per_node or (price.devices if spares.failures else 0)
    failing_apart = ceil_div(plan.redundancy.lots, max(1, price.devices // node)) if plan.redundancy and node else 0
    fits = price.devices // devices_per_replica
    if not spares.zones or not fits:
        return failing_apart
    return max(failing_apart, _instances_of_zones(surviving_a_zone(active, spares.zones), spares.zones, fits))


def _instances_of_zones(replicas: int, zones: int, fits: int) -> int:
    """Instances that each hold so many replicas, none of them in two zones.

    (t mod Z) ceil((floor(t / Z) + 1) / f) + (Z - t mod Z) ceil(floor(t / Z) / f)

    replicas: t, spread evenly over Z zones [1]
    fits: f, replicas of one instance [1]
    returns: instances [1]
    source: definition
    """
    each, more = divmod(replicas, zones)
    return more * ceil_div(each + 1, fits) + (zones - more) * ceil_div(each, fits)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where replicas run: instances sold whole, or devices sold one by one."""

    nodes: int | None
    """Instances; None where devices are sold one by one."""
    billed_devices: int
    split: bool
    """A replica spans more than one instance."""


def place(replicas: int, devices_per_replica: int, price: Price, least_nodes: int = 0) -> Placement:
    """Whole instances for these replicas; a replica stays on one instance where it fits.

    least_nodes: instances over which an availability or zones spread them
    source: instances are sold whole (each price's instance type)
    """
    if not price.sold_whole:
        return Placement(None, replicas * devices_per_replica, split=False)
    fits = price.devices // devices_per_replica
    nodes = ceil_div(replicas, fits) if fits else replicas * ceil_div(devices_per_replica, price.devices)
    nodes = max(nodes, least_nodes)
    return Placement(nodes, nodes * price.devices, split=not fits)


@dataclass(frozen=True, slots=True)
class Bill:
    """Whose price each device of a fleet is billed at."""

    committed: Placement
    """The whole commitment; nothing without one."""
    on_commitment: int
    """Replicas that run on it."""
    beyond: Placement
    """What the other replicas take."""

    @property
    def nodes(self) -> int | None:
        """Instances; None where no device is sold by the instance."""
        sold_whole = [each.nodes for each in (self.committed, self.beyond) if each.nodes is not None]
        return sum(sold_whole) if sold_whole else None


def bill(
    replicas: int, devices_per_replica: int, price: Price, commitment: Commitment | None, least_nodes: int = 0
) -> Bill:
    """As many replicas as fit run on the commitment, which is billed whole; the others are placed at the price.

    least_nodes: instances over which an availability or zones spread them, those of the commitment included
    source: a commitment is billed whether used or not (FOCUS 1.2, commitment discounts)
    """
    if commitment is None:
        return Bill(Placement(None, 0, split=False), 0, place(replicas, devices_per_replica, price, least_nodes))
    committed, on_commitment = _held_by(commitment, devices_per_replica)
    used = min(replicas, on_commitment)
    beyond = place(replicas - used, devices_per_replica, price, max(0, least_nodes - (committed.nodes or 0)))
    return Bill(committed, used, beyond)


def _held_by(commitment: Commitment, devices_per_replica: int) -> tuple[Placement, int]:
    """(what a commitment is billed as, the replicas that it holds)."""
    each, unit = devices_per_replica, commitment.price.devices
    if not commitment.price.sold_whole:
        return Placement(None, commitment.devices, split=False), commitment.devices // each
    nodes, fits = ceil_div(commitment.devices, unit), unit // each
    return Placement(nodes, nodes * unit, split=not fits), nodes * fits if fits else nodes // ceil_div(each, unit)
