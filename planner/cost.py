"""Money: exact decimals and fractions inside, cents at the end."""

from decimal import Decimal
from fractions import Fraction

from planner.inputs import Price


def device_month_usd(billed_devices: int, price: Price, hours: Decimal | Fraction) -> Fraction:
    """Dollars a month for the devices billed.

        d / u * p * h

    billed_devices: d [1]
    price: p per unit of u devices [USD/h]
    hours: h, hours of a month in which they are held [h]
    returns: dollars a month [USD]
    source: the price's own source
    """
    return Fraction(billed_devices, price.devices) * Fraction(price.usd_per_hour) * Fraction(hours)


def attempts_per_request(completes: Decimal, retries: Decimal) -> Fraction:
    """Attempts that one submitted request is served as, on average.

        1 + r * (1 - c)

    completes: c, share of the submitted requests that end well [1]
    retries: r, times that each of the others is tried again [1]
    returns: attempts [1]
    assumes: requests that end well do so at the first attempt; a late first token is not retried
    source: definition
    """
    return 1 + Fraction(retries) * (1 - Fraction(completes))


def successful_requests(submitted: int, completes: Decimal, in_time: Decimal) -> Fraction:
    """Requests that end well and begin in time.

        n * c * t

    submitted: n, requests a month [1]
    completes: c, share of them that end well [1]
    in_time: t, share of the first tokens within the limit asked for; 1 where none is [1]
    returns: requests a month [1]
    assumes: the two are independent
    source: goodput (Zhong et al. 2024, DistServe, arXiv:2401.09670)
    """
    return submitted * Fraction(completes) * Fraction(in_time)


def per_thousand_usd(monthly: Fraction, requests: Fraction) -> Fraction:
    """Dollars per 1,000 requests.

        m / r * 1000

    monthly: m, dollars a month [USD]
    requests: r, requests a month [1]
    returns: dollars per 1,000 requests [USD]
    source: definition
    """
    return monthly / requests * 1000
