"""Replicas, spares, devices and the whole instances that hold them."""

from dataclasses import dataclass
from decimal import Decimal

from planner.inputs import Price, Spares
from planner.units import ceil_div, scale_up


def active_replicas(concurrency: int, slots: int) -> int:
    """Replicas that run this many requests at once.

        ceil(n / s)

    concurrency: n, requests active at the peak [1]
    slots: s, requests that one replica runs at once [1]
    returns: replicas [1]
    source: definition; every active request is fully reserved
    """
    return ceil_div(concurrency, slots)


def spare_replicas(active: int, spares: Spares) -> int:
    """Replicas held beside the active ones.

        ceil(f * a), or the number given

    active: a, active replicas [1]
    spares: f, the fraction, or the number [1]
    returns: replicas [1]
    source: an N + x rule given by the scenario
    """
    if spares.replicas is not None:
        return spares.replicas
    return scale_up(active, spares.fraction or Decimal(0))


def active_within(replicas: int, spares: Spares) -> int:
    """Most active replicas whose spares fit into this many replicas as well."""
    low, high = 0, replicas
    while low < high:
        middle = (low + high + 1) // 2
        if middle + spare_replicas(middle, spares) <= replicas:
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
