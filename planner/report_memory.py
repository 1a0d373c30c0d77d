"""Memory, cache and capacity as the report holds them."""

from planner.cache_groups import Group
from planner.cache_specs import mixers_of
from planner.deployment import Deployment
from planner.mixers import Attention, LatentAttention
from planner.pool import Pool, longest_context
from planner.rank import Rank
from planner.report import CacheAtContext, CacheGroup, Capacity, KvCache, Memory, MemoryLine


def memory_part(deployment: Deployment, rank: Rank) -> Memory:
    """Lines of device memory on the rank that governs."""
    memory = rank.memory
    terms = (memory.weights, *memory.workspace, memory.reserve, memory.kv_budget)
    return Memory(
        governing_rank=_rank_name(deployment, rank),
        device_bytes=memory.device.bytes,
        weights_bytes=memory.weights.bytes,
        workspace_bytes=memory.workspace_bytes,
        reserve_bytes=memory.reserve.bytes,
        kv_budget_bytes=memory.kv_budget.bytes,
        lines=tuple(MemoryLine(name=t.name, bytes=t.bytes, basis=t.basis) for t in terms),
    )


def _rank_name(deployment: Deployment, rank: Rank) -> str:
    ranks = deployment.ranks
    stage = f"pipeline stage {rank.stage.index + 1} of {ranks.pp}, " if ranks.pp > 1 else ""
    alike = f"any of {ranks.tp * ranks.dp} equal ranks" if ranks.tp * ranks.dp > 1 else "its only rank"
    return f"{stage}{alike}"


def cache_part(deployment: Deployment, pool: Pool) -> KvCache:
    """What one request takes."""
    context = deployment.scenario.context
    growing = next((group for group in pool.groups if group.growing), None)
    return KvCache(
        dtype=deployment.kv_dtype,
        block_tokens=deployment.block_tokens,
        bytes_per_block=pool.bytes_per_block,
        bytes_per_token=pool.bytes_per_token,
        state_bytes_per_request=sum(group.layers * group.spec.state_bytes for group in pool.groups),
        groups=tuple(_cache_group(pool, group, context) for group in pool.groups),
        blocks_per_request=pool.reserved_blocks(context),
        bytes_per_request=pool.reserved_bytes(context),
        held_bytes_per_request=pool.held_bytes(context),
        prefill_bytes_per_request=pool.prefill_bytes(context),
        wasted_tokens_per_request=pool.reserved(growing, context) * growing.spec.block_tokens - context
        if growing
        else 0,
        by_context=tuple(
            CacheAtContext(
                context_tokens=tokens, reserved_bytes=pool.reserved_bytes(tokens), held_bytes=pool.held_bytes(tokens)
            )
            for tokens in _curve(context)
        ),
        score_matrix_bytes=score_matrix_bytes(_query_heads(deployment), context),
    )


def _cache_group(pool: Pool, group: Group, context: int) -> CacheGroup:
    return CacheGroup(
        kind=group.spec.kind.value,
        layers=group.layers,
        block_tokens=group.spec.block_tokens,
        span_tokens=group.spec.span_tokens or None,
        page_bytes=group.page_bytes,
        reserved_blocks=pool.reserved(group, context),
        held_blocks=pool.held(group, context),
    )


def _query_heads(deployment: Deployment) -> int:
    """Most query heads of any layer; 0 for a model without attention."""
    mixers = mixers_of(deployment.stack.layers)
    attention = [m for m in mixers if isinstance(m, Attention | LatentAttention)]
    return max((m.query_heads if isinstance(m, Attention) else m.heads for m in attention), default=0)


def score_matrix_bytes(query_heads: int, context: int) -> int:
    """Scores of one layer and request if they were materialised in 2-byte numbers, as naive attention does.

        h * L^2 * 2

    query_heads: h, heads of the whole model [1]
    context: L, tokens [token]
    returns: bytes [B]
    source: Dao et al. 2022, arXiv:2205.14135 (tiled kernels never store them)
    """
    return query_heads * context * context * 2


def _curve(context: int) -> list[int]:
    """The context and the powers of two below it, from 1,024."""
    return [*(2**n for n in range(10, context.bit_length()) if 2**n < context), context]


def capacity_part(deployment: Deployment, pool: Pool) -> Capacity:
    """Requests that fit into one replica."""
    scenario, dp = deployment.scenario, deployment.ranks.dp
    context, mean = scenario.context, scenario.workload.mean_tokens
    requests, limit = pool.requests(context), deployment.max_num_seqs
    return Capacity(
        num_blocks=pool.num_blocks,
        usable_blocks=pool.usable_blocks,
        requests_per_replica=dp * requests,
        requests_per_replica_at_mean=dp * pool.requests(mean) if mean else None,
        max_concurrency=pool.num_blocks / pool.reserved_blocks(context),
        max_num_batched_tokens=deployment.max_num_batched_tokens,
        max_num_seqs=limit,
        slots_per_replica=dp * (min(requests, limit) if limit else requests),
        longest_context_tokens=longest_context(pool, 1, deployment.stack.max_positions),
    )
