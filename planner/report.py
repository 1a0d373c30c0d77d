"""The result of an estimate: versioned, frozen, and enough to render or compare without planning again.

Bytes and tokens are integers, money is decimal dollars in cents (text in YAML and JSON). Memory and KV cache figures
are those of the rank that governs, which the report names.
"""

from datetime import date
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, ConfigDict

from planner.printable import Printable

SCHEMA_VERSION = 1
Basis = Literal["given", "config", "checkpoint", "computed", "measured", "datasheet", "assumed"]


class Part(BaseModel):
    """Base of every part of a report."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)


class ScenarioFacts(Part):
    """What was asked, resolved."""

    name: Printable
    title: Printable | None
    model: Printable
    accelerator: Printable
    engine: Printable
    engine_version: Printable | None
    workload: Printable
    tp: int
    pp: int
    dp: int
    ep: int
    context_tokens: int
    mean_tokens: int | None
    concurrency: int
    requests_per_month: int | None
    success_share: Decimal
    usd_per_device_hour: Decimal
    price: Printable
    hours_per_month: Decimal


class ModelFacts(Part):
    """The model as its config describes it."""

    model_type: Printable
    parameters: int
    active_parameters: int
    layers: int
    max_positions: int
    dtype: Printable
    quantisation: Printable | None


class MemoryLine(Part):
    """One line of device memory; the lines sum to the device."""

    name: Printable
    bytes: int
    basis: Basis


class Memory(Part):
    """Device memory of the governing rank."""

    governing_rank: Printable
    device_bytes: int
    weights_bytes: int
    workspace_bytes: int
    reserve_bytes: int
    kv_budget_bytes: int
    """Negative when the other lines exceed the device."""
    lines: tuple[MemoryLine, ...]


class CacheGroup(Part):
    """Layers whose blocks are taken together."""

    kind: Printable
    layers: int
    block_tokens: int
    span_tokens: int | None
    """The window or chunk, where there is one."""
    page_bytes: int
    """One block, all layers of the group."""
    reserved_blocks: int
    held_blocks: int


class CacheAtContext(Part):
    """One point of the curve of cache bytes over context."""

    context_tokens: int
    reserved_bytes: int
    held_bytes: int


class KvCache(Part):
    """What one request takes on the governing rank."""

    dtype: Printable
    block_tokens: int
    bytes_per_block: int
    bytes_per_token: int
    """What one more token adds once every bounded layer is full."""
    state_bytes_per_request: int
    groups: tuple[CacheGroup, ...]
    blocks_per_request: int
    bytes_per_request: int
    """What the engine reserves at the full context."""
    held_bytes_per_request: int
    """What it holds while it decodes at the full context."""
    prefill_bytes_per_request: int
    """What it holds at most while its prompt is prefilled in chunks."""
    wasted_tokens_per_request: int
    by_context: tuple[CacheAtContext, ...]
    score_matrix_bytes: int
    """Scores of one layer and request over its query heads if they were materialised; tiled kernels never do."""


class Capacity(Part):
    """Requests that fit into one replica."""

    num_blocks: int
    usable_blocks: int
    requests_per_replica: int
    """Whole requests of the full context in the usable blocks."""
    requests_per_replica_at_mean: int | None
    """The same at the workload's mean length."""
    max_concurrency: float
    """num_blocks / blocks per request on one rank, as vLLM logs it."""
    max_num_batched_tokens: int | None
    """Tokens of one engine step, on each data-parallel rank; None: the engine has no such limit."""
    max_num_seqs: int | None
    """Requests that the engine's scheduler runs at once on each data-parallel rank; None: no such limit."""
    slots_per_replica: int
    """Requests that one replica runs at once: the smaller of memory and the scheduler, all data-parallel ranks."""
    longest_context_tokens: int
    """Longest context at which one request fits, within the model's positions."""


class Fleet(Part):
    """Replicas and the devices that they take."""

    active_replicas: int
    spare_replicas: int
    devices_per_replica: int
    devices: int
    billed_devices: int
    nodes: int | None
    slots: int
    """Requests that the active replicas run at once."""


class Carry(Part):
    """What a given number of devices carries."""

    devices: int
    active_replicas: int
    spare_replicas: int
    spares_waived: bool
    """The spare rule would leave no active replica, so all of them are active."""
    idle_devices: int
    requests_at_context: int
    running_requests: int
    queued_requests: int
    longest_context_tokens: int
    """Longest context at which the whole concurrency runs; 0 when none does."""


class CostLine(Part):
    """One monthly line."""

    name: Printable
    text: Printable
    monthly_usd: Decimal


class Cost(Part):
    """Dollars a month, and per 1,000 requests where the workload says how many there are."""

    currency: Literal["USD"]
    lines: tuple[CostLine, ...]
    monthly_usd: Decimal
    other_monthly_usd: Decimal
    """What of it is not for devices."""
    per_1000_submitted_usd: Decimal | None
    per_1000_successful_usd: Decimal | None


class PrefixReuse(Part):
    """Prompt positions whose prefill a shared prefix avoids."""

    requests_per_month: int
    saved_positions_per_month: int


class Derivation(Part):
    """How one number came about."""

    path: Printable
    text: Printable
    basis: Basis
    source: Printable


class Source(Part):
    """Where an input came from."""

    what: Printable
    source: Printable
    as_of: date | None
    licence: Printable | None


class Report(Part):
    """One estimate."""

    kind: Literal["planner report"] = "planner report"
    schema_version: Literal[1] = 1
    planner_version: Printable
    inputs_digest: Printable
    scenario: ScenarioFacts
    fits: bool
    """Whether the model and at least one request of the full context fit."""
    binding_limit: Printable
    binding_reason: Printable
    model: ModelFacts
    memory: Memory
    kv_cache: KvCache
    capacity: Capacity
    fleet: Fleet | None
    cost: Cost | None
    carry: Carry | None
    prefix: PrefixReuse | None
    assumptions: tuple[Printable, ...]
    warnings: tuple[Printable, ...]
    derivations: tuple[Derivation, ...]
    sources: tuple[Source, ...]


class Change(Part):
    """One line that differs between two reports."""

    label: Printable
    path: Printable
    sign: Literal["+", "-", "~"]
    old: Printable
    new: Printable
    difference: Printable
    percent: Printable
    why: Printable


class Comparison(Part):
    """Reports side by side; with two of them, every line that moved."""

    kind: Literal["planner comparison"] = "planner comparison"
    schema_version: Literal[1] = 1
    planner_version: Printable
    reports: tuple[Report, ...]
    verdict: Printable
    changes: tuple[Change, ...]
