"""Validated inputs: what a file or a flag may say. Frozen, closed, and described for `planner schema`."""

from datetime import date
from decimal import Decimal, localcontext
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema, model_validator

from planner.calibration import Calibration
from planner.engine_inputs import Engine
from planner.input_types import Count, CountOrNone, Degree, Input, Number, Positive, PositiveShare, Share
from planner.money_inputs import ApiPrice, MonthlyLine
from planner.origin import Origin
from planner.printable import Name, Printable
from planner.units import counted, show_rate
from planner.workload_inputs import Workload


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
    """US dollars per unit and hour: what is paid."""
    list_usd_per_hour: Positive | None = None
    """On demand, before any discount; absent: that of an on_demand price is what is paid, and of others not known."""
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
    def list_rate(self) -> Decimal | None:
        """Dollars per unit and hour before any discount; None where nobody says."""
        return self.list_usd_per_hour or (self.usd_per_hour if self.term == "on_demand" else None)

    @property
    def named(self) -> str:
        """Who sells what, on which term."""
        return " ".join(part for part in (self.provider, self.instance, self.region, self.term) if part)

    @property
    def sold_whole(self) -> bool:
        """Several devices are sold as one unit, or a named instance is."""
        return self.instance is not None or self.devices > 1

    @property
    def label(self) -> str:
        """How a report names it: dollars per device-hour, and what is sold by whom."""
        rate = show_rate(self.usd_per_hour / self.devices)
        whole = f" ({show_rate(self.usd_per_hour)} for {self.devices})" if self.devices > 1 else ""
        return f"{rate} per device-hour{whole}, {self.named}"


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


RATE_DIGITS = 9
"""Of a rate that is computed from a month's requests."""
MOST_UNCERTAIN = 4
"""Fields that may be uncertain at once: each triples the worlds that are planned."""


class _ByName:
    """Marks a field that a file may fill with a shipped name or a path instead of the fields themselves."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "description": "A shipped name or a file's path."}, handler(schema)]}


class Failures(Input):
    """How often devices fail and how long repairs take."""

    name: Name | None = None
    title: Printable | None = None
    device_hours_per_failure: Positive
    """Hours of one device per failure, over all devices [h]."""
    mttr_hours: Positive
    """From a failure to a working node [h]."""
    source: Printable
    as_of: date | None = None
    assumed: tuple[str, ...] = ()
    """Fields that are an assumption and not from the source."""


class Spares(Input):
    """Replicas beyond the active ones: a fraction of them, rounded up, or a number, or what an availability needs."""

    fraction: Share | None = None
    replicas: CountOrNone | None = None
    replica_availability: Annotated[Share, Field(lt=1)] | None = None
    """Share of the time that one replica works; the workload's objectives.availability then says how many spares."""
    failures: Annotated[Failures | None, _ByName()] = None
    """The same from how often devices fail: a node fails with any of its devices, and its replicas with it."""
    devices_per_node: Degree | None = None
    """Devices that fail together; absent: those of the price's instance."""
    zones: Annotated[int, Field(strict=True, ge=2, le=100)] | None = None
    """Zones over which replicas are spread, of which one may fail."""

    @model_validator(mode="after")
    def _one_rule(self) -> "Spares":
        rules = (self.fraction, self.replicas, self.replica_availability, self.failures)
        if sum(rule is not None for rule in rules) != 1:
            raise ValueError("give one of fraction, replicas, replica_availability and failures")
        return self

    @property
    def by_availability(self) -> bool:
        """They follow from the workload's objectives.availability."""
        return self.replica_availability is not None or self.failures is not None


class Growth(Input):
    """How the load grows."""

    per_month: Annotated[Number, Field(le=10)]
    """Share by which each month's load exceeds the one before: 0.05 for 5 %."""
    months: Annotated[int, Field(strict=True, ge=1, le=120)]
    """Months to plan, this one included."""


class Interval(Input):
    """A figure that nobody knows exactly."""

    low: Number
    """One in ten expects less."""
    mid: Number
    high: Number
    """One in ten expects more."""

    @model_validator(mode="after")
    def _ascending(self) -> "Interval":
        if not self.low <= self.mid <= self.high:
            raise ValueError(f"low {self.low}, mid {self.mid} and high {self.high} must ascend")
        return self


class Commitment(Input):
    """Devices that are billed all hours, used or not; what the fleet takes beyond them is at the scenario's price."""

    devices: Count
    """Accelerators committed to; where they are sold by the instance, whole instances that hold them are billed."""
    price: Annotated[Price, _ByName()]
    peak_hours_share: PositiveShare = Decimal(1)
    """Share of the hours in which the devices beyond the commitment are held; in the others it serves alone."""

    @property
    def label(self) -> str:
        """How a report names it."""
        return f"{counted(self.devices, 'device')} at {self.price.label}"


def _as_in_a_file(schema: dict[str, Any]) -> None:
    """What a scenario file must hold: names for three inputs; planner fills the rest."""
    schema["required"] = ["model", "accelerator", "workload"]
    del schema["properties"]["assumed"]


class Scenario(Input):
    """Everything one estimate depends on.

    In a file, model, accelerator, engine, workload, price and calibration may be names.
    """

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
    calibration: Annotated[Calibration | None, _ByName()] = None
    """Kernel constants that price its steps; absent: those that ship for this device."""
    spares: Spares = Spares(fraction=Decimal("0.2"))
    price: Annotated[Price, _ByName()]
    commitment: Commitment | None = None
    """Devices paid for whether used or not; price is then that of the devices beyond it."""
    priced_on: date | None = Field(default=None, exclude=True)
    """Day against which prices are dated; absent: only undated ones count as stale. Not part of the inputs' digest."""
    price_stale_days: Count = 180
    """Age beyond which a price is stale."""
    hours_per_month: Annotated[Positive, Field(le=744)] = Decimal(730)
    """730 is the FinOps convention (365 x 24 / 12)."""
    other_monthly: tuple[MonthlyLine, ...] = ()
    api_price: ApiPrice | None = None
    """A hosted API to compare the fleet with."""
    growth: Growth | None = None
    uncertain: Annotated[dict[str, Interval], Field(max_length=MOST_UNCERTAIN)] = Field(default={})
    """Fields whose value is not known, by dotted path, such as workload.concurrency: low, mid and high of each."""
    assumed: tuple[str, ...] = ()
    """Fields that nobody gave and planner chose; each becomes a line of the report's assumptions."""

    @model_validator(mode="after")
    def _availability_has_its_figures(self) -> "Scenario":
        asked, given = self.workload.objectives.availability, self.spares.by_availability
        if asked is not None and not given:
            raise ValueError(
                "workload.objectives.availability needs spares.replica_availability or spares.failures: how often "
                "replicas work"
            )
        if given and asked is None:
            raise ValueError("spares.replica_availability and failures need workload.objectives.availability")
        return self

    @model_validator(mode="after")
    def _api_bills_by_the_token(self) -> "Scenario":
        if self.api_price and self.workload.mean_tokens is None:
            raise ValueError(
                "api_price needs workload.input_tokens and workload.output_tokens: an API bills by the token"
            )
        return self

    @property
    def arrivals_per_s(self) -> Decimal | None:
        """Requests that arrive at the peak [1/s]: given, or the month's mean times the peak over it."""
        workload = self.workload
        if workload.arrivals_per_s is not None or workload.concurrency is not None:
            return workload.arrivals_per_s
        peak = Decimal(workload.requests_per_month or 0) * (workload.peak_to_mean or 1)
        with localcontext(prec=RATE_DIGITS):
            return peak / (self.hours_per_month * 3600)

    @property
    def context(self) -> int:
        """Longest request to plan for, input and output together [tokens]."""
        return self.context_tokens or self.workload.context_tokens
