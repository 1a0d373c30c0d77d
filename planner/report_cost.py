"""The money of a report: its lines, what it comes to per request, and where each figure comes from."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil

from planner import cost, fleet
from planner.derive_cache import line
from planner.inputs import Price, Scenario
from planner.parts import Cost, CostLine, PrefixReuse
from planner.report import Derivation, Fleet, Latency
from planner.units import cents, counted, show_rate
from planner.workload_inputs import Workload


@dataclass(frozen=True, slots=True)
class _Devices:
    """Devices at one price."""

    name: str
    price: Price
    billed: int
    used: int
    hours: Fraction
    """In which they are held, each month."""
    hours_text: str

    @property
    def text(self) -> str:
        """The multiplication."""
        units = self.billed // self.price.devices
        sold = f"{units:,} x {self.price.unit}" if self.price.sold_whole else counted(self.billed, "device")
        return f"{sold} x {show_rate(self.price.usd_per_hour)}/h x {self.hours_text}"

    @property
    def billed_usd(self) -> Fraction:
        """A month of what is billed."""
        return cost.device_month_usd(self.billed, self.price, self.hours)

    @property
    def effective_usd(self) -> Fraction:
        """A month of what is used."""
        return cost.device_month_usd(self.used, self.price, self.hours)

    @property
    def list_usd(self) -> Fraction | None:
        """The same at list price; None where that is not known."""
        rate = self.price.list_rate
        return None if rate is None else self.effective_usd * Fraction(rate) / Fraction(self.price.usd_per_hour)


def _devices(scenario: Scenario, found: Fleet) -> list[_Devices]:
    """The commitment, held all hours, and what the fleet takes beyond it."""
    hours, commitment, each = Fraction(scenario.hours_per_month), scenario.commitment, found.devices_per_replica
    text = f"{scenario.hours_per_month} h"
    if commitment is None:
        return [_Devices("devices", scenario.price, found.billed_devices, found.devices, hours, text)]
    replicas = found.active_replicas + found.spare_replicas
    used = fleet.bill(replicas, each, scenario.price, commitment).on_commitment * each
    held = [_Devices("committed devices", commitment.price, found.committed_devices, used, hours, text)]
    beyond = found.billed_devices - found.committed_devices
    if beyond:
        share = commitment.peak_hours_share
        text = text if share == 1 else f"{text} x {share}"
        hours *= Fraction(share)
        held.append(_Devices("devices", scenario.price, beyond, found.devices - used, hours, text))
    return held


def cost_part(scenario: Scenario, found: Fleet, latency: Latency | None) -> Cost:
    """What the fleet costs a month, and per request.

    scenario: with requests as they are submitted
    latency: of the fleet, where its speed is predicted
    """
    devices = _devices(scenario, found)
    lines = [(each.name, each.text, each.billed_usd) for each in devices]
    lines += [(other.name, "given", Fraction(other.usd)) for other in scenario.other_monthly]
    monthly = sum((usd for *_, usd in lines), Fraction(0))
    billed = sum((each.billed_usd for each in devices), Fraction(0))
    listed = [each.list_usd for each in devices]
    workload, submitted = scenario.workload, scenario.workload.requests_per_month or 0
    attempts = cost.attempts_per_request(workload.success_share, workload.retries_per_failure)
    in_time = _exact(1 if latency is None or latency.ttft_attained_share is None else latency.ttft_attained_share)
    return Cost(
        currency="USD",
        lines=tuple(CostLine(name=name, text=why, monthly_usd=cents(usd)) for name, why, usd in lines),
        monthly_usd=cents(monthly),
        other_monthly_usd=cents(monthly - billed),
        list_usd=None if None in listed else cents(sum(filter(None, listed), Fraction(0))),
        effective_usd=cents(sum((each.effective_usd for each in devices), Fraction(0))),
        billed_usd=cents(billed),
        retried_requests=ceil(submitted * attempts) - submitted,
        in_time_share=in_time,
        per_1000_submitted_usd=_per_thousand(monthly, Fraction(submitted)),
        per_1000_successful_usd=_per_thousand(
            monthly, cost.successful_requests(submitted, workload.success_share, in_time)
        ),
    )


def _exact(number: float) -> Decimal:
    """A report's figure as it is written."""
    return Decimal(str(number))


def _per_thousand(monthly: Fraction, requests: Fraction) -> Decimal | None:
    return cents(cost.per_thousand_usd(monthly, requests)) if requests else None


def prefix_part(scenario: Scenario) -> PrefixReuse | None:
    """Prompt positions that a cached shared prefix saves each month."""
    prefix, requests = scenario.workload.prefix, scenario.workload.requests_per_month
    if prefix is None or requests is None or not scenario.engine_options.prefix_caching:
        return None
    reusing = int(requests * prefix.request_share)
    return PrefixReuse(requests_per_month=reusing, saved_positions_per_month=reusing * prefix.shared_tokens)


def cost_lines(scenario: Scenario, found: Fleet, money: Cost) -> Iterator[Derivation]:
    """How each figure of money came about."""
    workload, price = scenario.workload, scenario.price
    text = " + ".join(f"${each.monthly_usd:,} {each.name} [{each.text}]" for each in money.lines)
    yield line("cost.monthly_usd", f"{text} = ${money.monthly_usd:,}", "computed", price.source)
    yield from _device_lines(_devices(scenario, found), money)
    if workload.requests_per_month:
        text = f"${money.monthly_usd:,} / {workload.requests_per_month:,} x 1000"
        yield line("cost.per_1000_submitted_usd", f"{text} = ${money.per_1000_submitted_usd:,}")
        yield from _success_lines(workload, money)


def _success_lines(workload: Workload, money: Cost) -> Iterator[Derivation]:
    submitted, ends = f"{workload.requests_per_month:,}", workload.success_share
    if workload.retries_per_failure:
        text = f"ceil({submitted} requests x {workload.retries_per_failure} x (1 - {ends}))"
        yield line("cost.retried_requests", f"{text} = {money.retried_requests:,}")
    if money.per_1000_successful_usd is not None:
        in_time = "" if money.in_time_share == 1 else f" x {money.in_time_share:f} [in time]"
        text = f"${money.monthly_usd:,} / ({submitted} x {ends}{in_time}) x 1000"
        yield line("cost.per_1000_successful_usd", f"{text} = ${money.per_1000_successful_usd:,}")


def _device_lines(devices: list[_Devices], money: Cost) -> Iterator[Derivation]:
    used = [f"{each.used:,} [{each.name} used] x {_rate(each, each.price.usd_per_hour)}" for each in devices]
    yield line("cost.effective_usd", f"{' + '.join(used)} = ${money.effective_usd:,}")
    if money.list_usd is not None:
        at_list = [f"{each.used:,} x {_rate(each, each.price.list_rate or Decimal(0))}" for each in devices]
        yield line("cost.list_usd", f"{' + '.join(at_list)} = ${money.list_usd:,}")
    billed = [f"{each.billed:,} [{each.name} billed] x {_rate(each, each.price.usd_per_hour)}" for each in devices]
    yield line("cost.billed_usd", f"{' + '.join(billed)} = ${money.billed_usd:,}")


def _rate(devices: _Devices, usd_per_hour: Decimal) -> str:
    unit = f" / {devices.price.devices}" if devices.price.devices > 1 else ""
    return f"{show_rate(usd_per_hour)}{unit} x {devices.hours_text}"


def prefix_lines(scenario: Scenario, found: PrefixReuse) -> Iterator[Derivation]:
    """How what a shared prefix saves came about."""
    shared = scenario.workload.prefix.shared_tokens if scenario.workload.prefix else 0
    text = f"{found.requests_per_month:,} requests x {shared:,} tokens = {found.saved_positions_per_month:,} positions"
    yield line("prefix.saved_positions_per_month", text)
