"""Engine profiles: a serving engine's rules and defaults, by version."""

from datetime import date
from typing import Literal

from pydantic import Field

from planner.input_types import Count, CountOrNone, Input, Number, Share
from planner.printable import Name, Printable


class SchedulerDefaults(Input):
    """What the engine's scheduler does by default on devices of at least this memory."""

    least_device_gib: Number
    except_accelerators: tuple[str, ...] = ()
    """Accelerators that take the next smaller row in spite of their memory (names begin with)."""
    max_num_batched_tokens: Count
    max_num_seqs: Count


class Workspace(Input):
    """Constants of one engine version for memory that is neither weights nor cache."""

    sampler_bytes_per_logit: Number
    """Beside the logits themselves: float32 copies, sorting and probabilities [B per sequence and entry]."""
    forward_mlp_widths: Number
    """Live activations of the feed-forward, in intermediate sizes per token."""
    forward_hidden_widths: Number
    """Live activations beside them, in hidden sizes per token."""
    non_torch_gib: Number
    """CUDA context and libraries, one rank [GiB]."""
    non_torch_tp_gib: Number
    """The same with tensor parallelism, communication buffers included [GiB]."""
    non_torch_pp_gib: Number
    """The same with pipeline stages and no tensor parallelism [GiB]."""
    cuda_graph_gib: Number
    """What the engine sets aside for CUDA graphs [GiB]."""
    basis: Literal["measured", "assumed"]
    source: Printable


class StaticReserve(Input):
    """Memory that SGLang keeps free beside weights and cache: one minus its mem_fraction_static."""

    base_mib: Number
    mib_per_chunk_token: Number
    """Per token of chunked_prefill_size."""
    gib_per_8_ranks: Number
    graph_mib: Number
    """CUDA graphs at the default largest batch."""
    least_gib: Number
    """Least reserve on devices of more than least_from_gib."""
    least_from_gib: Number


class TokenPools(Input):
    """SGLang's split of its cache memory."""

    window_share: Number
    """Tokens of the windowed pool per token of the full one."""
    window_shares: dict[str, Number] = Field(default={})
    """The same of model types that have a default of their own."""
    state_share: Share
    """Share of the cache memory that states take in hybrids."""
    windows_as_full: tuple[Printable, ...] = ()
    """Model types whose windowed layers keep the full length."""


class Engine(Input):
    """A serving engine's rules and defaults, by version."""

    name: Name
    kind: Literal["vllm", "sglang", "tensorrt-llm", "generic"]
    """Which rules apply: an engine's own, or the plain formula."""
    version: Printable | None = None
    block_tokens: Count
    """Tokens per cache block by default."""
    block_tokens_multiple: Count = 1
    """A block size that is asked for must be a multiple of this."""
    null_blocks: CountOrNone
    """Blocks of the pool that no request can use."""
    kv_dtypes: tuple[str, ...]
    """KV cache dtypes that it accepts."""
    gpu_memory_utilization: Share | None = None
    """Share of device memory that it takes by default; absent: memory terms must be given."""
    static_reserve: StaticReserve | None = None
    token_pools: TokenPools | None = None
    free_memory_share: Share | None = None
    """Share of the memory free after loading that becomes cache."""
    steps_in_flight: Count = 1
    """Engine steps whose tokens can be in flight at once: 2 with asynchronous scheduling."""
    refuses: dict[str, Printable] = Field(default={})
    """Model types, architectures and kinds of quantised weights that this version does not serve, and why."""
    scheduler: tuple[SchedulerDefaults, ...] = ()
    """By device memory, largest first; the first row that applies counts."""
    workspace: Workspace | None = None
    source: Printable
    as_of: date
    notes: Printable | None = None


def version_numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; none where it has none."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
