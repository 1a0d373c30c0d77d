"""Typed, bounded reading of a vendor's config.json: every problem is collected, none is guessed away."""

from collections.abc import Iterable, Mapping
from typing import Any

from planner.errors import InputError
from planner.origin import Origin
from planner.printable import shown

MAX_INTEGER = 2**40
_MISSING = object()


class VendorConfig:
    """A config's fields by the vendor's own names.

    A reader that finds a problem notes it and answers 1, so that one pass over a config reports all of them;
    `raise_problems` then ends the reading.
    """

    def __init__(self, fields: Mapping[str, Any], origin: Origin, nesting: tuple[str, ...] = ()) -> None:
        self.fields = fields
        self.origin = origin
        self.nesting = nesting
        """The sections of the model's config that lead here."""
        self.problems: list[str] = []
        self.absent_sections: list[str] = []
        """Sections that were asked for and are not there."""

    def problem(self, field: str, message: str) -> None:
        """Note what is wrong with a field."""
        self.problems.append(f"{self.origin.at(field)}: {message}")

    def raise_problems(self) -> None:
        """Raise InputError if anything was noted."""
        if self.problems:
            raise InputError(*dict.fromkeys(self.problems))

    def has(self, field: str) -> bool:
        """True if the field is present and not null."""
        return self.fields.get(field) is not None

    def integer(self, *names: str, default: int | None = None, least: int = 1, most: int = MAX_INTEGER) -> int:
        """The first present of `names`, an integer in [least, most]; else the default; else a noted problem."""
        field, value = self._first(names)
        if value is _MISSING:
            if default is None:
                self.problem(names[0], f"missing, needed as an integer of at least {least}")
                return 1
            return default
        whole = isinstance(value, float) and value.is_integer()
        if isinstance(value, bool) or not (isinstance(value, int) or whole):
            self.problem(field, f"an integer is needed, not {shown(value)}")
            return max(1, least)
        if not least <= value <= most:
            self.problem(field, f"{shown(value)} is out of range: accepted is {least} to {most}")
            return max(1, least)
        return int(value)

    def number(self, field: str, *, most: float = 1e6) -> float:
        """A positive number of at most `most`; else a noted problem."""
        value = self.fields.get(field)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
            self.problem(field, f"a number above 0 and at most {most:g} is needed, not {shown(value)}")
            return 1.0
        return float(value)

    def flag(self, *names: str, default: bool) -> bool:
        """The first present of `names`, true or false; else the default."""
        field, value = self._first(names)
        if value is _MISSING:
            return default
        if not isinstance(value, bool):
            self.problem(field, f"true or false is needed, not {shown(value)}")
            return default
        return value

    def text(self, *names: str, default: str, accepted: Iterable[str] = ()) -> str:
        """The first present of `names`, a string among `accepted` (any when empty); else the default."""
        field, value = self._first(names)
        accepted = tuple(accepted)
        if value is _MISSING:
            return default
        if not isinstance(value, str) or (accepted and value not in accepted):
            allowed = ", ".join(accepted) or "a string"
            self.problem(field, f"{shown(value)} is not accepted; accepted: {allowed}")
            return default
        return value

    def integers(self, field: str) -> tuple[int, ...]:
        """A list of integers; empty when absent."""
        return tuple(v for v in self._list(field, int, "integers"))

    def texts(self, field: str) -> tuple[str, ...]:
        """A list of strings; empty when absent."""
        return tuple(v for v in self._list(field, str, "strings"))

    def section(self, field: str) -> "VendorConfig":
        """A nested mapping as a config of its own; its problems are noted here too."""
        value = self.fields.get(field)
        if not isinstance(value, Mapping):
            if value is not None:
                self.problem(field, f"a mapping is needed, not {shown(value)}")
            self.absent_sections.append(field)
            value = {}
        nested = VendorConfig(value, self.origin.within(field), (*self.nesting, field))
        nested.problems, nested.absent_sections = self.problems, self.absent_sections
        return nested

    def refuse_unless(self, condition: bool, field: str, message: str) -> None:
        """Note `message` against the field unless the condition holds."""
        if not condition:
            self.problem(field, message)

    def _list(self, field: str, kind: type, what: str) -> list[Any]:
        value = self.fields.get(field)
        if value is None:
            return []
        if not isinstance(value, list) or any(type(v) is not kind for v in value):
            self.problem(field, f"a list of {what} is needed")
            return []
        return value

    def _first(self, names: tuple[str, ...]) -> tuple[str, Any]:
        for name in names:
            if self.has(name):
                return name, self.fields[name]
        return names[0], _MISSING
