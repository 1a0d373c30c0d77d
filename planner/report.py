"""The result of an estimate: versioned, frozen, and enough to render or compare without planning again.

Bytes and tokens are integers, money is decimal dollars in cents (text in YAML and JSON). Memory and KV cache figures
are those of the rank that governs, which the report names.
"""

from datetime import date
from decimal import Decimal
from typing import Literal

from pydantic import model_validator

from planner.printable import Printable
from planner.report_base import Basis, Part
from planner.report_demand import DemandRange, GrowthMonth
from planner.report_money import Cost as Cost
from planner.report_money import Isolation, PrefixReuse
from planner.report_simulation import Simulation


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
    concurrency: int | None
    """Given, or where only arrivals are, what the fleet must hold at once (latency.concurrency_p99)."""
    arrivals_per_s: Decimal | None
    ttft_p95_limit_s: Decimal | None
    itl_p95_limit_s: Decimal | None
    success_share_limit: Decimal | None
    availability_limit: Decimal | None
    requests_per_month: int | None
    success_share: Decimal
    retries_per_failure: Decimal
    usd_per_device_hour: Decimal
    price: Printable
    commitment: Printable | None
    """Devices held all hours, and their price."""
    peak_hours_share: Decimal | None
    """Of the hours, those in which devices beyond the commitment are held; None without one."""
    api_price: Printable | None
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


class Range(Part):
    """An estimate, and the range that four of five measurements of its kind were in."""

    low: float
    best: float
    high: float

    @model_validator(mode="after")
    def _ascending(self) -> "Range":
        if not self.low <= self.best <= self.high:
            raise ValueError(f"low {self.low:g}, best {self.best:g} and high {self.high:g} do not ascend")
        return self


class StepTime(Part):
    """Where the time of one decode step goes; the parts sum to it [s]."""

    seconds: float
    weights_s: float
    """Reading weights."""
    kv_s: float
    """Reading the KV cache and states."""
    compute_s: float
    activations_s: float
    communication_s: float
    launch_s: float
    binds: Printable
    """The longest part."""


class LengthBand(Part):
    """Prompts up to a length."""

    label: Printable
    share: float
    """Of the requests; the longest prompts of a longer context than the workload's have none."""
    input_tokens: int
    prefill_s: float
    """Of the longest of them without a cached prefix, on an idle replica."""
    ttft_p95_s: float
    """The same with what 95 % of the requests wait."""


class Latency(Part):
    """How fast one replica serves the workload at its share of the load; times are of the best estimate."""

    calibration: Printable
    borrowed: tuple[Printable, ...]
    """Kernels that it does not hold, and the calibration whose constants stand in."""
    batch: int
    """Requests that decode together."""
    input_tokens: int
    """Mean of a prompt."""
    output_tokens: int
    """Mean of an answer."""
    cached_tokens: int
    """Of a prompt, mean."""
    step: StepTime
    tpot_s: Range
    """Mean time per output token after the first, other requests' prompts included."""
    itl_p95_s: Range
    """95th percentile of all gaps between tokens."""
    ttft_mean_s: Range
    ttft_p95_s: Range
    """95th percentile over requests, queueing included."""
    request_s: Range
    """Mean time of a request: TTFT + (output - 1) x TPOT."""
    longest_prefill_s: float
    """Of the longest prompt, without a cached prefix, on an idle replica."""
    bands: tuple[LengthBand, ...]
    saturated_batch: int
    saturated_tokens_per_s: Range
    """Output tokens of one replica with every slot in use."""
    arrivals_per_s: float | None
    """At the whole fleet: given, or what its concurrency comes to; None, as utilisation and concurrency_mean, where
    there is no fleet and the times are those of a request alone."""
    utilisation: float | None
    """Arrivals over what the fleet can do."""
    saturated: bool
    concurrency_mean: float | None
    """Requests in the whole fleet."""
    concurrency_p99: int | None
    """Not exceeded at 99 % of times; None where the concurrency is given instead of arrivals, or there is no fleet."""
    slot_wait_p95_s: float
    """What 95 % of the requests wait at most for a slot."""
    ttft_attained_share: float | None
    """Share of requests within ttft_p95_limit_s; None without one."""
    range_basis: Printable
    """Which measured errors the ranges reflect."""


class Need(Part):
    """Replicas that one limit asks for; the largest need is the fleet's."""

    limit: Printable
    replicas: int | None
    """None: no number of replicas is enough."""
    text: Printable


class Fleet(Part):
    """Replicas and the devices that they take."""

    active_replicas: int
    spare_replicas: int
    spare_rules: tuple[Need, ...]
    """What each reason for spares asks for; the largest counts."""
    devices_per_replica: int
    devices: int
    billed_devices: int
    """Whole instances, and the whole commitment."""
    committed_devices: int
    """Of the billed, those of the commitment."""
    nodes: int | None
    """Instances sold whole; None where devices are sold one by one."""
    slots: int
    """Requests that the active replicas run at once."""
    availability: float | None
    """Share of the time that the active number of replicas works, where the spares follow from an availability."""
    availability_one_fewer: float | None
    """The same with one node fewer, or one replica where they fail apart; None where none is spare."""


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
    tpot_s: Range | None
    """Mean, at the load that these devices get; None where no replica runs or no speed is predicted."""
    itl_p95_s: Range | None
    ttft_p95_s: Range | None
    """None also where the queue grows without end."""
    misses: tuple[Printable, ...]
    """Objectives that these devices do not meet, and arrivals that they cannot keep up with."""


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
    schema_version: Literal[3] = 3
    planner_version: Printable
    inputs_digest: Printable
    scenario: ScenarioFacts
    fits: bool
    """Whether the model and at least one request of the full context fit."""
    meets_objectives: bool
    """Whether a fleet of some size meets every objective; True where there are none."""
    binding_limit: Printable
    binding_reason: Printable
    model: ModelFacts
    memory: Memory
    kv_cache: KvCache
    capacity: Capacity
    needs: tuple[Need, ...]
    latency: Latency | None
    """None where it cannot be predicted; a warning says why."""
    fleet: Fleet | None
    """None where the model does not fit or an objective cannot be met."""
    cost: Cost | None
    carry: Carry | None
    prefix: PrefixReuse | None
    isolation: Isolation | None = None
    """None where the workload gives no tenants, or how often they find a prefix is not predicted."""
    growth: tuple[GrowthMonth, ...]
    """Empty where the scenario gives no growth."""
    demand: DemandRange | None
    """None where nothing is uncertain."""
    simulation: Simulation | None = None
    """Of the fleet under a load, where one was run."""
    assumptions: tuple[Printable, ...]
    warnings: tuple[Printable, ...]
    derivations: tuple[Derivation, ...]
    sources: tuple[Source, ...]

    @property
    def last_month(self) -> GrowthMonth | None:
        """Of the growing load; None where it does not grow."""
        return self.growth[-1] if self.growth else None

    @property
    def growth_usd(self) -> Decimal | None:
        """All months of growth together; None where it does not grow, or some month is not served."""
        costs = [month.monthly_usd for month in self.growth if month.monthly_usd is not None]
        return sum(costs, Decimal(0)) if costs and len(costs) == len(self.growth) else None


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
    schema_version: Literal[3] = 3
    planner_version: Printable
    reports: tuple[Report, ...]
    verdict: Printable
    changes: tuple[Change, ...]
