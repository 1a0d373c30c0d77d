"""Spares from an availability: nodes that fail whole, zones that fail whole, and upgrades that take one replica out."""

from dataclasses import dataclass
from math import exp, fsum, lgamma, log, log1p

from planner.errors import InputError
from planner.inputs import Failures
from planner.units import ceil_div

MOST_SPARES = 2**14
"""Beyond this an availability is refused rather than bought."""
ROUNDING = 1e-12
"""Of an availability: what floats lose, so that 1 - 0.1^4 reaches 0.9999."""


@dataclass(frozen=True, slots=True)
class Domain:
    """What fails together."""

    availability: float
    """Share of the time that it works."""
    replicas: int
    """Replicas that fail with it, at most."""
    lot: int = 1
    """Replicas whose devices are bought together."""


@dataclass(frozen=True, slots=True)
class Redundancy:
    """Nodes and replicas that an availability takes."""

    domains: int
    spare: int
    """Domains that may fail at once."""
    lots: int
    """Bought, spread evenly over the domains."""
    replicas: int
    """Active and spare, spread evenly over the lots."""
    availability: float
    """Share of the time that enough replicas work."""
    one_fewer: float | None
    """The same with one domain fewer; None where none is spare."""


def node_availability(failures: Failures, devices: int) -> float:
    """Share of the time that a node works.

        A = M / (M + R), M = H / d

    failures: H, device-hours per failure, and R, hours to repair [h]
    devices: d, of one node, any of which takes it down [1]
    returns: share [1]
    source: definition; failures of devices are independent and equally likely
    """
    mtbf = float(failures.device_hours_per_failure) / devices
    return mtbf / (mtbf + float(failures.mttr_hours))


def domain_of(failures: Failures, devices_per_replica: int, devices_per_node: int, unit: int = 1) -> Domain:
    """What one failure takes down: a node with its replicas, or the nodes that a replica spans.

    unit: devices that are bought together
    """
    node = node_availability(failures, devices_per_node)
    works = node ** ceil_div(devices_per_replica, devices_per_node)
    return Domain(works, *together(devices_per_replica, devices_per_node, unit))


def together(devices_per_replica: int, devices_per_node: int, unit: int) -> tuple[int, int]:
    """(replicas of a node at most, those of them that are bought together): whole instances, or one by one."""
    node, instance = max(1, devices_per_node // devices_per_replica), max(1, unit // devices_per_replica)
    if devices_per_node < unit or unit < devices_per_replica:
        return node, min(node, instance)
    return devices_per_node // unit * instance, instance


def redundancy(active: int, domain: Domain, target: float) -> Redundancy:
    """The cheapest domains and replicas with which enough work for this share of the time.

        least n = l + m S over m = 1 .. R,  with K = ceil(l / m), l = ceil(k / b) and R = r / b,
        and the least S with P(at least K of K + S work) >= target;
        t = k + m S ceil(k / l)

    active: k, replicas needed [1]
    domain: r, replicas of one at most, b of them bought together, and its availability [1]
    target: share of the time [1]
    returns: K + S domains of at most m lots each, n lots of b replicas, and t replicas [1]
    raises: InputError where more than MOST_SPARES domains would be needed
    assumes: domains fail independently; lots are spread evenly over them, and replicas over the lots
    source: k-of-n systems (Barlow and Proschan 1975, Statistical Theory of Reliability)
    """
    needed = ceil_div(active, domain.lot)
    best: tuple[int, int, int] | None = None
    for working in sorted({ceil_div(needed, each) for each in range(1, domain.replicas // domain.lot + 1)}):
        each = ceil_div(needed, working)
        most = MOST_SPARES if best is None else (best[0] - needed - 1) // each
        spare = _least_spares(working, domain.availability, target, most)
        if spare is not None:
            best = needed + each * spare, working, spare
        elif best is None:
            raise InputError(
                f"spares: an availability of {domain.availability:g} each is too low for objectives.availability "
                f"{target:g}: more than {MOST_SPARES:,} spares beside {working:,}"
            )
    if best is None:
        raise ValueError("no replica is needed")
    lots, working, spare = best
    replicas = active + (lots - needed) * ceil_div(active, needed)
    fewer = k_of_n(working, spare - 1, domain.availability) if spare else None
    return Redundancy(working + spare, spare, lots, replicas, k_of_n(working, spare, domain.availability), fewer)


def _least_spares(needed: int, availability: float, target: float, most: int) -> int | None:
    """Of at most so many, by doubling, then bisection: each spare more raises the availability. None: not enough."""

    def enough(spare: int) -> bool:
        return k_of_n(needed, spare, availability) >= target - ROUNDING

    if enough(0):
        return 0
    low, high = 0, min(1, most)
    while not enough(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def k_of_n(needed: int, spare: int, availability: float) -> float:
    """Share of the time that at least as many as are needed work.

        sum over f = 0 .. s of C(k + s, f) (1 - A)^f A^(k + s - f)

    needed: k [1]
    spare: s, beside them [1]
    availability: A, share of the time that one works; failures are independent [1]
    returns: share [1]
    source: k-of-n systems (Barlow and Proschan 1975, Statistical Theory of Reliability)
    """
    if availability in (0.0, 1.0):
        return availability
    total = needed + spare
    up, down, everything = log(availability), log1p(-availability), lgamma(total + 1)
    return fsum(
        exp(everything - lgamma(failed + 1) - lgamma(total - failed + 1) + failed * down + (total - failed) * up)
        for failed in range(spare + 1)
    )


def surviving_a_zone(active: int, zones: int) -> int:
    """Replicas of which enough are left when one zone fails.

        ceil(k Z / (Z - 1))

    active: k, replicas needed [1]
    zones: Z, over which they are spread evenly [1]
    returns: replicas [1]
    source: definition
    """
    return ceil_div(active * zones, zones - 1)
