"""Stub until load lands."""
from dataclasses import dataclass


@dataclass(slots=True)
class Request:
    arrival_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    scope: str = ""
