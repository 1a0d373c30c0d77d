"""Replicas, spares, devices and the whole instances that hold them."""

from dataclasses import dataclass
from decimal import Decimal
from math import exp, fsum, lgamma, log, log1p

from planner.errors import InputError
from planner.inputs import Commitment, Price, Spares
from planner.units import ceil_div, scale_up

MOST_SPARES = 2**14
"""Beyond this an availability is refused rather than bought."""


def active_replicas(concurrency: int, slots: int) -> int:
    """Replicas that run this many requests at once.

        ceil(n / s)

    concurrency: n, requests active at the peak [1]
    slots: s, requests that one replica runs at once [1]
    returns: replicas [1]
    source: definition; every active request is fully reserved
    """
    return ceil_div(concurrency, slots)


def spare_replicas(active: int, spares: Spares, availability: Decimal | None = None) -> int:
    """Replicas held beside the active ones.

        ceil(f * a), or the number given, or the least s with P(at most s of a + s down) >= availability

    active: a, active replicas [1]
    spares: f, the fraction, or the number, or the availability of one replica [1]
    availability: the fleet's, where spares give a replica's [1]
    returns: replicas [1]
    source: an N + x rule given by the scenario; k-of-n by fleet_availability
    """
    if spares.replicas is not None:
        return spares.replicas
    if spares.replica_availability is None or availability is None:
        return scale_up(active, spares.fraction or Decimal(0))
    return _least_spares(active, float(spares.replica_availability), float(availability))


def _least_spares(active: int, replica: float, fleet: float) -> int:
    """By doubling, then bisection: each spare more raises the availability."""
    if active == 0 or fleet_availability(active, 0, replica) >= fleet:
        return 0
    low, high = 0, 1
    while fleet_availability(active, high, replica) < fleet:
        low, high = high, 2 * high
        if high > MOST_SPARES:
            raise InputError(
                f"spares.replica_availability: {replica:g} is too low for objectives.availability {fleet:g}: more than "
                f"{MOST_SPARES:,} spares beside {active:,} active replicas"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fleet_availability(active, middle, replica) >= fleet else (middle, high)
    return high


def fleet_availability(active: int, spare: int, replica: float) -> float:
    """Share of the time that at least the active replicas work, of all that there are.

        sum over f = 0 .. s of C(k + s, f) (1 - A)^f A^(k + s - f)

    active: k, replicas needed [1]
    spare: s, replicas beside them [1]
    replica: A, share of the time that one works; failures are independent [1]
    returns: share [1]
    source: k-of-n systems (Barlow and Proschan 1975, Statistical Theory of Reliability)
    """
    if replica <= 0:
        return 0.0
    total = active + spare
    up, down, everything = log(replica), log1p(-replica), lgamma(total + 1)
    return fsum(
        exp(everything - lgamma(failed + 1) - lgamma(total - failed + 1) + failed * down + (total - failed) * up)
        for failed in range(spare + 1)
    )


def active_within(replicas: int, spares: Spares, availability: Decimal | None = None) -> int:
    """Most active replicas whose spares fit into this many replicas as well."""
    low, high = 0, replicas
    while low < high:
        middle = (low + high + 1) // 2
        if middle + spare_replicas(middle, spares, availability) <= replicas:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class Placement:
    """Where replicas run: instances sold whole, or devices sold one by one."""

    nodes: int | None
    """Instances; None where devices are sold one by one."""
    billed_devices: int
    split: bool
    """A replica spans more than one instance."""


def place(replicas: int, devices_per_replica: int, price: Price) -> Placement:
    """Whole instances for these replicas; a replica stays on one instance where it fits.

    source: instances are sold whole (each price's instance type)
    """
    if not price.sold_whole:
        return Placement(None, replicas * devices_per_replica, split=False)
    fits = price.devices // devices_per_replica
    nodes = ceil_div(replicas, fits) if fits else replicas * ceil_div(devices_per_replica, price.devices)
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


def bill(replicas: int, devices_per_replica: int, price: Price, commitment: Commitment | None) -> Bill:
    """As many replicas as fit run on the commitment, which is billed whole; the others are placed at the price.

    source: a commitment is billed whether used or not (FOCUS 1.2, commitment discounts)
    """
    if commitment is None:
        return Bill(Placement(None, 0, split=False), 0, place(replicas, devices_per_replica, price))
    committed, on_commitment = _held_by(commitment, devices_per_replica)
    used = min(replicas, on_commitment)
    return Bill(committed, used, place(replicas - used, devices_per_replica, price))


def _held_by(commitment: Commitment, devices_per_replica: int) -> tuple[Placement, int]:
    """(what a commitment is billed as, the replicas that it holds)."""
    each, unit = devices_per_replica, commitment.price.devices
    if not commitment.price.sold_whole:
        return Placement(None, commitment.devices, split=False), commitment.devices // each
    nodes, fits = ceil_div(commitment.devices, unit), unit // each
    return Placement(nodes, nodes * unit, split=not fits), nodes * fits if fits else nodes // ceil_div(each, unit)
