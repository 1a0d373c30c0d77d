"""A gate on a report: what it must hold, and whether it does."""

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from planner.errors import InputError, nearest
from planner.report import Range, Report
from planner.report_base import Part
from planner.report_simulation import Simulation
from planner.units import counted

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
PARTS = ("latency", "fleet", "cost", "capacity", "memory", "kv_cache", "carry", "model", "scenario")
"""Parts of a report in which a figure named by itself is looked for, in this order."""
_REQUIREMENT = re.compile(r"\s*([a-z][a-z0-9_.]*)\s*(<=|>=|==|<|>)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A figure of a report and its limit."""

    path: str
    """Dotted; of a range its best estimate, unless .low or .high is named."""
    comparison: str
    limit: Decimal


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one requirement holds."""

    holds: bool
    text: str


def requirement(text: str) -> Requirement:
    """'ttft_p95_s<=2' as a requirement.

    raises: InputError where it is not one, or names no figure of a report
    """
    found = _REQUIREMENT.fullmatch(text)
    if not found:
        raise InputError(f"--require {text}: a figure, one of {', '.join(OPERATORS)} and a number are needed")
    name, comparison, number = found.groups()
    try:
        limit = Decimal(number)
    except InvalidOperation:
        raise InputError(f"--require {text}: {number} is not a number") from None
    if not limit.is_finite():
        raise InputError(f"--require {text}: {number} is not a finite number")
    return Requirement(_path_of(name), comparison, limit)


def check(report: Report, requirements: Sequence[Requirement]) -> list[Verdict]:
    """Whether a report is a plan at all and its simulation met what is asked for, then each requirement in turn."""
    planned = report.fleet is not None
    verdicts = [Verdict(planned, "a fleet serves the load within its objectives" if planned else report.binding_reason)]
    if report.carry and report.carry.misses:
        verdicts.extend(Verdict(holds=False, text=missed) for missed in report.carry.misses)
    if report.simulation:
        verdicts.extend(_simulated(report.simulation))
    return [*verdicts, *(_verdict(report, each) for each in requirements)]


def _simulated(found: Simulation) -> Iterator[Verdict]:
    """Whether the fleet stands the load that was simulated."""
    fleet = counted(found.replicas, "simulated replica")
    if found.met:
        yield Verdict(
            holds=True, text=f"{fleet} {'serves' if found.replicas == 1 else 'serve'} the load within objectives"
        )
    for missed in found.misses:
        yield Verdict(holds=False, text=f"{fleet}: {missed}")


def _verdict(report: Report, asked: Requirement) -> Verdict:
    text = f"{asked.path} {asked.comparison} {asked.limit}"
    value = _value(report, asked.path)
    if value is None:
        return Verdict(holds=False, text=f"{text}: the report has no value for it")
    return Verdict(OPERATORS[asked.comparison](Decimal(str(value)), asked.limit), f"{text}: it is {value}")


def _value(report: Report, path: str) -> Any:
    found: Any = report
    for name in path.split("."):
        found = None if found is None else getattr(found, name)
    return found.best if isinstance(found, Range) else found


def _path_of(name: str) -> str:
    """The full path of a figure that is named by it or by its last part."""
    known = dict(figures(Report))
    paths = (name, *(f"{part}.{name}" for part in PARTS))
    found = next((path for path in paths if path in known), None)
    if found is None:
        raise InputError(f"--require {name}: no such figure in a report{nearest(name, known)}")
    return found


def figures(part: type[Part], prefix: str = "") -> Iterator[tuple[str, type]]:
    """(path, type) of every number in a report, lists left out."""
    for name, field in part.model_fields.items():
        for kind in _kinds(field.annotation):
            if kind in (int, float, Decimal):
                yield prefix + name, kind
            elif isinstance(kind, type) and issubclass(kind, Part):
                if kind is Range:
                    yield prefix + name, float
                yield from figures(kind, f"{prefix}{name}.")


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """A field's type, or those of a union."""
    return getattr(annotation, "__args__", (annotation,)) if "|" in str(annotation) else (annotation,)
