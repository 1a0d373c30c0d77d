"""Units: bytes are exact integers; GB is 1e9 and GiB is 2**30."""

from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from fractions import Fraction

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 10**9

CENT = Decimal("0.01")

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
    return int((value * factor).to_integral_value(ROUND_CEILING))


def show_rate(usd: Decimal) -> str:
    """A price per hour with at least two and at most six decimals."""
    rounded = usd.quantize(Decimal("0.000001"), ROUND_HALF_EVEN).normalize()
    exponent = rounded.as_tuple().exponent
    decimals = max(2, -exponent) if isinstance(exponent, int) else 2
    return f"${rounded:,.{decimals}f}"


def cents(usd: Decimal | Fraction) -> Decimal:
    """Dollars rounded half-even to cents: done once, at the end."""
    if isinstance(usd, Fraction):
        usd = Decimal(usd.numerator) / Decimal(usd.denominator)
    return usd.quantize(CENT, ROUND_HALF_EVEN)
