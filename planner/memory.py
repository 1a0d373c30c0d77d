"""Device memory of one rank: weights + workspace + reserve + KV cache = what the device has."""

from dataclasses import dataclass
from decimal import Decimal

from planner.blocks import Moe, Stack, distinct
from planner.engine_inputs import Engine, SchedulerDefaults, Workspace
from planner.inputs import Accelerator, MemoryGiven
from planner.report_base import Basis
from planner.sharding import VOCAB_PADDING, Ranks, Stage
from planner.units import DTYPE_BYTES, MIB, ceil_div, gib_to_bytes, round_up, scale_up


@dataclass(frozen=True, slots=True)
class Term:
    """One line of a rank's memory."""

    name: str
    bytes: int
    basis: Basis
    text: str
    """The arithmetic, with the numbers put in."""
    source: str = ""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """All lines of one rank; they sum to the device."""

    device: Term
    weights: Term
    workspace: tuple[Term, ...]
    reserve: Term
    kv_budget: Term

    @property
    def workspace_bytes(self) -> int:
        """Activations, CUDA context, communication buffers and graphs [B]."""
        return sum(term.bytes for term in self.workspace)


def device_memory(gpu: Accelerator, given: MemoryGiven) -> Term:
    """What the engine can see of the device [B]."""
    if given.device_gib is not None:
        size = gib_to_bytes(given.device_gib)
        return Term("device", size, "given", f"memory.device_gib {given.device_gib} GiB")
    if gpu.engine_visible_mib is not None:
        text = f"{gpu.engine_visible_mib:,} MiB visible to the engine (the driver reports {gpu.memory_mib:,})"
        return Term("device", gpu.engine_visible_mib * MIB, "measured", text, gpu.engine_visible_source or gpu.source)
    text = f"{gpu.memory_mib:,} MiB as the driver reports it"
    return Term("device", gpu.memory_mib * MIB, "datasheet", text, gpu.source)


def scheduler_defaults(engine: Engine, gpu: Accelerator, device_bytes: int) -> SchedulerDefaults | None:
    """The engine's scheduler defaults on this device; None for an engine that has none."""
    for row in engine.scheduler:
        excepted = any(gpu.name.startswith(prefix) for prefix in row.except_accelerators)
        if device_bytes >= gib_to_bytes(row.least_device_gib) and not excepted:
            return row
    return None


def sampler_bytes(sequences: int, vocabulary: int, logit_bytes: int, extra: Decimal) -> int:
    """Peak of the sampling step: logits of every sequence over the whole vocabulary, and copies beside them.

        s * v * (e + x)

    sequences: s, max_num_seqs [1]
    vocabulary: v, padded entries [1]
    logit_bytes: e, bytes of one logit in the model's dtype [B]
    extra: x, measured bytes beside each logit [B]
    returns: bytes [B]
    source: form and x read off vLLM 0.19 start-up logs (profiles/engines/vllm-0.19.yaml)
    """
    return scale_up(sequences * vocabulary, logit_bytes + extra)


def forward_bytes(tokens: int, mlp_width: int, hidden: int, element_bytes: int, workspace: Workspace) -> int:
    """Live activations at the widest point of a layer.

        t * (a * i + c * h) * e

    tokens: t, max_num_batched_tokens [token]
    mlp_width: i, intermediate size on the rank [1]
    hidden: h, hidden size [1]
    element_bytes: e, bytes of one activation [B]
    workspace: a and c, measured widths [1]
    returns: bytes [B]
    source: form and widths read off vLLM 0.19 start-up logs (profiles/engines/vllm-0.19.yaml)
    """
    widths = workspace.forward_mlp_widths * mlp_width + workspace.forward_hidden_widths * hidden
    return scale_up(tokens * element_bytes, widths)


def expert_workspace_bytes(tokens: int, top_k: int, width: int, hidden: int, element_bytes: int) -> int:
    """Buffers of the fused expert kernel, kept beside the sampler's peak.

        t * k * (max(i, h) + max(2 i, h)) * e

    tokens: t, max_num_batched_tokens [token]
    top_k: k, experts per token [1]
    width: i, one expert's intermediate size on the rank [1]
    hidden: h, hidden size [1]
    element_bytes: e, bytes of one activation [B]
    returns: bytes [B]
    source: vLLM 0.19, layers/fused_moe/fused_moe.py workspace_shapes
    """
    return tokens * top_k * (max(width, hidden) + max(2 * width, hidden)) * element_bytes


def activation_bytes(
    stack: Stack, stage: Stage, ranks: Ranks, dtype: str, tokens: int, sequences: int, workspace: Workspace
) -> int:
    """Peak of activations on one rank while the engine profiles itself at start-up [B]."""
    element, hidden = DTYPE_BYTES[dtype], stack.embedding.hidden
    peak = experts = 0
    for _, layer in distinct(stage.layers):
        ffn = layer.ffn
        if ffn is None:
            continue
        if isinstance(ffn, Moe):
            width = ffn.intermediate if ranks.ep > 1 else ceil_div(ffn.intermediate, ranks.expert_ranks)
            experts = max(experts, expert_workspace_bytes(tokens, ffn.top_k, width, hidden, element))
        else:
            width = ceil_div(ffn.intermediate, ranks.tp)
            peak = max(peak, forward_bytes(tokens, width, hidden, element, workspace))
    if stage.last:
        vocabulary = round_up(stack.embedding.vocab, VOCAB_PADDING)
        logits = sampler_bytes(sequences, vocabulary, element, workspace.sampler_bytes_per_logit)
        peak = max(peak, logits + tokens * hidden * element)
    return peak + experts


def non_torch_bytes(ranks: Ranks, workspace: Workspace) -> int:
    """CUDA context, libraries and communication buffers of one rank [B]."""
    if ranks.tp > 1:
        return gib_to_bytes(workspace.non_torch_tp_gib)
    return gib_to_bytes(workspace.non_torch_pp_gib if ranks.pp > 1 else workspace.non_torch_gib)
