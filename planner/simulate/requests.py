"""One request, as it is asked of a simulated service."""

from dataclasses import dataclass

MOST_TOKENS = 999_999_999
"""Of one request's input or output."""


@dataclass(slots=True)
class Request:
    """One request. Not frozen, because it is made by the million; nobody changes it."""

    arrival_s: float
    """Since the load's start [s]."""
    input_tokens: int
    """At least 1."""
    output_tokens: int
    """At least 1."""
    hash_ids: tuple[int, ...] = ()
    """Identity of each leading chunk of the prompt, of Load.chunk_tokens tokens each: ids are chained, so equal ones
    mean equal prompts up to there. The last may stand for a part of a chunk; what no id covers is not shared."""
    scope: str = ""
    """Tenant whose cache it may share."""
