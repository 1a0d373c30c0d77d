"""Units: bytes are exact integers; GB is 1e9 and GiB is 2**30."""

import math
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 10**9

CENT = Decimal("0.01")
MONEY_DIGITS = 200
"""More than the product of all the largest accepted inputs has."""

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one element of the dtypes that engines serve models in."""


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest integer not below numerator / denominator."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """Smallest multiple of `multiple` not below value."""
    return ceil_div(value, multiple) * multiple


def gib_to_bytes(gib: Decimal) -> int:
    """Bytes of a GiB figure; the fraction of a byte is dropped."""
    return int(gib * GIB)


def scale_up(value: int, factor: Decimal) -> int:
    """ceil(value x factor), exactly."""
    return math.ceil(value * Fraction(factor))


def counted(number: int, noun: str) -> str:
    """'1 request', '1,234 requests': for nouns whose plural adds an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_rate(usd: Decimal) -> str:
    """A price per hour with at least two and at most six decimals."""
    rounded = usd.quantize(Decimal("0.000001"), ROUND_HALF_EVEN).normalize()
    exponent = rounded.as_tuple().exponent
    decimals = max(2, -exponent) if isinstance(exponent, int) else 2
    return f"${rounded:,.{decimals}f}"


def cents(usd: Decimal | Fraction) -> Decimal:
    """Dollars rounded half-even to cents: done once, at the end."""
    with localcontext(prec=MONEY_DIGITS):
        if isinstance(usd, Fraction):
            usd = Decimal(usd.numerator) / Decimal(usd.denominator)
        return usd.quantize(CENT, ROUND_HALF_EVEN)


def show_seconds(seconds: float, digits: int = 3) -> str:
    """A time with this many digits, in us or ms below one second; 0 below a nanosecond."""
    for least, unit, scale in ((0.9995, "s", 1.0), (0.9995e-3, "ms", 1e3), (1e-9, "us", 1e6)):
        if abs(seconds) >= least:
            scaled = seconds * scale
            return f"{scaled:,.0f} {unit}" if abs(scaled) >= 999.5 else f"{scaled:.{digits}g} {unit}"
    return "0 s"


def show_number(value: float, digits: int = 3) -> str:
    """A number with this many digits, or all before the point: never 1e+03."""
    return f"{value:,.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:.{digits}g}"
