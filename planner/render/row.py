"""One line of a report's table: its label, unit, and what its number follows from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the main table."""

    section: str
    label: str
    path: str
    unit: str
    parents: tuple[str, ...] = ()
    """Paths that this number follows from: what moved among them is why it moved."""
    optional: bool = False
    """Left out of the table where no report has a value, or every one has the plain value."""
    plain: object = None
    """The value that is not worth a line."""
    alone: bool = False
    """Too long for a column: shown where there is one report, and said under the table where there are several."""
