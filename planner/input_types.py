"""What inputs are made of: bounded numbers and the base that forbids unknown fields."""

from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _number(value: object) -> object:
    """Numbers as YAML or a quoted decimal writes them; a float by its shortest form, so 2.50 stays exact."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        raise ValueError("a number is needed")
    return str(value) if isinstance(value, float) else value


def _written_out(value: Decimal) -> Decimal:
    """1E+6 as 1000000, so that a report shows it as people write it."""
    exponent = value.as_tuple().exponent
    return value.quantize(Decimal(1)) if isinstance(exponent, int) and exponent > 0 else value


MOST_RANKS = 4096
"""Largest degree of any parallelism, and number of devices in an instance."""
MOST_COUNTED = 2**48

Number = Annotated[
    Decimal, BeforeValidator(_number), Field(ge=0, lt=10**15, decimal_places=30), AfterValidator(_written_out)
]
Positive = Annotated[
    Decimal, BeforeValidator(_number), Field(gt=0, lt=10**15, decimal_places=30), AfterValidator(_written_out)
]
Share = Annotated[Decimal, BeforeValidator(_number), Field(ge=0, le=1, decimal_places=30)]
PositiveShare = Annotated[Decimal, BeforeValidator(_number), Field(gt=0, le=1, decimal_places=30)]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST_COUNTED)]
CountOrNone = Annotated[int, Field(strict=True, ge=0, le=MOST_COUNTED)]
Degree = Annotated[int, Field(strict=True, ge=1, le=MOST_RANKS)]


class Input(BaseModel):
    """Base of every input: frozen, no unknown fields, no NaN."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        arbitrary_types_allowed=True,
        defer_build=True,
    )
