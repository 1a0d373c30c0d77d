"""What a scenario says of money beside the prices of its devices."""

from datetime import date

from planner.input_types import Input, Number, Positive
from planner.printable import Name, Printable
from planner.units import show_rate


class ApiPrice(Input):
    """What a hosted API bills for the same work."""

    name: Name = "the API"
    usd_per_1m_input_tokens: Positive
    usd_per_1m_output_tokens: Positive
    source: Printable = "given"
    licence: Printable | None = None
    as_of: date | None = None

    @property
    def label(self) -> str:
        """How a report names it."""
        rates = f"{show_rate(self.usd_per_1m_input_tokens)} in and {show_rate(self.usd_per_1m_output_tokens)} out"
        return f"{self.name}: {rates} per 1M tokens"


class MonthlyLine(Input):
    """A monthly cost beside the devices."""

    name: Name
    usd: Number
