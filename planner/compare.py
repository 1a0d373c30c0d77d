"""Two reports -> what changed, by how much, and why."""

from collections.abc import Sequence
from decimal import Decimal

from planner import __version__
from planner.render.tables import ROWS, Row, difference, show, show_usd, value
from planner.report import Change, Comparison, Report

_ROW = {row.path: row for row in ROWS}


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
    rows = [_change(row, old, new) for row in ROWS if value(old, row.path) != value(new, row.path)]
    return (*rows, *_cost_changes(old, new))


def _change(row: Row, old: Report, new: Report) -> Change:
    before, after = value(old, row.path), value(new, row.path)
    amount, percent = difference(before, after, row.unit)
    return Change(
        label=row.label,
        path=row.path,
        sign="+" if before is None else "-" if after is None else "~",
        old=show(before, row.unit),
        new=show(after, row.unit),
        difference=amount,
        percent=percent,
        why=_why(row, old, new),
    )


def _why(row: Row, old: Report, new: Report) -> str:
    """What this number follows from and that moved too; the binding reason where the limit moved."""
    if row.path == "binding_limit":
        return new.binding_reason
    moved = [parent for parent in row.parents if value(old, parent) != value(new, parent)]
    if not moved:
        return "given" if not row.parents else "its own setting"
    return "; ".join(_moved(_ROW.get(parent), parent, old, new) for parent in moved)


def _moved(row: Row | None, path: str, old: Report, new: Report) -> str:
    before, after = value(old, path), value(new, path)
    label, unit = (row.label, row.unit) if row else (path, "count")
    if unit != "text" and before and after and before > 0 and after > 0:
        factor = float(after) / float(before)
        if factor >= 1.005 or factor <= 0.995:
            return f"{label} x{factor:.2f}" if factor > 1 else f"{label} /{1 / factor:.2f}"
    return f"{label} {show(before, unit)} -> {show(after, unit)}"


def _cost_changes(old: Report, new: Report) -> list[Change]:
    before, after = _monthly(old), _monthly(new)
    found = []
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) == after.get(name):
            continue
        amount, percent = difference(before.get(name), after.get(name), "usd")
        found.append(
            Change(
                label=name,
                path="cost.lines",
                sign="+" if name not in before else "-" if name not in after else "~",
                old=show(before.get(name), "usd"),
                new=show(after.get(name), "usd"),
                difference=amount,
                percent=percent,
                why="devices billed or their price" if name == "devices" else "given",
            )
        )
    return found


def _monthly(report: Report) -> dict[str, Decimal]:
    """Dollars a month by the name of the line; lines of one name are one."""
    found: dict[str, Decimal] = {}
    for line in report.cost.lines if report.cost else ():
        found[line.name] = found.get(line.name, Decimal(0)) + line.monthly_usd
    return found


def verdict(old: Report, new: Report) -> str:
    """One line: the change in money, in devices, and the limit that binds now."""
    if not new.fits:
        return f"the last does not fit: {new.binding_reason}"
    binds = f"binds now: {new.binding_limit} ({new.binding_reason})"
    if old.fleet is None or new.fleet is None or old.cost is None or new.cost is None:
        return f"the first does not fit, the last does; {binds}"
    change, devices = new.cost.monthly_usd - old.cost.monthly_usd, new.fleet.devices - old.fleet.devices
    if change == 0 and devices == 0:
        return f"the same fleet and cost; {binds}"
    _, percent = difference(old.cost.monthly_usd, new.cost.monthly_usd, "usd")
    sign = "+" if change >= 0 else ""
    return f"{sign}{show_usd(change)} a month ({percent}), {devices:+,} devices; {binds}"
