"""Which row of a price list is meant, which is taken where none is named, and how prices compare."""

from collections.abc import Iterator
from decimal import Decimal

from planner.errors import InputError, nearest
from planner.inputs import Price, PriceRow

TERMS = ("on_demand", "spot", "reserved_1y", "reserved_3y")


def named_price(wanted: str, accelerator: str, listed: tuple[PriceRow, ...]) -> Price:
    """The row that provider/instance[/term] names; the term is on_demand unless it is given.

    raises: InputError with the nearest rows and their terms, or the terms that the row has
    """
    provider, _, tail = wanted.partition("/")
    offered = dict.fromkeys(term for row in listed for term in row.usd_per_instance_hour)
    instance, _, term = tail.rpartition("/") if tail.rpartition("/")[2] in (*TERMS, *offered) else (tail, "", "")
    term = term or "on_demand"
    found = [row for row in listed if (row.provider, row.instance) == (provider, instance)]
    if not found:
        known = nearest(wanted, {f"{row.provider}/{row.instance}" for row in listed})
        raise InputError(f"price {wanted!r} is not listed for {accelerator}{known}; on terms: {', '.join(offered)}")
    if len(found) > 1:
        regions = ", ".join(str(row.region) for row in found)
        raise InputError(f"price {wanted!r} is listed {len(found)} times for {accelerator}, in {regions}: keep one")
    if term not in found[0].usd_per_instance_hour:
        listed_terms = ", ".join(found[0].usd_per_instance_hour)
        raise InputError(f"price {wanted!r}: no {term} price is listed; listed: {listed_terms}")
    return _as_price(found[0], term)


def lowest_price(accelerator: str, listed: tuple[PriceRow, ...], together: int) -> Price:
    """The lowest price per device-hour, on demand and dated, of an instance that holds `together` devices.

    together: devices that exchange activations at every layer (tensor and data parallel ranks of one stage); where no
        instance is as large, the largest ones listed
    """
    dated = [row for row in listed if row.as_of and "on_demand" in row.usd_per_instance_hour]
    if not dated:
        raise InputError(f"no dated on-demand price of {accelerator} is listed: give --price")
    needed = min(together, max(row.devices for row in dated))
    return _as_price(min((row for row in dated if row.devices >= needed), key=_rank), "on_demand")


def offers(listed: tuple[PriceRow, ...]) -> Iterator[Price]:
    """Every row on every term that it is sold on."""
    return (_as_price(row, term) for row in listed for term in row.usd_per_instance_hour)


def by_term_and_rate(price: Price) -> tuple[int, str, Decimal]:
    """What sorts prices: terms apart, the cheapest per device-hour first."""
    rank = TERMS.index(price.term) if price.term in TERMS else len(TERMS)
    return rank, price.term, price.usd_per_hour / price.devices


def _rank(row: PriceRow) -> tuple[Decimal, str, str, str]:
    rate = row.usd_per_instance_hour["on_demand"] / row.devices
    return rate, row.provider, row.instance, row.region or ""


def _as_price(row: PriceRow, term: str) -> Price:
    return Price(
        usd_per_hour=row.usd_per_instance_hour[term],
        list_usd_per_hour=row.usd_per_instance_hour.get("on_demand"),
        term=term,
        **row.model_dump(exclude={"usd_per_instance_hour"}),
    )
