"""The money of a report: its lines, what it comes to per request, and where each figure comes from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any

from planner import cost, fleet
from planner.accuracy import rounded
from planner.derive_cache import line
from planner.inputs import Price, Scenario
from planner.latency import why_no_prefix
from planner.money_inputs import ApiPrice
from planner.report import Derivation, Fleet, Latency
from planner.report_money import ApiComparison, Cost, CostLine, PrefixReuse
from planner.units import cents, counted, show_rate
from planner.workload_inputs import Prefix, Workload

NO_WORK: dict[str, Any] = dict.fromkeys(
    ("prefill_share", "per_1m_input_tokens_usd", "per_1m_output_tokens_usd", "month_utilisation", "usage_usd")
)
"""Of a fleet whose speed is not predicted, or whose requests a month nobody counts."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices billed at one price."""

    name: str
    price: Price
    billed: int
    used: int
    hours: Fraction
    """In which they are held, each month."""
    hours_text: str
    month_usd: Fraction
    """Of one of them."""

    @property
    def text(self) -> str:
        """The multiplication."""
        units = self.billed // self.price.devices
        sold = f"{units:,} x {self.price.unit}" if self.price.sold_whole else counted(self.billed, "device")
        return f"{sold} x {show_rate(self.price.usd_per_hour)}/h x {self.hours_text}"

    @property
    def list_usd(self) -> Fraction | None:
        """A month of those used at list price; None where that is not known."""
        rate, paid = self.price.list_rate, self.price.usd_per_hour
        if rate is None:
            return None
        return self.used * (self.month_usd if rate == paid else self.month_usd * Fraction(rate) / Fraction(paid))


def devices_of(scenario: Scenario, found: Fleet) -> list[Devices]:
    """The commitment, held all hours, and what the fleet takes beyond it."""
    text, hours = f"{scenario.hours_per_month} h", Fraction(scenario.hours_per_month)
    price, commitment, each = scenario.price, scenario.commitment, found.devices_per_replica
    if commitment is None:
        return [_held("devices", price, found.billed_devices, found.devices, hours, text)]
    replicas = found.active_replicas + found.spare_replicas
    used = fleet.bill(replicas, each, price, commitment).on_commitment * each
    held = [_held("committed devices", commitment.price, found.committed_devices, used, hours, text)]
    beyond = found.billed_devices - found.committed_devices
    if beyond:
        share = commitment.peak_hours_share
        text = text if share == 1 else f"{text} x {share}"
        held.append(_held("devices", price, beyond, found.devices - used, hours * Fraction(share), text))
    return held


def _held(name: str, price: Price, billed: int, used: int, hours: Fraction, text: str) -> Devices:
    return Devices(name, price, billed, used, hours, text, cost.device_month_usd(1, price, hours))


def billed_usd(devices: Sequence[Devices]) -> Fraction:
    """Dollars a month of all of them."""
    return sum((each.billed * each.month_usd for each in devices), Fraction(0))


def cost_part(scenario: Scenario, found: Fleet, devices: Sequence[Devices], latency: Latency | None) -> Cost:
    """What the fleet costs a month, and per request.

    scenario: with requests as they are submitted
    latency: of the fleet, where its speed is predicted
    """
    billed = billed_usd(devices)
    lines = [(each.name, each.text, each.billed * each.month_usd) for each in devices]
    lines += [(other.name, "given", Fraction(other.usd)) for other in scenario.other_monthly]
    monthly = sum((usd for *_, usd in lines[len(devices) :]), billed)
    listed = [each.list_usd for each in devices]
    workload, submitted = scenario.workload, scenario.workload.requests_per_month or 0
    attempted = ceil(submitted * _attempts(workload))
    in_time = _exact(1 if latency is None or latency.ttft_attained_share is None else latency.ttft_attained_share)
    return Cost(
        currency="USD",
        lines=tuple(CostLine(name=name, text=why, monthly_usd=cents(usd)) for name, why, usd in lines),
        monthly_usd=cents(monthly),
        other_monthly_usd=cents(monthly - billed),
        list_usd=None if None in listed else cents(sum(filter(None, listed), Fraction(0))),
        effective_usd=cents(sum((each.used * each.month_usd for each in devices), Fraction(0))),
        billed_usd=cents(billed),
        retried_requests=attempted - submitted,
        in_time_share=in_time,
        per_1000_submitted_usd=_per_thousand(monthly, Fraction(submitted)),
        per_1000_successful_usd=_per_thousand(
            monthly, cost.successful_requests(submitted, workload.success_share, in_time)
        ),
        api=_api(scenario, found, latency, monthly, devices),
        **(_by_work(attempted, found, latency, monthly, devices) if latency and attempted else NO_WORK),
    )


def _by_work(
    attempted: int, found: Fleet, latency: Latency, monthly: Fraction, devices: Sequence[Devices]
) -> dict[str, Any]:
    """What depends on the work that a month brings: cost by the token, and of the capacity used."""
    prompts = cost.prefill_share(Fraction(_exact(latency.step.seconds)), Fraction(_exact(latency.tpot_s.best)))
    share = rounded(float(prompts))
    exact = Fraction(_exact(share))
    billed = sum((each.billed * each.hours for each in devices), Fraction(0)) / found.devices_per_replica
    answers = attempted * latency.output_tokens
    used = rounded(cost.month_utilisation(answers, latency.saturated_tokens_per_s.best, billed))
    return {
        "prefill_share": share,
        "per_1m_input_tokens_usd": cents(cost.per_million_usd(monthly, exact, attempted * latency.input_tokens)),
        "per_1m_output_tokens_usd": cents(cost.per_million_usd(monthly, 1 - exact, answers)),
        "month_utilisation": used,
        "usage_usd": cents(cost.usage_usd(monthly, Fraction(_exact(used)))),
    }


def _api(
    scenario: Scenario, found: Fleet, latency: Latency | None, monthly: Fraction, devices: Sequence[Devices]
) -> ApiComparison | None:
    """The API that the scenario names, for the same requests."""
    if scenario.api_price is None:
        return None
    request = cost.api_request_usd(*_means(scenario), scenario.api_price, _attempts(scenario.workload))
    submitted = scenario.workload.requests_per_month
    return ApiComparison(
        monthly_usd=cents(submitted * request) if submitted else None,
        break_even_requests=cost.break_even_requests(monthly, request),
        most_requests=_most_requests(scenario, found, latency, devices) if latency else None,
    )


def _most_requests(scenario: Scenario, found: Fleet, latency: Latency, devices: Sequence[Devices]) -> int:
    """Submitted requests of a month with every slot of the active replicas in use, while their devices are held."""
    replicas = found.active_replicas + found.spare_replicas
    held = sum((each.used * each.hours for each in devices), Fraction(0)) / found.devices_per_replica
    answers = Fraction(_exact(latency.saturated_tokens_per_s.best)) * 3600 * held * found.active_replicas / replicas
    return int(answers / latency.output_tokens / _attempts(scenario.workload))


def _attempts(workload: Workload) -> Fraction:
    return cost.attempts_per_request(workload.success_share, workload.retries_per_failure)


def _means(scenario: Scenario) -> tuple[int, int]:
    """Mean lengths of a request's input and output [tokens]; 0 where nobody says them."""
    given, answer = scenario.workload.input_tokens, scenario.workload.output_tokens
    return given.mean if given else 0, answer.mean if answer else 0


def _exact(number: float) -> Decimal:
    """A report's figure as it is written."""
    return Decimal(str(number))


def _per_thousand(monthly: Fraction, requests: Fraction) -> Decimal | None:
    return cents(cost.per_thousand_usd(monthly, requests)) if requests else None


@dataclass(frozen=True, slots=True)
class Without:
    """A plan of the same load without its shared prefix."""

    fleet: Fleet | None
    """None: no fleet serves it."""
    limit: str
    """What sizes it, or why none does."""


def reused_prefix(scenario: Scenario) -> Prefix | None:
    """The prefix that requests find cached, where the requests that do are counted."""
    workload = scenario.workload
    return None if workload.requests_per_month is None or why_no_prefix(scenario) else workload.prefix


def prefix_part(scenario: Scenario, found: Fleet | None, without: Without | None) -> PrefixReuse | None:
    """Prompt positions that a cached shared prefix saves each month, and money only where fewer devices are billed.

    without: the plan of the same load without the prefix; None: speed is not predicted
    """
    prefix = reused_prefix(scenario)
    if prefix is None:
        return None
    reusing = int((scenario.workload.requests_per_month or 0) * prefix.request_share)
    saved = Fraction(0)
    if found and without and without.fleet:
        more, fewer = (billed_usd(devices_of(scenario, each)) for each in (without.fleet, found))
        saved = more - fewer
    return PrefixReuse(
        requests_per_month=reusing,
        saved_positions_per_month=reusing * prefix.shared_tokens,
        replicas_without=without.fleet.active_replicas if without and without.fleet else None,
        saved_monthly_usd=cents(saved) if saved > 0 else None,
        money=_prefix_money(found, without, saved),
    )


def _prefix_money(found: Fleet | None, without: Without | None, saved: Fraction) -> str:
    """What reuse saves, or why it does not: positions are money only where capacity can shrink."""
    if found is None:
        return "nothing is saved: there is no fleet"
    if without is None:
        return "none is claimed: speed is not predicted, and memory holds each request whole"
    if without.fleet is None:
        return f"without it no fleet serves the load: {without.limit}"
    fewer, more = found.active_replicas, without.fleet.active_replicas
    if fewer == more:
        return f"none: {counted(more, 'active replica')} with or without it: {without.limit}"
    replicas = f"{counted(fewer, 'active replica')} with it, {more:,} without"
    return (
        f"${cents(saved):,} a month: {replicas}" if saved > 0 else f"none: {replicas}, and as many devices are billed"
    )


def cost_lines(
    scenario: Scenario, found: Fleet, devices: Sequence[Devices], money: Cost, latency: Latency | None
) -> Iterator[Derivation]:
    """How each figure of money came about."""
    workload, price = scenario.workload, scenario.price
    text = " + ".join(f"${each.monthly_usd:,} {each.name} [{each.text}]" for each in money.lines)
    yield line("cost.monthly_usd", f"{text} = ${money.monthly_usd:,}", "computed", price.source)
    yield from _device_lines(devices, money)
    if workload.requests_per_month:
        text = f"${money.monthly_usd:,} / {workload.requests_per_month:,} x 1000"
        yield line("cost.per_1000_submitted_usd", f"{text} = ${money.per_1000_submitted_usd:,}")
        yield from _success_lines(workload, money)
    if latency and money.prefill_share is not None:
        yield from _work_lines(workload, found, money, latency, devices)
    if scenario.api_price and money.api:
        yield from _api_lines(scenario, scenario.api_price, money, money.api)
    if latency and money.api:
        yield _most_line(workload, found, latency, devices, money.api)


def _success_lines(workload: Workload, money: Cost) -> Iterator[Derivation]:
    submitted, ends = f"{workload.requests_per_month:,}", workload.success_share
    if workload.retries_per_failure:
        text = f"ceil({submitted} requests x {workload.retries_per_failure} x (1 - {ends}))"
        yield line("cost.retried_requests", f"{text} = {money.retried_requests:,}")
    if money.per_1000_successful_usd is not None:
        in_time = "" if money.in_time_share == 1 else f" x {money.in_time_share:f} [in time]"
        text = f"${money.monthly_usd:,} / ({submitted} x {ends}{in_time}) x 1000"
        yield line("cost.per_1000_successful_usd", f"{text} = ${money.per_1000_successful_usd:,}")


def _work_lines(
    workload: Workload, found: Fleet, money: Cost, latency: Latency, devices: Sequence[Devices]
) -> Iterator[Derivation]:
    step, token = _exact(latency.step.seconds), _exact(latency.tpot_s.best)
    share = _exact(money.prefill_share or 0)
    yield line("cost.prefill_share", f"({token:f} s - {step:f} s) / {token:f} s = {share:f}")
    requests = f"{(workload.requests_per_month or 0) + money.retried_requests:,} requests"
    whole = f"${money.monthly_usd:,} x"
    text = f"{whole} {share:f} [prompts] / ({requests} x {latency.input_tokens:,} tokens) x 1000000"
    yield line("cost.per_1m_input_tokens_usd", f"{text} = ${money.per_1m_input_tokens_usd:,}")
    text = f"{whole} (1 - {share:f}) [answers] / ({requests} x {latency.output_tokens:,} tokens) x 1000000"
    yield line("cost.per_1m_output_tokens_usd", f"{text} = ${money.per_1m_output_tokens_usd:,}")
    held = " + ".join(f"{each.billed:,} x {each.hours_text}" for each in devices)
    rate, used = _exact(latency.saturated_tokens_per_s.best), _exact(money.month_utilisation or 0)
    text = (
        f"{requests} x {latency.output_tokens:,} tokens / {rate:f} [tokens/s of a replica] / "
        f"(({held}) [device-hours billed] / {found.devices_per_replica:,} x 3600)"
    )
    yield line("cost.month_utilisation", f"{text} = {used:f}")
    yield line("cost.usage_usd", f"{whole} {used:f} = ${money.usage_usd:,}")


def _api_lines(scenario: Scenario, price: ApiPrice, money: Cost, api: ApiComparison) -> Iterator[Derivation]:
    prompt, answer = _means(scenario)
    into, out = price.usd_per_1m_input_tokens, price.usd_per_1m_output_tokens
    attempts = _attempts_text(scenario.workload)
    request = f"({prompt:,} tokens x ${into} + {answer:,} tokens x ${out}) / 1000000{attempts}"
    text = f"ceil(${money.monthly_usd:,} / ({request})) = {api.break_even_requests:,}"
    yield line("cost.api.break_even_requests", text, source=price.source)
    if api.monthly_usd is not None:
        text = f"{scenario.workload.requests_per_month:,} requests x {request} = ${api.monthly_usd:,}"
        yield line("cost.api.monthly_usd", text, source=price.source)


def _most_line(
    workload: Workload, found: Fleet, latency: Latency, devices: Sequence[Devices], api: ApiComparison
) -> Derivation:
    rate, each = _exact(latency.saturated_tokens_per_s.best), found.devices_per_replica
    held = " + ".join(f"{of.used:,} x {of.hours_text}" for of in devices)
    active, replicas = found.active_replicas, found.active_replicas + found.spare_replicas
    text = (
        f"{rate:f} [tokens/s of a replica] x 3600 x ({held}) [device-hours in use] / {each:,} x {active:,} / "
        f"{replicas:,} [active] // ({latency.output_tokens:,} tokens{_attempts_text(workload)})"
    )
    return line("cost.api.most_requests", f"{text} = {api.most_requests:,}")


def _attempts_text(workload: Workload) -> str:
    """' x attempts' where there are retries."""
    retries = workload.retries_per_failure
    return f" x (1 + {retries} x (1 - {workload.success_share}))" if retries else ""


def _device_lines(devices: Sequence[Devices], money: Cost) -> Iterator[Derivation]:
    used = [f"{each.used:,} [{each.name} used] x {_rate(each, each.price.usd_per_hour)}" for each in devices]
    yield line("cost.effective_usd", f"{' + '.join(used)} = ${money.effective_usd:,}")
    if money.list_usd is not None:
        at_list = [f"{each.used:,} x {_rate(each, each.price.list_rate or Decimal(0))}" for each in devices]
        yield line("cost.list_usd", f"{' + '.join(at_list)} = ${money.list_usd:,}")
    billed = [f"{each.billed:,} [{each.name} billed] x {_rate(each, each.price.usd_per_hour)}" for each in devices]
    yield line("cost.billed_usd", f"{' + '.join(billed)} = ${money.billed_usd:,}")


def _rate(devices: Devices, usd_per_hour: Decimal) -> str:
    unit = f" / {devices.price.devices}" if devices.price.devices > 1 else ""
    return f"{show_rate(usd_per_hour)}{unit} x {devices.hours_text}"


def prefix_lines(scenario: Scenario, found: PrefixReuse, money: Cost | None) -> Iterator[Derivation]:
    """How what a shared prefix saves came about."""
    shared = scenario.workload.prefix.shared_tokens if scenario.workload.prefix else 0
    text = f"{found.requests_per_month:,} requests x {shared:,} tokens = {found.saved_positions_per_month:,} positions"
    yield line("prefix.saved_positions_per_month", text)
    if found.saved_monthly_usd is not None and money:
        without = f"${money.billed_usd + found.saved_monthly_usd:,} [devices billed without it]"
        yield line("prefix.saved_monthly_usd", f"{without} - ${money.billed_usd:,} = ${found.saved_monthly_usd:,}")
