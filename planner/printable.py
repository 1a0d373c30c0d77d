"""Text that a terminal can show: no control characters, no marks that turn the writing direction."""

from decimal import Decimal
from typing import Annotated

from pydantic import Field

_REFUSED = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"

Printable = Annotated[str, Field(max_length=20_000, pattern=rf"^[^{_REFUSED}]*$")]
"""Any length that a source note has."""
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=rf"^[^\t\n{_REFUSED}]*$")]
"""One line of text."""


def shown(value: object) -> str:
    """What was given, as a message shows it: short whatever it is."""
    if isinstance(value, int) and value.bit_length() > 300:
        return "an integer of a hundred digits or more"
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def escaped(text: str) -> str:
    """The text with each unprintable character as an escape, for messages about what strangers wrote."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
