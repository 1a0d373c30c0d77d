"""A report as rows of text: rounding and units, once for every format."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

from planner.render.row import Row
from planner.render.rows import CARRY_ROWS, DEMAND_ROWS, ROWS
from planner.report import Range, Report, Source
from planner.report_demand import DemandRange, World
from planner.units import GIB, KIB, MIB, counted, show_number, show_rate, show_seconds

LONGEST_HEADING = 20
CURVE_HEADS = ("context, tokens", "reserved per request", "held while decoding")
GROWTH_HEADS = ("month", "load", "active replicas", "devices billed", "monthly cost")
WORLD_HEADS = ("world", "probability", "active replicas", "its own cost", "regret")
MOST_WORLDS = 9
"""Of those that a table shows; a saved report holds all."""
MOST_IN_FULL = 1_000_000
"""Times the first month's load, from which on only its size is shown."""
CHECK_HEADS = ("", "planned", "simulated", "", "why")
HIT_HEADS = ("scope", "requests", "prompt tokens", "found cached")
BAND_HEADS = ("prompts", "of all", "longest, tokens", "prefill alone", "p95 TTFT")


def value(report: Report, path: str) -> Any:
    """The value at a dotted path; None where a part of it is absent."""
    return reduce(lambda part, name: None if part is None else getattr(part, name), path.split("."), report)


def show(amount: Any, unit: str) -> str:
    """A value as people read it, with its unit."""
    if amount is None:
        return "-"
    return _SHOW[unit](amount)


def show_bytes(size: int) -> str:
    """Bytes in the largest binary unit that is at least one of it."""
    for name, unit in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(size) >= unit:
            return f"{size // unit:,} {name}" if size % unit == 0 and unit < GIB else f"{size / unit:,.2f} {name}"
    return f"{size:,} B"


def show_usd(amount: Decimal) -> str:
    """Dollars and cents, the sign in front."""
    return f"{'-' if amount < 0 else ''}${abs(amount):,.2f}"


def show_best(amount: Any, unit: str) -> str:
    """The same, of a range its best estimate alone."""
    return show(plain_number(amount), change_unit(unit))


def show_range(found: Range) -> str:
    """A time with its range."""
    return f"{show_seconds(found.best)} ({show_seconds(found.low)} to {show_seconds(found.high)})"


def _show_rates(found: Range) -> str:
    return f"{found.best:,.0f} ({found.low:,.0f} to {found.high:,.0f})"


def plain_number(amount: Any) -> Any:
    """What arithmetic is done on: of a range, its best estimate."""
    return amount.best if isinstance(amount, Range) else amount


_SHOW: dict[str, Callable[[Any], str]] = {
    "bytes": show_bytes,
    "count": lambda amount: f"{amount:,}",
    "tokens": lambda amount: counted(amount, "token"),
    "usd": show_usd,
    "rate": show_rate,
    "ratio": lambda amount: f"{amount:,.2f}",
    "seconds": lambda amount: show_seconds(float(amount)),
    "range": show_range,
    "rates": _show_rates,
    "number": show_number,
    "nines": lambda amount: f"{amount:.4%}".replace("%", " %"),
    "share": lambda amount: f"{amount:.2%}".replace("%", " %"),
    "text": str,
}


def change_unit(unit: str) -> str:
    """The unit of a difference: of ranges, that of their best estimates."""
    return {"range": "seconds", "rates": "number"}.get(unit, unit)


def difference(old: Any, new: Any, unit: str) -> tuple[str, str]:
    """(signed amount, signed percent) of a numeric change; empty where there is none to tell."""
    if unit == "text" or old is None or new is None:
        return "", ""
    old, new = plain_number(old), plain_number(new)
    change = new - old
    amount = show(abs(change), change_unit(unit))
    return f"{'-' if change < 0 else '+'}{amount}", percent(old, new)


def percent(old: Any, new: Any) -> str:
    """Signed percent of a change; empty against a base that is not positive."""
    return f"{float(new - old) / float(old):+.0%}".replace("%", " %") if old > 0 else ""


def title(report: Report) -> str:
    """The scenario's own name for itself."""
    return report.scenario.title or report.scenario.name


def subject(reports: Sequence[Report]) -> str:
    """One line that says what was planned; what differs between reports is left to the table."""
    lines = [
        (
            r.scenario.model,
            replicas(r),
            r.scenario.engine,
            f"{r.kv_cache.dtype} cache, {r.kv_cache.block_tokens}-token blocks",
            f"{r.scenario.context_tokens:,} tokens",
            _load(r),
        )
        for r in reports
    ]
    return " · ".join(parts[0] for parts in zip(*lines, strict=True) if len(set(parts)) == 1)


def _load(report: Report) -> str:
    facts = report.scenario
    if facts.arrivals_per_s is not None:
        return f"{facts.arrivals_per_s} requests/s"
    return f"{facts.concurrency:,} concurrent"


def band_rows(report: Report) -> list[tuple[str, str, str, str, str]]:
    """Prompts by length: label, share, tokens, prefill and p95 TTFT; nothing where there is but one length."""
    bands = report.latency.bands if report.latency else ()
    if len(bands) < 2:
        return []
    return [
        (
            f"up to {band.label}" if band.label != "longest" else band.label,
            f"{band.share:.0%}".replace("%", " %"),
            f"{band.input_tokens:,}",
            show_seconds(band.prefill_s),
            show_seconds(band.ttft_p95_s),
        )
        for band in bands
    ]


def growth_rows(report: Report) -> list[tuple[str, str, str, str, str]]:
    """Month, load, replicas, devices billed and cost of a growing load."""
    return [
        (
            str(each.month),
            f"x{each.load:,.2f}" if each.load < MOST_IN_FULL else f"x{each.load:.3g}",
            show(each.active_replicas, "count"),
            show(each.billed_devices, "count"),
            show(each.monthly_usd, "usd"),
        )
        for each in report.growth
    ]


def world_rows(report: Report) -> list[tuple[str, str, str, str, str]]:
    """Values, probability, replicas, cost and regret of each world, likeliest first."""
    worlds = report.demand.worlds if report.demand else ()
    return [
        (
            ", ".join(each.values),
            show(each.weight, "share"),
            show(each.active_replicas, "count"),
            show(each.monthly_usd, "usd"),
            show(each.regret, "number"),
        )
        for each in sorted(worlds, key=lambda world: -world.weight)[:MOST_WORLDS]
    ]


def growth_lines(report: Report) -> list[str]:
    """Why months have no plan: each reason with its first and last month."""
    months: dict[str, list[int]] = {}
    for each in report.growth:
        if each.reason is not None:
            months.setdefault(each.reason, []).append(each.month)
    return [f"no plan for month {_span(found)}: {reason}" for reason, found in months.items()]


def _span(months: list[int]) -> str:
    return str(months[0]) if len(months) == 1 else f"{months[0]} to {months[-1]}"


def demand_lines(report: Report) -> list[str]:
    """What the plan comes to over all worlds, and why some have none."""
    found = report.demand
    if found is None:
        return []
    return [*_range_lines(found), *_missing_worlds(found)]


def _range_lines(found: DemandRange) -> list[str]:
    """The range of the worlds that have a plan, and the fleet that one regrets least."""
    if found.active_replicas_high is None or found.least_regret_replicas is None:
        return [f"{counted(len(found.worlds), 'world')}, none of which has a plan"]
    middle = found.least_regret_monthly_usd
    cost = "" if middle is None else f"{show_usd(middle)} a month in the middle world, "
    return [
        f"{counted(len(found.worlds), 'world')}: {found.active_replicas_low:,} to "
        f"{counted(found.active_replicas_high, 'active replica')}, {show(found.monthly_usd_low, 'usd')} to "
        f"{show(found.monthly_usd_high, 'usd')} a month",
        f"least regret: {counted(found.least_regret_replicas, 'active replica')}, {cost}enough with a probability of "
        f"{show(found.enough_share, 'share')}",
    ]


def _missing_worlds(found: DemandRange) -> list[str]:
    """Which worlds have no plan, and why: each reason with its likeliest world."""
    if not found.infeasible_share:
        return []
    first: dict[str, World] = {}
    for world in sorted(found.worlds, key=lambda world: -world.weight):
        if world.reason is not None:
            first.setdefault(world.reason, world)
    lines = [f"no plan for {', '.join(world.values)}: {reason}" for reason, world in first.items()]
    more = [f"and {counted(len(lines) - MOST_WORLDS, 'more reason')}"] if len(lines) > MOST_WORLDS else []
    share = show(found.infeasible_share, "share")
    return [f"worlds with a probability of {share} have no plan", *lines[:MOST_WORLDS], *more]


def check_rows(report: Report) -> list[tuple[str, str, str, str, str]]:
    """What the formulas said and the simulation saw: name, both figures, whether it holds, and why."""
    checks = report.simulation.checks if report.simulation else ()
    return [(each.what, each.planned, each.simulated, "holds" if each.holds else "FAILS", each.text) for each in checks]


def hit_rows(report: Report) -> list[tuple[str, str, str, str]]:
    """Hits by scope, where there are several."""
    hits = report.simulation.hits if report.simulation else ()
    if len(hits) < 2:
        return []
    return [
        (each.scope or "(none)", f"{each.requests:,}", f"{each.input_tokens:,}", show(each.hit_share, "share"))
        for each in hits
    ]


def simulation_lines(report: Report) -> list[str]:
    """What the simulation concludes, what it misses, and where its requests come from."""
    found = report.simulation
    if found is None:
        return []
    misses = [f"misses: {miss}" for miss in found.misses]
    return [
        found.verdict,
        *misses,
        f"saturated: {'yes' if found.saturated else 'no'}; {found.saturation}",
        *found.load_facts,
        f"percentiles: {found.percentile_method}",
    ]


def need_lines(report: Report) -> list[str]:
    """What each limit asks for, where more than one was looked at."""
    if len(report.needs) < 2:
        return []
    return [
        f"{need.limit}: {'no number' if need.replicas is None else counted(need.replicas, 'replica')}: {need.text}"
        for need in report.needs
    ]


def prices_of(report: Report) -> list[str]:
    """The price of its devices, what of them is committed to, and the API's."""
    facts = report.scenario
    named = (("commitment", facts.commitment), ("hosted API", facts.api_price))
    return [facts.price, *(f"{what}: {price}" for what, price in named if price)]


def replicas(report: Report) -> str:
    """'6 replicas x TP8 = 48 h100-sxm', or the accelerator alone where nothing fits."""
    facts, fleet = report.scenario, report.fleet
    if fleet is None:
        return facts.accelerator
    count = fleet.active_replicas + fleet.spare_replicas
    shape = ranks(facts.tp, facts.pp, facts.dp)
    return f"{count:,} replica{'s' if count != 1 else ''} x {shape} = {fleet.devices:,} {facts.accelerator}"


def ranks(tp: int, pp: int, dp: int) -> str:
    """'TP4 x DP2', or '1 device'."""
    degrees = (("TP", tp), ("PP", pp), ("DP", dp))
    return " x ".join(f"{name}{degree}" for name, degree in degrees if degree > 1) or "1 device"


def source_line(source: Source) -> str:
    """'what: source, as of date (licence)'."""
    date = f", as of {source.as_of}" if source.as_of else ""
    licence = f" ({source.licence})" if source.licence else ""
    return f"{source.what}: {source.source}{date}{licence}"


def headings(reports: Sequence[Report]) -> list[str]:
    """A column heading for each report: its context if that tells them apart, its name if short, else a number."""
    contexts = [counted(report.scenario.context_tokens, "token") for report in reports]
    if len(set(contexts)) == len(contexts):
        return contexts
    names = [report.scenario.name for report in reports]
    short = len(set(names)) == len(names) and max(map(len, names)) <= LONGEST_HEADING
    return names if short else [f"({i})" for i in range(1, len(names) + 1)]


def compared(reports: Sequence[Report]) -> str:
    """What is compared: the scenarios' own names, numbered where the columns are."""
    names = [title(report) for report in reports]
    numbers = headings(reports)
    if numbers[0] == "(1)":
        names = [f"{number} {name}" for number, name in zip(numbers, names, strict=True)]
    return " -> ".join(dict.fromkeys(names))


def rows_of(reports: Sequence[Report]) -> tuple[Row, ...]:
    """The rows that these reports have."""
    rows = (*ROWS, *CARRY_ROWS) if any(report.carry for report in reports) else ROWS
    return tuple(row for row in rows if not row.alone) + DEMAND_ROWS if len(reports) > 1 else rows


def main_rows(reports: Sequence[Report]) -> list[tuple[Row, list[str]]]:
    """Each row with one cell per report; optional rows only where a report has them."""
    rows = rows_of(reports)
    table = [(row, [value(report, row.path) for report in reports]) for row in rows]
    ranges = len(reports) == 1  # side by side, best estimates alone
    return [
        (row, [show(v, row.unit) if ranges else show_best(v, row.unit) for v in values])
        for row, values in table
        if not row.optional or any(v not in (None, row.plain) for v in values)
    ]


def curve_rows(report: Report) -> list[tuple[str, str, str]]:
    """Context, reserved and held bytes, where they are not simply proportional; else nothing."""
    cache = report.kv_cache
    if len(cache.groups) == 1 and not cache.state_bytes_per_request and cache.groups[0].span_tokens is None:
        return []
    return [(f"{p.context_tokens:,}", show_bytes(p.reserved_bytes), show_bytes(p.held_bytes)) for p in cache.by_context]


def shared(remarks: Sequence[Sequence[str]], names: Sequence[str]) -> list[str]:
    """Remarks on several reports, once each; what is not said of all of them says of which it is."""
    found = dict.fromkeys(remark for of_one in remarks for remark in of_one)
    whose = {r: [name for name, of_one in zip(names, remarks, strict=True) if r in of_one] for r in found}
    return [r if len(whose[r]) == len(names) else f"[{', '.join(whose[r])}] {r}" for r in found]


def cost_rows(reports: Sequence[Report]) -> list[tuple[str, list[str]]]:
    """Monthly lines by name, one cell per report."""
    names = list(dict.fromkeys(line.name for r in reports if r.cost for line in r.cost.lines))
    return [(name, [_cost_cell(report, name) for report in reports]) for name in names]


def _cost_cell(report: Report, name: str) -> str:
    found = [line.monthly_usd for line in (report.cost.lines if report.cost else ()) if line.name == name]
    return show_usd(sum(found, Decimal(0))) if found else "-"
