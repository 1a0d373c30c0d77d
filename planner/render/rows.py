"""The rows of a report: labels, units, and what each number follows from."""

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
    Row("scenario", "mean request", "scenario.mean_tokens", "tokens", optional=True),
    Row("scenario", "concurrent at peak", "scenario.concurrency", "count"),
    Row("scenario", "requests a month", "scenario.requests_per_month", "count", optional=True),
    Row("scenario", "success share", "scenario.success_share", "text"),
    Row("model", "parameters", "model.parameters", "count", ("scenario.model",)),
    Row("model", "active per token", "model.active_parameters", "count", ("scenario.model",)),
    Row("model", "served in", "model.dtype", "text", ("scenario.model",)),
    Row("model", "weights stored as", "model.quantisation", "text", ("scenario.model",), optional=True),
    Row("memory of one device", "rank", "memory.governing_rank", "text", optional=True, plain="its only rank"),
    Row("memory of one device", "device memory", "memory.device_bytes", "bytes", ("scenario.accelerator",)),
    Row(
        "memory of one device",
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
        "memory of one device",
        "workspace",
        "memory.workspace_bytes",
        "bytes",
        ("scenario.model", "scenario.engine", "scenario.accelerator", "scenario.tp", "capacity.max_num_seqs"),
    ),
    Row("memory of one device", "reserve", "memory.reserve_bytes", "bytes", ("memory.device_bytes", "scenario.engine")),
    Row(
        "memory of one device",
        "KV budget",
        "memory.kv_budget_bytes",
        "bytes",
        ("memory.device_bytes", "memory.weights_bytes", "memory.workspace_bytes", "memory.reserve_bytes"),
    ),
    Row("KV cache", "cache dtype", "kv_cache.dtype", "text", ("scenario.model",)),
    Row(
        "KV cache",
        "tokens per block",
        "kv_cache.block_tokens",
        "count",
        ("scenario.model", "scenario.engine", "scenario.accelerator", "kv_cache.dtype", "scenario.tp"),
    ),
    Row(
        "KV cache",
        "bytes per block",
        "kv_cache.bytes_per_block",
        "bytes",
        ("scenario.model", "kv_cache.dtype", "kv_cache.block_tokens", "scenario.tp", "scenario.pp", "scenario.engine"),
    ),
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
        ("scenario.context_tokens", "kv_cache.block_tokens", "scenario.model", "capacity.max_num_batched_tokens"),
    ),
    Row(
        "KV cache",
        "KV per request, reserved",
        "kv_cache.bytes_per_request",
        "bytes",
        ("kv_cache.blocks_per_request", "kv_cache.bytes_per_block"),
    ),
    Row(
        "KV cache",
        "KV per request, held",
        "kv_cache.held_bytes_per_request",
        "bytes",
        ("scenario.context_tokens", "kv_cache.bytes_per_block", "kv_cache.block_tokens"),
    ),
    Row(
        "KV cache",
        "KV at most in prefill",
        "kv_cache.prefill_bytes_per_request",
        "bytes",
        ("scenario.context_tokens", "kv_cache.bytes_per_block", "capacity.max_num_batched_tokens"),
    ),
    Row(
        "KV cache",
        "wasted positions",
        "kv_cache.wasted_tokens_per_request",
        "count",
        ("scenario.context_tokens", "kv_cache.block_tokens"),
    ),
    Row(
        "KV cache",
        "naive score matrix, 1 layer",
        "kv_cache.score_matrix_bytes",
        "bytes",
        ("scenario.context_tokens", "scenario.model"),
    ),
    Row(
        "capacity",
        "blocks in the pool",
        "capacity.num_blocks",
        "count",
        ("memory.kv_budget_bytes", "kv_cache.bytes_per_block"),
    ),
    Row(
        "capacity",
        "requests, fully reserved",
        "capacity.requests_per_replica",
        "count",
        ("capacity.num_blocks", "kv_cache.blocks_per_request", "scenario.dp"),
    ),
    Row(
        "capacity",
        "requests at mean length",
        "capacity.requests_per_replica_at_mean",
        "count",
        ("capacity.num_blocks", "scenario.mean_tokens", "kv_cache.block_tokens"),
        optional=True,
    ),
    Row(
        "capacity",
        "maximum concurrency",
        "capacity.max_concurrency",
        "ratio",
        ("capacity.num_blocks", "kv_cache.blocks_per_request"),
    ),
    Row(
        "capacity",
        "max_num_batched_tokens",
        "capacity.max_num_batched_tokens",
        "count",
        ("scenario.engine", "scenario.accelerator"),
        optional=True,
    ),
    Row(
        "capacity",
        "max_num_seqs",
        "capacity.max_num_seqs",
        "count",
        ("scenario.engine", "scenario.accelerator", "capacity.max_num_batched_tokens"),
        optional=True,
    ),
    Row(
        "capacity",
        "slots per replica",
        "capacity.slots_per_replica",
        "count",
        ("capacity.requests_per_replica", "capacity.max_num_seqs", "scenario.dp"),
    ),
    Row(
        "capacity",
        "longest context",
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
    Row("cost", "price per device-hour", "scenario.usd_per_device_hour", "rate"),
    Row("cost", "price", "scenario.price", "text", alone=True),
    Row("cost", "hours a month", "scenario.hours_per_month", "text"),
    Row(
        "cost",
        "monthly cost",
        "cost.monthly_usd",
        "usd",
        ("fleet.billed_devices", "scenario.usd_per_device_hour", "scenario.hours_per_month", "cost.other_monthly_usd"),
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
        "prefill positions saved",
        "prefix.saved_positions_per_month",
        "count",
        ("scenario.requests_per_month",),
        optional=True,
    ),
    Row("limit", "binds", "binding_limit", "text", ("capacity.slots_per_replica", "scenario.concurrency")),
)

_CARRY = "what these devices carry"
_CARRIED = ("carry.active_replicas", "capacity.slots_per_replica", "scenario.concurrency")

CARRY_ROWS = (
    Row(_CARRY, "devices", "carry.devices", "count"),
    Row(_CARRY, "active replicas", "carry.active_replicas", "count", ("fleet.devices_per_replica",)),
    Row(_CARRY, "spare replicas", "carry.spare_replicas", "count", ("carry.active_replicas",)),
    Row(_CARRY, "devices left idle", "carry.idle_devices", "count", ("fleet.devices_per_replica",)),
    Row(_CARRY, "requests at this context", "carry.requests_at_context", "count", _CARRIED),
    Row(_CARRY, "of the concurrent, run", "carry.running_requests", "count", _CARRIED),
    Row(_CARRY, "of the concurrent, queue", "carry.queued_requests", "count", _CARRIED),
    Row(
        _CARRY,
        "longest context for all",
        "carry.longest_context_tokens",
        "tokens",
        ("carry.active_replicas", "capacity.num_blocks", "scenario.concurrency"),
    ),
)
