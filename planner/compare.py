"""Two reports -> what changed, by how much, and why."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from planner import __version__
from planner.cost import per_thousand_usd, successful_requests
from planner.render.row import Row
from planner.render.rows import CARRY_ROWS, DEMAND_ROWS, ROWS
from planner.render.tables import difference, percent, plain_number, rows_of, show, show_best, show_usd, value
from planner.report import Change, Comparison, Report
from planner.units import counted

_ROW = {row.path: row for row in (*ROWS, *CARRY_ROWS, *DEMAND_ROWS)}
_DEVICES = replace(_ROW["cost.billed_usd"], path="cost.lines")
_LABELS = {
    "cost.other_monthly_usd": ("other monthly lines", "usd"),
    "latency.input_tokens": ("mean prompt", "tokens"),
    "latency.output_tokens": ("mean answer", "tokens"),
    "latency.cached_tokens": ("cached prompt tokens", "tokens"),
}
"""Label and unit of what has no row."""


def compare(reports: Sequence[Report]) -> Comparison:
    """Reports side by side; of exactly two, every line that moved and why."""
    changes = changed(reports[0], reports[1]) if len(reports) == 2 else ()
    return Comparison(
        planner_version=__version__,
        reports=tuple(reports),
        verdict=verdict(reports[0], reports[-1]),
        changes=changes,
    )


def changed(old: Report, new: Report) -> tuple[Change, ...]:
    """Every line of the main table, and every monthly line, that differs."""
    rows = [_change(row, old, new) for row in rows_of((old, new)) if value(old, row.path) != value(new, row.path)]
    return (*rows, *_cost_changes(old, new))


def _change(row: Row, old: Report, new: Report) -> Change:
    before, after = value(old, row.path), value(new, row.path)
    amount, share = difference(before, after, row.unit)
    exact_before, exact_after = _exact(old, row.path), _exact(new, row.path)
    if exact_before is not None and exact_after is not None:
        share = percent(exact_before, exact_after)
    return Change(
        label=row.label,
        path=row.path,
        sign="+" if before is None else "-" if after is None else "~",
        old=show_best(before, row.unit),
        new=show_best(after, row.unit),
        difference=amount,
        percent=share,
        why=_why(row, old, new),
    )


def _exact(report: Report, path: str) -> Fraction | None:
    """Dollars per 1,000 requests before they are rounded to cents; None for other lines."""
    facts = report.scenario
    if report.cost is None or value(report, path) is None:
        return None
    shares = {
        "cost.per_1000_submitted_usd": (Decimal(1), Decimal(1)),
        "cost.per_1000_successful_usd": (facts.success_share, report.cost.in_time_share),
    }
    if path not in shares or not facts.requests_per_month:
        return None
    requests = successful_requests(facts.requests_per_month, *shares[path])
    return per_thousand_usd(Fraction(report.cost.monthly_usd), requests)


def _why(row: Row, old: Report, new: Report) -> str:
    """What this number follows from and that moved too; the binding reason where the limit moved."""
    if row.path == "binding_limit":
        return new.binding_reason
    if value(old, row.path) is None or value(new, row.path) is None:
        without = old if value(old, row.path) is None else new
        return "" if without.fleet else f"{'the first' if without is old else 'the last'} {_fails(without)}"
    moved = [parent for parent in row.parents if value(old, parent) != value(new, parent)]
    if not moved:
        return "given"
    return "; ".join(_moved(_ROW.get(parent), parent, old, new) for parent in moved)


def _moved(row: Row | None, path: str, old: Report, new: Report) -> str:
    before, after = plain_number(value(old, path)), plain_number(value(new, path))
    label, unit = (row.label, row.unit) if row else _LABELS[path]
    if unit != "text" and before and after and before > 0 and after > 0:
        factor = float(after) / float(before)
        if factor >= 1.005 or factor <= 0.995:
            return f"{label} x{factor:.2f}" if factor > 1 else f"{label} /{1 / factor:.2f}"
    return f"{label} {show_best(before, unit)} -> {show_best(after, unit)}"


def _cost_changes(old: Report, new: Report) -> list[Change]:
    before, after = _monthly(old), _monthly(new)
    found = []
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) == after.get(name):
            continue
        amount, share = difference(before.get(name), after.get(name), "usd")
        found.append(
            Change(
                label=name,
                path="cost.lines",
                sign="+" if name not in before else "-" if name not in after else "~",
                old=show(before.get(name), "usd"),
                new=show(after.get(name), "usd"),
                difference=amount,
                percent=share,
                why=_why(_DEVICES, old, new) if name in ("devices", "committed devices") else "given",
            )
        )
    return found


def _monthly(report: Report) -> dict[str, Decimal]:
    """Dollars a month by the name of the line; lines of one name are one."""
    found: dict[str, Decimal] = {}
    for line in report.cost.lines if report.cost else ():
        found[line.name] = found.get(line.name, Decimal(0)) + line.monthly_usd
    return found


def _fails(report: Report) -> str:
    return "does not meet its objectives" if report.fits else "does not fit"


def verdict(old: Report, new: Report) -> str:
    """One line: the change in money, in devices, and the limit that binds now."""
    if new.fleet is None:
        return f"the last {_fails(new)}: {new.binding_reason}"
    binds = f"binds now: {new.binding_limit} ({new.binding_reason})"
    if old.fleet is None or new.fleet is None or old.cost is None or new.cost is None:
        return f"the first {_fails(old)}, the last does; {binds}"
    change, devices = new.cost.monthly_usd - old.cost.monthly_usd, new.fleet.devices - old.fleet.devices
    billed = new.fleet.billed_devices - old.fleet.billed_devices
    if change == 0 and devices == 0 and billed == 0:
        return f"the same number of devices and the same cost; {binds}"
    moved = f"{'+' if devices >= 0 else '-'}{counted(abs(devices), 'device')}"
    if billed != devices:
        moved += f" ({'+' if billed >= 0 else '-'}{counted(abs(billed), 'device')} billed)"
    share = percent(old.cost.monthly_usd, new.cost.monthly_usd)
    return f"{'+' if change >= 0 else ''}{show_usd(change)} a month ({share}), {moved}; {binds}"
