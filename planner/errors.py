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
    """'; nearest known: a, b, c' for an unknown name: what begins with it or is spelt like it, else a few of all."""
    names, wanted = sorted(known), name.lower()
    akin = [n for n in names if wanted and n.startswith(wanted)][:6]
    akin += [n for n in get_close_matches(wanted, names, n=4, cutoff=0.5) if n not in akin]
    if akin:
        return "; nearest known: " + ", ".join(akin)
    return f"; none is near; known are {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else ""
