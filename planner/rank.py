"""One rank of a deployment: its memory lines and its block pool, and which rank governs."""

from dataclasses import dataclass

from planner.blocks import Layer
from planner.cache_groups import Group, group_layers
from planner.cache_specs import CacheRules, layer_specs
from planner.deployment import Deployment
from planner.engine_inputs import StaticReserve
from planner.memory import RankMemory, Term, activation_bytes, non_torch_bytes
from planner.pool import BlockPool, PlainPool, Pool, TokenPool
from planner.sharding import Stage, stages
from planner.units import counted, gib_to_bytes, scale_up
from planner.weights import loaded_bytes, rank_bytes


@dataclass(frozen=True, slots=True)
class Rank:
    """The memory and the block pool of each rank of one pipeline stage."""

    stage: Stage
    memory: RankMemory
    pool: Pool


def governing_rank(deployment: Deployment) -> Rank:
    """The pipeline stage that holds the fewest requests of the full context; the first of equals."""
    context = deployment.scenario.context
    every = stages(deployment.stack, deployment.ranks.pp)
    ranks = [_rank(deployment, stage) for stage in every if any(layer.mixers for layer in stage.layers)]
    return min(ranks, key=lambda r: (r.pool.requests(context), r.pool.num_blocks, r.memory.kv_budget.bytes))


def _rank(deployment: Deployment, stage: Stage) -> Rank:
    memory = rank_memory(deployment, stage)
    return Rank(stage, memory, make_pool(deployment, stage, memory.kv_budget.bytes))


def make_pool(deployment: Deployment, stage: Stage, kv_bytes: int) -> Pool:
    """The pool that the engine makes of a rank's KV bytes."""
    groups = stage_groups(stage.layers, deployment.rules)
    engine = deployment.scenario.engine
    if deployment.rules.one_pool:
        return BlockPool(groups, kv_bytes, engine.null_blocks, deployment.flight)
    if split := engine.token_pools:
        share = split.window_shares.get(str(deployment.scenario.model.config.get("model_type")), split.window_share)
        return TokenPool(groups, kv_bytes, deployment.flight, share, split.state_share)
    return PlainPool(groups, kv_bytes, deployment.flight)


def stage_groups(layers: tuple[Layer, ...], rules: CacheRules) -> tuple[Group, ...]:
    """The cache groups of a stage's layers."""
    counts = layer_specs(layers, rules)
    if rules.one_pool:
        return group_layers(counts)
    return tuple(Group(spec, count, count * spec.page_bytes) for spec, count in counts.items())


def rank_memory(deployment: Deployment, stage: Stage) -> RankMemory:
    """All memory lines of one rank of a stage; they sum to the device.

    With kv_cache_bytes the pool is what it says, and the reserve is what is then left (negative: over the device).
    """
    device, weights = deployment.device, _weights(deployment, stage)
    workspace = _workspace(deployment, stage)
    used = weights.bytes + sum(term.bytes for term in workspace)
    pool = deployment.scenario.engine_options.kv_cache_bytes
    if pool is not None:
        budget = Term("KV cache", pool, "given", "engine_options.kv_cache_bytes")
        reserve = Term("left over", device.bytes - used - pool, "computed", "device less the other lines")
        return RankMemory(device, weights, workspace, reserve, budget)
    reserve = _reserve(deployment, device.bytes - used)
    budget = Term("KV cache", device.bytes - used - reserve.bytes, "computed", "device less the other lines")
    return RankMemory(device, weights, workspace, reserve, budget)


def _weights(deployment: Deployment, stage: Stage) -> Term:
    given, model = deployment.scenario.memory.weights_gib, deployment.scenario.model
    if given is not None:
        return Term("weights", gib_to_bytes(given), "given", f"memory.weights_gib {given} GiB")
    stack, ranks, dtype = deployment.stack, deployment.ranks, deployment.dtype
    checkpoint = None
    if model.weights and deployment.scenario.engine_options.quantization is None:
        quantised = deployment.stored_quantised
        checkpoint = loaded_bytes(stack, model.weights, model.config, dtype, quantised=quantised)
    size = rank_bytes(stack, stage, ranks, dtype, deployment.quantisation, checkpoint)
    degrees = (("tp", ranks.tp), ("pp", ranks.pp), ("dp", ranks.dp), ("ep", ranks.ep))
    shape = " x ".join(f"{name} {degree}" for name, degree in degrees if degree > 1 or name == "tp")
    form = f"linear layers in {deployment.quantisation.name}, the rest in {dtype}" if deployment.quantisation else dtype
    text = f"{stack.parameters:,} parameters in {form}, vocabulary padded, over {shape}"
    if checkpoint is not None and model.weights:
        stored = ", ".join(f"{name} {size:,} B" for name, size in model.weights.bytes_by_dtype.items())
        read = f"{checkpoint:,} B loaded of {stored or f'{model.weights.total_bytes:,} B'} by {model.weights.source}"
        return Term("weights", size, "checkpoint", f"{text}; {read}", model.weights.source)
    return Term("weights", size, "computed", text)


def _workspace(deployment: Deployment, stage: Stage) -> tuple[Term, ...]:
    given, constants = deployment.scenario.memory.workspace_gib, deployment.scenario.engine.workspace
    if given is not None:
        return (Term("workspace", gib_to_bytes(given), "given", f"memory.workspace_gib {given} GiB"),)
    tokens, sequences = deployment.max_num_batched_tokens, deployment.max_num_seqs
    if constants is None or tokens is None or sequences is None:
        return ()
    basis, source = constants.basis, constants.source
    context = Term(
        "CUDA context and communication",
        non_torch_bytes(deployment.ranks, constants),
        basis,
        "outside torch's allocator",
        source,
    )
    if deployment.scenario.engine.static_reserve:
        return (context,)  # activations and graphs are inside the reserve
    activations = activation_bytes(
        deployment.stack, stage, deployment.ranks, deployment.dtype, tokens, sequences, constants
    )
    text = f"peak at {tokens:,} batched tokens and {sequences:,} sequences"
    return (
        Term("activations", activations, basis, text, source),
        context,
        Term("CUDA graphs", gib_to_bytes(constants.cuda_graph_gib), basis, "set aside at start-up", source),
    )


def _reserve(deployment: Deployment, free_bytes: int) -> Term:
    """What the engine leaves free: given, or by its own rule.

    free_bytes: what weights and workspace leave of the device
    """
    scenario, device = deployment.scenario, deployment.device
    if scenario.memory.reserve_gib is not None:
        given = scenario.memory.reserve_gib
        return Term("reserve", gib_to_bytes(given), "given", f"memory.reserve_gib {given} GiB")
    engine = scenario.engine
    if static := engine.static_reserve:
        return _static_reserve(deployment, static)
    if engine.free_memory_share is not None:
        kept = free_bytes - int(max(0, free_bytes) * engine.free_memory_share)
        text = f"{free_bytes:,} B free after loading x (1 - {engine.free_memory_share})"
        return Term("reserve", kept, "computed", text, engine.source)
    share = scenario.engine_options.gpu_memory_utilization or engine.gpu_memory_utilization
    if share is None:
        return Term("reserve", 0, "given", "none")
    requested = scale_up(device.bytes, share)
    text = f"{device.bytes:,} B - ceil({device.bytes:,} B x {share} gpu_memory_utilization)"
    return Term("reserve", device.bytes - requested, "computed", text, engine.source)


def _static_reserve(deployment: Deployment, static: StaticReserve) -> Term:
    """SGLang's reserve: metadata, chunked prefill, parallelism and graphs, and a floor on large devices."""
    chunk, ranks = deployment.max_num_batched_tokens or 0, deployment.ranks.tp * deployment.ranks.pp
    mib = static.base_mib + static.mib_per_chunk_token * chunk + static.graph_mib
    reserve = gib_to_bytes(mib / 1024 + static.gib_per_8_ranks * ranks / 8)
    floor = ""
    if deployment.device.bytes > gib_to_bytes(static.least_from_gib):
        reserve, floor = max(reserve, gib_to_bytes(static.least_gib)), f", at least {static.least_gib} GiB"
    text = (
        f"{static.base_mib} MiB + {static.mib_per_chunk_token} MiB x {chunk:,} tokens per chunk + "
        f"{static.graph_mib} MiB graphs + {static.gib_per_8_ranks} GiB x {counted(ranks, 'rank')} / 8{floor}"
    )
    return Term("reserve", reserve, "computed", text, deployment.scenario.engine.source)
