"""What a recorded run of vLLM says of itself: model, version, device and the engine's settings."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, StrictBool

from planner.documents import load_json, validate
from planner.engine_inputs import version_numbers
from planner.errors import InputError
from planner.input_types import Count, Degree, Input, PositiveShare
from planner.origin import Origin
from planner.printable import Printable, shown

MOST_BYTES = 4 * 2**20
OLDEST = (0, 8)
"""vLLM's first version whose scheduler is the one that planner simulates, by default (V1)."""

Wanted = TypeVar("Wanted")
DataRanks = Annotated[int, Field(strict=True, ge=1, le=64)]


def _version(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}[0-9A-Za-z.+-]{0,80}", text):
        raise ValueError("a version such as 0.19.0 is needed")
    return text


class EngineArguments(Input):
    """What the run asked of its engine; an argument that planner does not know is refused."""

    model: Printable | None = None
    tensor_parallel_size: Degree = 1
    data_parallel_size: DataRanks = 1
    pipeline_parallel_size: Literal[1] = 1
    """A simulation has no pipeline stages."""
    enable_expert_parallel: StrictBool = False
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    max_model_len: Count | None = None
    dtype: Literal["auto", "bfloat16", "float16", "half", "float32", "float"] = "auto"
    kv_cache_dtype: Printable = "auto"
    quantization: Printable | None = None
    block_size: Count | None = None
    gpu_memory_utilization: PositiveShare | None = None
    enable_prefix_caching: StrictBool | None = None
    enable_chunked_prefill: Literal[True] | None = None
    async_scheduling: StrictBool | None = None
    enforce_eager: Literal[False] | None = None
    """Steps without captured graphs are not priced."""
    speculative_config: None = None
    disable_log_stats: StrictBool | None = None
    trust_remote_code: StrictBool | None = None
    seed: int | None = None


class _Open(Input):
    """A part of the record that describes more than a replay needs."""

    model_config = ConfigDict(extra="ignore")


class Cache(_Open):
    """The engine's cache as it was set up."""

    num_gpu_blocks: Count | None = None
    block_size: Count | None = None
    gpu_memory_utilization: PositiveShare | None = None
    enable_prefix_caching: StrictBool | None = None


class Scheduler(_Open):
    """The scheduler as the engine resolved it."""

    async_scheduling: StrictBool | None = None
    enable_chunked_prefill: Literal[True] | None = None
    max_num_batched_tokens: Count | None = None
    max_num_seqs: Count | None = None
    policy: Literal["fcfs"] = "fcfs"
    scheduler_reserve_full_isl: StrictBool | None = None


class Parallel(_Open):
    """Ranks as the engine resolved them; a replay knows none of those that can only be 1."""

    tensor_parallel_size: Degree = 1
    data_parallel_size: DataRanks = 1
    enable_expert_parallel: StrictBool = False
    pipeline_parallel_size: Literal[1] = 1
    prefill_context_parallel_size: Literal[1] = 1
    decode_context_parallel_size: Literal[1] = 1


class Served(_Open):
    """The model as the engine resolved it."""

    max_model_len: Count | None = None
    quantization: Printable | None = None
    enforce_eager: Literal[False] = False


class Resolved(_Open):
    """The engine's whole configuration, where the run recorded it."""

    cache_config: Cache = Cache()
    scheduler_config: Scheduler = Scheduler()
    parallel_config: Parallel = Parallel()
    served: Served = Field(default=Served(), alias="model_config")
    speculative_config: None = None


class Hardware(_Open):
    """The device."""

    device_name: Printable | None = None
    device_total_memory_bytes: Count | None = None


class Meta(_Open):
    """The record of a run; what it says of the benchmark is not read."""

    model: Printable
    vllm_version: Annotated[Printable, AfterValidator(_version)]
    engine_kwargs: EngineArguments
    kv_cache: Cache = Cache()
    hardware: Hardware = Hardware()
    resolved_config: Resolved = Resolved()

    @property
    def tp(self) -> int:
        """Tensor parallel ranks: as resolved or as asked for, whichever is not left at 1."""
        return max(self.resolved_config.parallel_config.tensor_parallel_size, self.engine_kwargs.tensor_parallel_size)

    @property
    def dp(self) -> int:
        """Data parallel ranks, likewise."""
        return max(self.resolved_config.parallel_config.data_parallel_size, self.engine_kwargs.data_parallel_size)

    @property
    def expert_parallel(self) -> bool:
        """Whole experts on each rank, likewise."""
        resolved = self.resolved_config.parallel_config.enable_expert_parallel
        return resolved or self.engine_kwargs.enable_expert_parallel

    @property
    def max_num_seqs(self) -> int | None:
        """As resolved, else as asked for."""
        return _first(self.resolved_config.scheduler_config.max_num_seqs, self.engine_kwargs.max_num_seqs)

    @property
    def max_num_batched_tokens(self) -> int | None:
        """As resolved, else as asked for."""
        resolved = self.resolved_config.scheduler_config.max_num_batched_tokens
        return _first(resolved, self.engine_kwargs.max_num_batched_tokens)

    @property
    def max_model_len(self) -> int | None:
        """As resolved, else as asked for; None: the model's positions."""
        return _first(self.resolved_config.served.max_model_len, self.engine_kwargs.max_model_len)

    @property
    def num_gpu_blocks(self) -> int | None:
        """Blocks of the pool, the null block included."""
        return _first(self.kv_cache.num_gpu_blocks, self.resolved_config.cache_config.num_gpu_blocks)

    @property
    def gpu_memory_utilization(self) -> Decimal | None:
        """As resolved, else as asked for."""
        return _first(
            self.kv_cache.gpu_memory_utilization,
            self.resolved_config.cache_config.gpu_memory_utilization,
            self.engine_kwargs.gpu_memory_utilization,
        )

    @property
    def quantization(self) -> str | None:
        """Form of the weights, where it is not the checkpoint's own."""
        return _first(self.engine_kwargs.quantization, self.resolved_config.served.quantization)

    @property
    def prefix_caching(self) -> bool:
        """On by default (vLLM from 0.8)."""
        found = _first(
            self.kv_cache.enable_prefix_caching,
            self.resolved_config.cache_config.enable_prefix_caching,
            self.engine_kwargs.enable_prefix_caching,
        )
        return True if found is None else found

    @property
    def async_scheduling(self) -> bool | None:
        """Whether steps are scheduled ahead; None: as its version does by default."""
        return _first(self.resolved_config.scheduler_config.async_scheduling, self.engine_kwargs.async_scheduling)


def _first(*values: Wanted | None) -> Wanted | None:
    """The first that was recorded."""
    return next((value for value in values if value is not None), None)


def read_meta(path: Path) -> Meta:
    """The record of a run.

    raises: InputError with file, line and field of everything that is wrong or that planner does not replay
    """
    fields: dict[str, Any] = load_json(path, MOST_BYTES)
    meta = validate(Meta, fields, Origin(str(path)))
    numbers = version_numbers(meta.vllm_version)
    if numbers < OLDEST:
        raise InputError(
            f"{Origin(str(path)).at('vllm_version')}: {shown(meta.vllm_version)} has another scheduler than planner "
            f"simulates; accepted: {'.'.join(map(str, OLDEST))} and later, such as 0.19.0"
        )
    return meta
