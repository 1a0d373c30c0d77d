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


def per_thousand_usd(monthly: Fraction, requests: Fraction) -> Fraction:
    """Dollars per 1,000 requests.

        m / r * 1000

    monthly: m, dollars a month [USD]
    requests: r, requests a month [1]
    returns: dollars per 1,000 requests [USD]
    source: definition; successful requests are submitted x success share
    """
    return monthly / requests * 1000
