"""A load changed on its way to the service: faster, at another rate, cut short, or with shorter requests."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from planner.errors import InputError
from planner.simulate.loads import MOST_REQUESTS, RATES, Load, check
from planner.simulate.requests import MOST_TOKENS, Request
from planner.units import ceil_div, counted


@dataclass(frozen=True, slots=True)
class Changed:
    """Another load's requests, changed one by one."""

    load: Load
    speed: float = 1.0
    """Times are divided by it: at 2, twice the rate and half the span, bursts as they were."""
    most_requests: int | None = None
    most_input_tokens: int | None = None
    """Longer prompts lose their end."""
    most_output_tokens: int | None = None

    def __post_init__(self) -> None:
        check("speed", self.speed, 1e-9, 1e9)
        check("requests", self.most_requests, 1, MOST_REQUESTS)
        check("input tokens", self.most_input_tokens, 1, MOST_TOKENS)
        check("output tokens", self.most_output_tokens, 1, MOST_TOKENS)

    @property
    def name(self) -> str:
        """The load's own."""
        return self.load.name

    @property
    def chunk_tokens(self) -> int:
        """The load's own."""
        return self.load.chunk_tokens

    def requests(self) -> Iterator[Request]:
        """The changed ones; the load's own are left as they are."""
        first = islice(self.load.requests(), self.most_requests)
        if self.speed == 1 and self.most_input_tokens is None and self.most_output_tokens is None:
            return first
        return map(self._changed, first)

    def _changed(self, request: Request) -> Request:
        given, hash_ids = request.input_tokens, request.hash_ids
        if self.most_input_tokens is not None and given > self.most_input_tokens:
            given = self.most_input_tokens
            hash_ids = hash_ids[: ceil_div(given, self.load.chunk_tokens)] if hash_ids else ()
        produced = min(request.output_tokens, self.most_output_tokens or request.output_tokens)
        return Request(request.arrival_s / self.speed, given, produced, hash_ids, request.scope)

    def facts(self) -> tuple[str, ...]:
        """What was changed, after what the load says of itself."""
        changes = (
            (self.speed != 1, f"arrivals {self.speed:.6g} times as fast"),
            (self.most_requests, f"the first {counted(self.most_requests or 0, 'request')}"),
            (self.most_input_tokens, f"inputs of at most {self.most_input_tokens} tokens"),
            (self.most_output_tokens, f"outputs of at most {self.most_output_tokens} tokens"),
        )
        return (*self.load.facts(), *(text for given, text in changes if given))


def at_rate(changed: Changed, rate_per_s: float) -> Changed:
    """The load as fast as this mean rate [1/s] needs; it is read once to measure its own.

    raises: InputError where its requests come all at one moment, or there is but one
    """
    check("rate (1/s)", rate_per_s, *RATES)
    return replace(changed, speed=rate_per_s / mean_rate_per_s(replace(changed, speed=1.0)))


def mean_rate_per_s(load: Load) -> float:
    """Gaps between its requests over the time from the first to the last [1/s].

    raises: InputError where there is no such time
    """
    count, start_s, last_s = 0, 0.0, 0.0
    for count, request in enumerate(load.requests(), 1):
        last_s = request.arrival_s
        start_s = last_s if count == 1 else start_s
    if last_s <= start_s:
        raise InputError(f"{load.name}: no time passes from the first request to the last, so it has no rate to change")
    return (count - 1) / (last_s - start_s)
