"""Spares from an availability: nodes that fail whole, zones that fail whole, and upgrades that take one replica out."""

from dataclasses import dataclass
from math import exp, fsum, lgamma, log, log1p

from planner.errors import InputError
from planner.inputs import Failures
from planner.units import ceil_div

MOST_SPARES = 2**14
"""Beyond this an availability is refused rather than bought."""


@dataclass(frozen=True, slots=True)
class Domain:
    """What fails together."""

    availability: float
    """Share of the time that it works."""
    replicas: int
    """Replicas that fail with it."""


@dataclass(frozen=True, slots=True)
class Redundancy:
    """Nodes and replicas that an availability takes."""

    domains: int
    replicas: int
    """Active and spare, spread evenly over the domains."""
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


def domain_of(failures: Failures, devices_per_replica: int, devices_per_node: int) -> Domain:
    """What one failure takes down: a node with its replicas, or the nodes that a replica spans."""
    node = node_availability(failures, devices_per_node)
    together = devices_per_node // devices_per_replica
    return Domain(node, together) if together else Domain(node ** ceil_div(devices_per_replica, devices_per_node), 1)


def redundancy(active: int, domain: Domain, target: float) -> Redundancy:
    """The least domains, then the least replicas in them, with which enough work for this share of the time.

        K = ceil(k / r);  least S with P(at least K of K + S work) >= target;
        least t with t - S ceil(t / (K + S)) >= k

    active: k, replicas needed [1]
    domain: r, replicas of one, and its availability [1]
    target: share of the time [1]
    returns: K + S domains and t replicas [1]
    raises: InputError where more than MOST_SPARES domains would be needed
    assumes: domains fail independently; replicas are spread evenly over them
    source: k-of-n systems (Barlow and Proschan 1975, Statistical Theory of Reliability)
    """
    needed = ceil_div(active, domain.replicas)
    spare = _least_spares(needed, domain.availability, target)
    domains = needed + spare
    replicas = active
    while replicas - spare * ceil_div(replicas, domains) < active:
        replicas += 1
    fewer = k_of_n(needed, spare - 1, domain.availability) if spare else None
    return Redundancy(domains, replicas, k_of_n(needed, spare, domain.availability), fewer)


def _least_spares(needed: int, availability: float, target: float) -> int:
    """By doubling, then bisection: each spare more raises the availability."""
    if k_of_n(needed, 0, availability) >= target:
        return 0
    low, high = 0, 1
    while k_of_n(needed, high, availability) < target:
        low, high = high, 2 * high
        if high > MOST_SPARES:
            raise InputError(
                f"spares: an availability of {availability:g} each is too low for objectives.availability {target:g}: "
                f"more than {MOST_SPARES:,} spares beside {needed:,}"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if k_of_n(needed, middle, availability) >= target else (middle, high)
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
