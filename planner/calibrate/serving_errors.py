"""How far off predictions of serving were on public rows: the shipped figures."""

from datetime import date
from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from planner.catalog import bundled
from planner.documents import load_mapping, validate
from planner.input_types import Count, Input
from planner.origin import Origin
from planner.printable import Printable

FILE = "profiles/accuracy/serving.yaml"
Metric = Literal["ttft", "tpot", "throughput"]
Kind = Literal["dense", "MoE"]


class Spread(Input):
    """Signed errors of one metric over measured rows: predicted / measured - 1, in percent."""

    metric: Metric
    kind: Kind
    own_constants: bool = True
    """Priced by the GPU's own calibration; False: by another GPU's, on its own datasheet peaks."""
    rows: Count
    p10_percent: Annotated[float, Field(gt=-100)]
    p90_percent: Annotated[float, Field(gt=-100)]


class ServingAccuracy(Input):
    """What `planner validate serving` and `throughput` found on public rows."""

    spreads: tuple[Spread, ...]
    source: Printable
    licence: Printable | None = None
    attribution: Printable | None = None
    as_of: date
    notes: Printable | None = None


@cache
def serving_accuracy() -> ServingAccuracy:
    """The shipped figures."""
    path = bundled() / FILE
    return validate(ServingAccuracy, load_mapping(path), Origin(str(path)))
