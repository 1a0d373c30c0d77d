"""What is asked of a simulated service: requests in order of arrival, streamed and as often as wanted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from planner.errors import InputError
from planner.simulate.requests import Request

MOST_REQUESTS = 1_000_000_000
RATES = (1e-6, 1e6)
"""Lowest and highest rate of a load [1/s]."""


class Load(Protocol):
    """Requests that come by the clock, whatever the service does."""

    @property
    def name(self) -> str:
        """What a report calls it."""

    @property
    def chunk_tokens(self) -> int:
        """Prompt tokens of each hash id; 0 where there are none."""

    def requests(self) -> Iterator[Request]:
        """From the first, in order of arrival; each call starts again, and nothing but the next few are kept."""

    def facts(self) -> tuple[str, ...]:
        """What a report says of where the requests come from; of lines left out of a file, once it was read."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Requests in memory, as a load."""

    asked: Sequence[Request]
    """In order of arrival."""
    chunk_tokens: int = 0
    name: str = "listed"

    def requests(self) -> Iterator[Request]:
        """As listed."""
        return iter(self.asked)

    def facts(self) -> tuple[str, ...]:
        """Nothing to say."""
        return ()


def check(field: str, value: float | None, low: float, high: float) -> None:
    """raises: InputError where a value is given that is not within bounds"""
    if value is not None and not low <= value <= high:
        raise InputError(f"{field}: {value} is not a number from {low:g} to {high:g}")


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Users who each wait for their answer, think, and ask again: when a request comes, the service decides."""

    asked: Load
    """What they ask, one after the other; its arrival times are not used."""
    users: int
    think_s: float = 0.0
    """From an answer's end to the same user's next request [s]."""

    def __post_init__(self) -> None:
        check("users", self.users, 1, MOST_REQUESTS)
        check("think time (s)", self.think_s, 0, 1e6)

    @property
    def name(self) -> str:
        """What a report calls it."""
        return f"{self.users:,} users, {self.asked.name}"

    @property
    def chunk_tokens(self) -> int:
        """Prompt tokens of each hash id; 0 where there are none."""
        return self.asked.chunk_tokens

    def requests(self) -> Iterator[Request]:
        """In the order in which users take them; every arrival_s is 0, since only the service's pace sets it."""
        return (replace(request, arrival_s=0.0) for request in self.asked.requests())

    def facts(self) -> tuple[str, ...]:
        """What a report says of it."""
        return (
            f"closed loop: {self.users:,} users, {self.think_s:g} s from an answer to the next request",
            *self.asked.facts(),
        )
