"""The errors that planner means: each is for a person to read, and knows its exit code."""

from collections.abc import Iterable
from difflib import get_close_matches


class PlannerError(Exception):
    """Base of every expected failure; holds one message per problem."""

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class InputError(PlannerError):
    """Bad usage or bad input (exit code 2)."""


class MachineError(PlannerError):
    """This machine cannot do it: no torch, no GPU, no permission (exit code 4)."""

    exit_code = 4


def nearest(name: str, known: Iterable[str]) -> str:
    """'; nearest known: a, b, c' for an unknown name, with some names even when none is near."""
    names = sorted(known)
    close = get_close_matches(name.lower(), names, n=4, cutoff=0.5) or names[:8]
    return "; nearest known: " + ", ".join(close) if close else ""
