"""The rows of a report: labels, units, rounding and what each depends on, once for every format."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any

from planner.report import Report, Source
from planner.units import GIB, KIB, MIB


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


ROWS = (
    Row("scenario", "model", "scenario.model", "text"),
    Row("scenario", "accelerator", "scenario.accelerator", "text"),
    Row("scenario", "engine", "scenario.engine", "text"),
    Row("scenario", "workload", "scenario.workload", "text"),
    Row("scenario", "tensor parallel", "scenario.tp", "count", optional=True, plain=1),
    Row("scenario", "pipeline parallel", "scenario.pp", "count", optional=True, plain=1),
    Row("scenario", "data parallel", "scenario.dp", "count", optional=True, plain=1),
    Row("scenario", "expert parallel", "scenario.ep", "count", optional=True, plain=1),
    Row("scenario", "context", "scenario.context_tokens", "tokens"),
    Row("scenario", "concurrent requests at peak", "scenario.concurrency", "count"),
    Row("scenario", "requests a month", "scenario.requests_per_month", "count", optional=True),
    Row("scenario", "success share", "scenario.success_share", "text"),
    Row("model", "parameters", "model.parameters", "count", ("scenario.model",)),
    Row("model", "active parameters per token", "model.active_parameters", "count", ("scenario.model",)),
    Row("model", "served in", "model.dtype", "text", ("scenario.model",)),
    Row("model", "weights stored as", "model.quantisation", "text", ("scenario.model",), optional=True),
    Row("memory", "device memory", "memory.device_bytes", "bytes", ("scenario.accelerator",)),
    Row(
        "memory",
        "weights",
        "memory.weights_bytes",
        "bytes",
        (
            "model.parameters",
            "model.dtype",
            "model.quantisation",
            "scenario.tp",
            "scenario.pp",
            "scenario.ep",
        ),
    ),
    Row(
        "memory",
        "workspace",
        "memory.workspace_bytes",
        "bytes",
        ("scenario.model", "scenario.engine", "scenario.accelerator", "scenario.tp", "capacity.max_num_seqs"),
    ),
    Row("memory", "reserve", "memory.reserve_bytes", "bytes", ("memory.device_bytes", "scenario.engine")),
    Row(
        "memory",
        "KV budget",
        "memory.kv_budget_bytes",
        "bytes",
        ("memory.device_bytes", "memory.weights_bytes", "memory.workspace_bytes", "memory.reserve_bytes"),
    ),
    Row("KV cache", "cache dtype", "kv_cache.dtype", "text", ("scenario.model",)),
    Row("KV cache", "tokens per block", "kv_cache.block_tokens", "count", ("scenario.engine",)),
    Row(
        "KV cache",
        "KV per token",
        "kv_cache.bytes_per_token",
        "bytes",
        ("scenario.model", "kv_cache.dtype", "scenario.tp", "scenario.pp"),
    ),
    Row(
        "KV cache",
        "blocks per request",
        "kv_cache.blocks_per_request",
        "count",
        ("scenario.context_tokens", "kv_cache.block_tokens"),
    ),
    Row(
        "KV cache",
        "KV per request, reserved",
        "kv_cache.bytes_per_request",
        "bytes",
        ("scenario.context_tokens", "kv_cache.bytes_per_token", "kv_cache.block_tokens"),
    ),
    Row(
        "KV cache",
        "KV per request, held while decoding",
        "kv_cache.held_bytes_per_request",
        "bytes",
        ("scenario.context_tokens", "kv_cache.bytes_per_token", "kv_cache.block_tokens"),
    ),
    Row(
        "KV cache",
        "positions wasted per request",
        "kv_cache.wasted_tokens_per_request",
        "count",
        ("scenario.context_tokens", "kv_cache.block_tokens"),
    ),
    Row(
        "KV cache",
        "score matrix per layer and request, if stored",
        "kv_cache.score_matrix_bytes",
        "bytes",
        ("scenario.context_tokens", "scenario.model"),
    ),
    Row(
        "capacity",
        "blocks in the pool",
        "capacity.num_blocks",
        "count",
        ("memory.kv_budget_bytes", "kv_cache.bytes_per_token", "kv_cache.block_tokens"),
    ),
    Row(
        "capacity",
        "requests per replica, fully reserved",
        "capacity.requests_per_replica",
        "count",
        ("capacity.num_blocks", "kv_cache.blocks_per_request", "scenario.dp"),
    ),
    Row(
        "capacity",
        "requests per replica, at the mean length",
        "capacity.requests_per_replica_at_mean",
        "count",
        ("capacity.num_blocks", "scenario.mean_tokens", "kv_cache.block_tokens"),
        optional=True,
    ),
    Row(
        "capacity",
        "maximum concurrency, as the engine logs it",
        "capacity.max_concurrency",
        "ratio",
        ("capacity.num_blocks", "kv_cache.blocks_per_request"),
    ),
    Row("capacity", "max_num_seqs", "capacity.max_num_seqs", "count", ("scenario.engine",), optional=True),
    Row(
        "capacity",
        "slots per replica",
        "capacity.slots_per_replica",
        "count",
        ("capacity.requests_per_replica", "capacity.max_num_seqs"),
    ),
    Row(
        "capacity",
        "longest context of one request",
        "capacity.longest_context_tokens",
        "tokens",
        ("capacity.num_blocks", "scenario.model"),
    ),
    Row(
        "fleet",
        "active replicas",
        "fleet.active_replicas",
        "count",
        ("capacity.slots_per_replica", "scenario.concurrency"),
    ),
    Row("fleet", "spare replicas", "fleet.spare_replicas", "count", ("fleet.active_replicas",)),
    Row(
        "fleet",
        "devices per replica",
        "fleet.devices_per_replica",
        "count",
        ("scenario.tp", "scenario.pp", "scenario.dp"),
    ),
    Row(
        "fleet",
        "devices",
        "fleet.devices",
        "count",
        ("fleet.active_replicas", "fleet.spare_replicas", "fleet.devices_per_replica"),
    ),
    Row("fleet", "instances", "fleet.nodes", "count", ("fleet.devices", "scenario.price"), optional=True),
    Row("fleet", "devices billed", "fleet.billed_devices", "count", ("fleet.devices", "scenario.price")),
    Row("cost", "price", "scenario.price", "text"),
    Row("cost", "hours a month", "scenario.hours_per_month", "text"),
    Row(
        "cost",
        "monthly cost",
        "cost.monthly_usd",
        "usd",
        ("fleet.billed_devices", "scenario.price", "scenario.hours_per_month"),
    ),
    Row(
        "cost",
        "per 1,000 submitted",
        "cost.per_1000_submitted_usd",
        "usd",
        ("cost.monthly_usd", "scenario.requests_per_month"),
        optional=True,
    ),
    Row(
        "cost",
        "per 1,000 successful",
        "cost.per_1000_successful_usd",
        "usd",
        ("cost.monthly_usd", "scenario.requests_per_month", "scenario.success_share"),
        optional=True,
    ),
    Row(
        "prefix",
        "prompt positions saved a month",
        "prefix.saved_positions_per_month",
        "count",
        ("scenario.requests_per_month",),
        optional=True,
    ),
    Row("limit", "binds", "binding_limit", "text", ("capacity.slots_per_replica", "scenario.concurrency")),
)

CARRY_ROWS = (
    Row("carry", "devices", "carry.devices", "count"),
    Row("carry", "active replicas", "carry.active_replicas", "count"),
    Row("carry", "spare replicas", "carry.spare_replicas", "count"),
    Row("carry", "devices left idle", "carry.idle_devices", "count"),
    Row("carry", "requests at this context", "carry.requests_at_context", "count"),
    Row("carry", "of the concurrent requests, run", "carry.running_requests", "count"),
    Row("carry", "of the concurrent requests, queue", "carry.queued_requests", "count"),
    Row("carry", "longest context at this concurrency", "carry.longest_context_tokens", "tokens"),
)


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


_SHOW: dict[str, Callable[[Any], str]] = {
    "bytes": show_bytes,
    "count": lambda amount: f"{amount:,}",
    "tokens": lambda amount: f"{amount:,} tokens",
    "usd": show_usd,
    "ratio": lambda amount: f"{amount:,.2f}",
    "text": str,
}


def difference(old: Any, new: Any, unit: str) -> tuple[str, str]:
    """(signed amount, signed percent) of a numeric change; empty where there is none to tell."""
    if unit == "text" or old is None or new is None:
        return "", ""
    change = new - old
    amount = show(change, unit)
    amount = amount if change < 0 else f"+{amount}"
    percent = f"{float(change) / float(old):+.0%}".replace("%", " %") if old > 0 else ""
    return amount, percent


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
            f"{r.scenario.concurrency:,} concurrent",
        )
        for r in reports
    ]
    return " · ".join(parts[0] for parts in zip(*lines, strict=True) if len(set(parts)) == 1)


def replicas(report: Report) -> str:
    """'6 replicas x TP8 = 48 h100-sxm', or the accelerator alone where nothing fits."""
    facts, fleet = report.scenario, report.fleet
    if fleet is None:
        return facts.accelerator
    degrees = (("TP", facts.tp), ("PP", facts.pp), ("DP", facts.dp))
    shape = " x ".join(f"{name}{degree}" for name, degree in degrees if degree > 1) or "1 device"
    count = fleet.active_replicas + fleet.spare_replicas
    return f"{count:,} replica{'s' if count != 1 else ''} x {shape} = {fleet.devices:,} {facts.accelerator}"


def source_line(source: Source) -> str:
    """'what: source, as of date (licence)'."""
    date = f", as of {source.as_of}" if source.as_of else ""
    licence = f" ({source.licence})" if source.licence else ""
    return f"{source.what}: {source.source}{date}{licence}"


def headings(reports: Sequence[Report]) -> list[str]:
    """A column heading for each report: its context, else its name, numbered where names repeat."""
    contexts = [f"{report.scenario.context_tokens:,} tokens" for report in reports]
    if len(set(contexts)) == len(contexts):
        return contexts
    names = [report.scenario.name for report in reports]
    return names if len(set(names)) == len(names) else [f"{i}: {name}" for i, name in enumerate(names, 1)]


def main_rows(reports: Sequence[Report]) -> list[tuple[Row, list[str]]]:
    """Each row with one cell per report; optional rows only where a report has them."""
    rows = (*ROWS, *CARRY_ROWS) if any(report.carry for report in reports) else ROWS
    table = [(row, [value(report, row.path) for report in reports]) for row in rows]
    return [
        (row, [show(v, row.unit) for v in values])
        for row, values in table
        if not row.optional or any(v not in (None, row.plain) for v in values)
    ]


def curve_rows(report: Report) -> list[tuple[str, str, str]]:
    """Context, reserved and held bytes, where they are not simply proportional; else nothing."""
    cache = report.kv_cache
    if len(cache.groups) == 1 and not cache.state_bytes_per_request and cache.groups[0].span_tokens is None:
        return []
    return [(f"{p.context_tokens:,}", show_bytes(p.reserved_bytes), show_bytes(p.held_bytes)) for p in cache.by_context]


def cost_rows(reports: Sequence[Report]) -> list[tuple[str, list[str]]]:
    """Monthly lines by name, one cell per report."""
    names = list(dict.fromkeys(line.name for r in reports if r.cost for line in r.cost.lines))
    return [(name, [_cost_cell(report, name) for report in reports]) for name in names]


def _cost_cell(report: Report, name: str) -> str:
    found = [line.monthly_usd for line in (report.cost.lines if report.cost else ()) if line.name == name]
    return show_usd(sum(found, Decimal(0))) if found else "-"
