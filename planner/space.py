"""What a search tries: devices with their prices, parallelism, cache dtypes and batch limits, in every combination."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from pydantic import Field, field_validator

from planner.engine_inputs import Engine
from planner.errors import InputError
from planner.input_types import MOST_RANKS, Count, Degree, Input
from planner.inputs import Accelerator, Parallelism, Price, PriceRow
from planner.prices import lowest_price
from planner.printable import Name, Printable

MOST_CHOICES = 100_000
"""Combinations that one search tries."""
DEGREES = (1, 2, 4, 8)
"""Tensor parallelism that is tried where nobody says otherwise."""


class Offer(Input):
    """An accelerator, and what it costs."""

    accelerator: Accelerator
    price: Price | None = None
    """Whatever the replica; absent: the lowest listed one of an instance that holds it."""
    listed: tuple[PriceRow, ...] = ()
    unpriced: Printable = "it has no price"
    """Why there is none, where neither is given."""

    def price_of(self, together: int) -> Price:
        """What one of these devices costs in a replica.

        together: devices of it that exchange activations at every layer
        raises: InputError where it has no price
        """
        if self.price is not None:
            return self.price
        if not self.listed:
            raise InputError(f"price: {self.unpriced}")
        return lowest_price(self.accelerator.name, self.listed, together)


@dataclass(frozen=True, slots=True)
class Trial:
    """One combination."""

    offer: Offer
    engine: Engine
    parallelism: Parallelism
    kv_dtype: str
    max_num_batched_tokens: int | None
    max_num_seqs: int | None


class Space(Input):
    """What is tried: every combination, each value once."""

    offers: tuple[Offer, ...] = Field(min_length=1)
    engines: tuple[Engine, ...] = Field(min_length=1)
    tp: tuple[Degree, ...] = Field(default=DEGREES, min_length=1)
    pp: tuple[Degree, ...] = Field(default=(1,), min_length=1)
    dp: tuple[Degree, ...] = Field(default=(1,), min_length=1)
    ep: tuple[Degree, ...] | None = Field(default=None, min_length=1)
    """Absent: 1, and for models with experts tp x dp too."""
    kv_dtypes: tuple[Name, ...] = Field(default=("auto",), min_length=1)
    max_num_batched_tokens: tuple[Count | None, ...] = Field(default=(None,), min_length=1)
    """None: the engine's default."""
    max_num_seqs: tuple[Count | None, ...] = Field(default=(None,), min_length=1)
    """None: the engine's default."""

    @field_validator("tp", "pp", "dp", "ep", "kv_dtypes", "max_num_batched_tokens", "max_num_seqs")
    @classmethod
    def _each_once(cls, values: object) -> object:
        return tuple(dict.fromkeys(values)) if isinstance(values, tuple) else values

    def trials(self, *, experts: bool) -> Iterator[Trial]:
        """Every combination.

        experts: the model has some, so that expert parallelism is worth a try
        raises: InputError where there are more than MOST_CHOICES
        """
        self._check_size(experts=experts)
        for offer, engine, *degrees in product(self.offers, self.engines, self.tp, self.pp, self.dp):
            for parallelism in self._spread(*degrees, experts=experts):
                for rest in product(self.kv_dtypes, self.max_num_batched_tokens, self.max_num_seqs):
                    yield Trial(offer, engine, parallelism, *rest)

    def _spread(self, tp: int, pp: int, dp: int, *, experts: bool) -> list[Parallelism]:
        wide = tp * dp if experts and tp * dp <= MOST_RANKS else 1
        choices = dict.fromkeys((1, wide)) if self.ep is None else self.ep
        return [Parallelism(tp=tp, pp=pp, dp=dp, ep=ep) for ep in choices]

    def _check_size(self, *, experts: bool) -> None:
        counts = {
            "--gpu": len(self.offers),
            "--engine": len(self.engines),
            "--tp": len(self.tp),
            "--pp": len(self.pp),
            "--dp": len(self.dp),
            "--ep": (2 if experts else 1) if self.ep is None else len(self.ep),
            "--kv-dtype": len(self.kv_dtypes),
            "--max-num-batched-tokens": len(self.max_num_batched_tokens),
            "--max-num-seqs": len(self.max_num_seqs),
        }
        if prod(counts.values()) > MOST_CHOICES:
            parts = " x ".join(f"{count:,} {flag}" for flag, count in counts.items() if count > 1)
            raise InputError(
                f"{parts} = {prod(counts.values()):,} choices, and a search tries at most {MOST_CHOICES:,}: give fewer"
            )
