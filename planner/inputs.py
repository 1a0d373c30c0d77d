"""Validated inputs: what a file or a flag may say. Frozen, closed, and described for `planner schema`."""

from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema, model_validator

from planner.engine_inputs import Engine
from planner.input_types import Count, CountOrNone, Degree, Input, Number, Positive, PositiveShare, Share
from planner.origin import Origin
from planner.printable import Name, Printable
from planner.units import show_rate


class Weights(Input):
    """Weights as the checkpoint's own headers or index say."""

    total_bytes: Count
    """Bytes of all tensors that the engine loads."""
    bytes_by_dtype: dict[str, Count] = Field(default={})
    """The same by safetensors dtype; empty when only the index was read."""
    source: Printable
    """Which files were read."""


class Model(Input):
    """A model: the vendor's own config fields, and where they came from."""

    model_config = ConfigDict(json_schema_extra=lambda schema: schema["properties"].pop("origin", None))

    name: Name
    config: dict[str, Any]
    """The vendor's config.json, verbatim names."""
    hf_quant_config: dict[str, Any] | None = None
    """The vendor's hf_quant_config.json, for checkpoints that have one."""
    weights: Weights | None = None
    """Exact weight bytes, where the checkpoint's headers or index were read."""
    source: Printable
    """Where the config was published."""
    revision: Printable | None = None
    """Commit of that source."""
    licence: Printable | None = None
    as_of: date | None = None
    """When it was read."""
    notes: Printable | None = None
    origin: Annotated[Origin, WithJsonSchema({})] = Field(default=Origin("model"), exclude=True, repr=False)
    """The file it was read from; filled in by planner, for messages."""


class Accelerator(Input):
    """An accelerator: datasheet peaks (dense) and memory as the driver reports it."""

    name: Name
    title: Printable | None = None
    vendor: Printable
    compute_capability: Printable | None = None
    """CUDA compute capability, such as "9.0"."""
    memory_mib: Count
    """Total memory as the driver reports it [MiB]."""
    memory_marketing_gb: Positive | None = None
    """The size in its name [GB]."""
    engine_visible_mib: Count | None = None
    """Total memory as the CUDA runtime reports it to an engine [MiB]; smaller than the driver's figure."""
    engine_visible_source: Printable | None = None
    hbm_gb_per_s: Positive
    """Memory bandwidth, datasheet [GB/s]."""
    bf16_dense_tflops: Positive | None = None
    fp16_dense_tflops: Positive | None = None
    fp8_dense_tflops: Positive | None = None
    fp4_dense_tflops: Positive | None = None
    int8_dense_tops: Positive | None = None
    interconnect_gb_per_s: Positive | None = None
    """Scale-up link, one direction [GB/s]."""
    interconnect: Printable | None = None
    tdp_w: Positive | None = None
    """Board power [W]."""
    l2_mib: Positive | None = None
    """Last-level cache [MiB]."""
    source: Printable
    as_of: date
    notes: Printable | None = None


class Lengths(Input):
    """A distribution of lengths in tokens."""

    mean: Count
    p50: Count | None = None
    p90: Count | None = None
    p95: Count | None = None
    p99: Count | None = None
    max: Count | None = None


class Prefix(Input):
    """A prompt prefix that many requests share."""

    shared_tokens: CountOrNone
    """Length of the shared prefix."""
    request_share: Share
    """Share of the requests that begin with it and find it cached."""


class Workload(Input):
    """What is asked of the service: lengths, load and what counts as success."""

    name: Name
    title: Printable | None = None
    context_tokens: Count
    """Longest request to plan for, input and output together."""
    input_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    concurrency: Count
    """Requests active at the peak."""
    requests_per_month: Count | None = None
    """Requests submitted in a month."""
    prefix: Prefix | None = None
    success_share: PositiveShare = Decimal(1)
    """Share of the submitted requests that end well."""
    percentile_method: Printable | None = None
    source: Printable
    licence: Printable | None = None
    as_of: date | None = None
    assumed: tuple[str, ...] = ()
    """Fields that are an assumption and not from the source."""
    notes: Printable | None = None

    @property
    def mean_tokens(self) -> int | None:
        """Mean length of a request, input and output together."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens.mean + self.output_tokens.mean

    @model_validator(mode="after")
    def _mean_within_context(self) -> "Workload":
        mean = self.mean_tokens
        if mean is not None and mean > self.context_tokens:
            raise ValueError(
                f"mean input and output together are {mean:,} tokens, over context_tokens {self.context_tokens:,}"
            )
        return self


class Price(Input):
    """A price per hour, from a dated source; the unit sold is an instance of `devices` accelerators."""

    provider: Printable | None = None
    instance: Printable | None = None
    """Instance type, sold whole; absent: sold by the device."""
    devices: Degree = 1
    """Accelerators in one unit sold."""
    region: Printable | None = None
    term: Printable = "given"
    """on_demand, spot, reserved_1y, reserved_3y or given."""
    usd_per_hour: Positive
    """US dollars per unit and hour."""
    as_of: date | None = None
    source: Printable = "given"
    licence: Printable | None = None
    confidence: Printable | None = None
    note: Printable | None = None

    @property
    def unit(self) -> str:
        """What is sold, as text names it."""
        return f"{self.instance or 'unit'} of {self.devices}"

    @property
    def sold_whole(self) -> bool:
        """Several devices are sold as one unit, or a named instance is."""
        return self.instance is not None or self.devices > 1

    @property
    def label(self) -> str:
        """How a report names it: dollars per device-hour, and what is sold by whom."""
        rate = show_rate(self.usd_per_hour / self.devices)
        sold = " ".join(part for part in (self.provider, self.instance, self.region, self.term) if part)
        whole = f" ({show_rate(self.usd_per_hour)} for {self.devices})" if self.devices > 1 else ""
        return f"{rate} per device-hour{whole}, {sold}"


class PriceRow(Input):
    """One dated line of a price list: an instance and its prices by term."""

    provider: Printable
    instance: Printable
    devices: Degree
    region: Printable | None = None
    usd_per_instance_hour: dict[str, Positive]
    """Price of the whole instance by term: on_demand, spot, reserved_1y, reserved_3y."""
    as_of: date | None = None
    source: Printable
    licence: Printable | None = None
    confidence: Printable | None = None
    note: Printable | None = None


class PriceList(Input):
    """Dated prices of one accelerator."""

    accelerator: Name
    currency: Literal["USD"]
    prices: tuple[PriceRow, ...]


class Parallelism(Input):
    """How one replica is spread over devices."""

    tp: Degree = 1
    """Tensor parallel ranks."""
    pp: Degree = 1
    """Pipeline stages."""
    dp: Degree = 1
    """Data parallel ranks (attention copies) within one replica."""
    ep: Degree = 1
    """Expert parallel ranks: 1, or tp x dp."""


class KvCache(Input):
    """KV cache settings; what is absent is the engine's default."""

    dtype: Name = "auto"
    block_tokens: Count | None = None


class EngineOptions(Input):
    """The engine's own options; what is absent is the engine's default for this device."""

    gpu_memory_utilization: PositiveShare | None = None
    max_num_batched_tokens: Count | None = None
    max_num_seqs: Count | None = None
    dtype: Literal["auto", "bfloat16", "float16", "half", "float32", "float"] = "auto"
    """Dtype the model is served in."""
    quantization: Printable | None = None
    """Weight quantisation applied while loading."""
    prefix_caching: Annotated[bool, Field(strict=True)] = True
    """Whether the engine keeps blocks for later requests with the same prefix."""
    kv_cache_bytes: Count | None = None
    """KV cache bytes per rank; replaces the computed pool."""


class MemoryGiven(Input):
    """Memory figures given instead of computed, per device [GiB]."""

    device_gib: Positive | None = None
    weights_gib: Positive | None = None
    workspace_gib: Number | None = None
    reserve_gib: Number | None = None


class Spares(Input):
    """Replicas beyond the active ones: a fraction of them, rounded up, or a number."""

    fraction: Share | None = None
    replicas: CountOrNone | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> "Spares":
        if (self.fraction is None) == (self.replicas is None):
            raise ValueError("give either fraction or replicas")
        return self


class MonthlyLine(Input):
    """A monthly cost beside the devices."""

    name: Name
    usd: Number


class _ByName:
    """Marks a field that a file may fill with a shipped name or a path instead of the fields themselves."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "description": "A shipped name or a file's path."}, handler(schema)]}


def _as_in_a_file(schema: dict[str, Any]) -> None:
    """What a scenario file must hold: names for three inputs; planner fills the rest."""
    schema["required"] = ["model", "accelerator", "workload"]
    del schema["properties"]["assumed"]


class Scenario(Input):
    """Everything one estimate depends on. In a file, model, accelerator, engine, workload and price may be names."""

    model_config = ConfigDict(json_schema_extra=_as_in_a_file)

    name: Name
    title: Printable | None = None
    model: Annotated[Model, _ByName()]
    accelerator: Annotated[Accelerator, _ByName()]
    engine: Annotated[Engine, _ByName()]
    workload: Annotated[Workload, _ByName()]
    context_tokens: Count | None = None
    """Longest request to plan for; absent: the workload's."""
    parallelism: Parallelism = Parallelism()
    kv_cache: KvCache = KvCache()
    engine_options: EngineOptions = EngineOptions()
    memory: MemoryGiven = MemoryGiven()
    spares: Spares = Spares(fraction=Decimal("0.2"))
    price: Annotated[Price, _ByName()]
    hours_per_month: Annotated[Positive, Field(le=744)] = Decimal(730)
    """730 is the FinOps convention (365 x 24 / 12)."""
    other_monthly: tuple[MonthlyLine, ...] = ()
    assumed: tuple[str, ...] = ()
    """Fields that nobody gave and planner chose; each becomes a line of the report's assumptions."""

    @property
    def context(self) -> int:
        """Longest request to plan for, input and output together [tokens]."""
        return self.context_tokens or self.workload.context_tokens
