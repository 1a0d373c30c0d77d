"""How the cache and capacity figures came about, engine by engine, with the figures put in."""

from collections.abc import Iterator
from fractions import Fraction
from math import gcd

from planner.blocks import distinct
from planner.cache_groups import Group
from planner.cache_specs import CacheRules, token_bytes
from planner.deployment import Deployment
from planner.kv_cache import CacheSpec, Flight, Kind, head_bytes, rank_kv_heads
from planner.mixers import Attention, LatentAttention, Mixer
from planner.pool import BlockPool, Pool, TokenPool
from planner.rank import Rank
from planner.report import Capacity, Derivation, KvCache

GQA_SOURCE, FLASH_SOURCE = "Ainslie et al. 2023, arXiv:2305.13245", "Dao et al. 2022, arXiv:2205.14135"


def line(path: str, text: str, basis: str = "computed", source: str = "") -> Derivation:
    """One derivation; built without validation, since hundreds are and all parts are planner's own."""
    return Derivation.model_construct(path=path, text=text, basis=basis, source=source)


def cache_lines(deployment: Deployment, rank: Rank, cache: KvCache) -> Iterator[Derivation]:
    """One line for each figure of the KV cache."""
    context, pool, source = deployment.scenario.context, rank.pool, deployment.scenario.engine.source
    text = f"{_per_token(deployment, rank)} = {cache.bytes_per_token:,} B per token"
    yield line("kv_cache.bytes_per_token", text, source=GQA_SOURCE)
    if cache.state_bytes_per_request:
        parts = " + ".join(f"{g.layers} x {g.spec.state_bytes:,} B" for g in pool.groups if g.spec.state_bytes)
        yield line("kv_cache.state_bytes_per_request", f"{parts} = {cache.state_bytes_per_request:,} B", source=source)
    yield line("kv_cache.bytes_per_block", f"{_per_block(pool)} = {cache.bytes_per_block:,} B", source=source)
    text = f"{_blocks(pool, context)} = {cache.blocks_per_request:,} blocks"
    yield line("kv_cache.blocks_per_request", text, source=source)
    text = f"{_bytes(pool, context)} = {cache.bytes_per_request:,} B"
    yield line("kv_cache.bytes_per_request", text, source=source)
    held = " + ".join(f"{pool.held(g, context):,} {g.spec.kind.value}" for g in pool.groups)
    each = f" x {cache.bytes_per_block:,} B" if isinstance(pool, BlockPool) else " blocks, each its group's page"
    yield line("kv_cache.held_bytes_per_request", f"({held}){each} = {cache.held_bytes_per_request:,} B", source=source)
    text = f"{cache.wasted_tokens_per_request:,} positions of the last block beyond {context:,} tokens"
    yield line("kv_cache.wasted_tokens_per_request", text)
    if cache.score_matrix_bytes:
        heads = cache.score_matrix_bytes // (2 * context * context)
        text = f"{heads} heads [whole model] x {context:,}^2 x 2 B = {cache.score_matrix_bytes:,} B, if stored"
        yield line("kv_cache.score_matrix_bytes", text, source=FLASH_SOURCE)


def capacity_lines(deployment: Deployment, rank: Rank, capacity: Capacity) -> Iterator[Derivation]:
    """One line for each figure of the capacity."""
    scenario, pool, dp = deployment.scenario, rank.pool, deployment.ranks.dp
    source, ranks = scenario.engine.source, f" x dp {dp}" if dp > 1 else ""
    yield line("capacity.num_blocks", f"{_num_blocks(pool)} = {capacity.num_blocks:,} blocks", source=source)
    text = f"{_requests(pool, scenario.context)}{ranks} = {capacity.requests_per_replica:,} requests"
    yield line("capacity.requests_per_replica", text, source=source)
    mean = scenario.workload.mean_tokens
    if mean and capacity.requests_per_replica_at_mean is not None:
        text = f"{_requests(pool, mean)}{ranks} = {capacity.requests_per_replica_at_mean:,} requests of {mean:,} tokens"
        yield line("capacity.requests_per_replica_at_mean", text, source=source)
    per_request = pool.reserved_blocks(scenario.context)
    text = f"{capacity.num_blocks:,} / {per_request:,} = {capacity.max_concurrency:.4f} on one rank"
    yield line("capacity.max_concurrency", text, source=source)
    if capacity.max_num_seqs is not None:
        limit = f"{capacity.max_num_seqs:,} max_num_seqs{ranks}"
        text = f"min({capacity.requests_per_replica:,} by memory, {limit}) = {capacity.slots_per_replica:,}"
        yield line("capacity.slots_per_replica", text, source=source)
    positions = deployment.stack.max_positions
    text = f"longest of at most {positions:,} positions at which one request fits: {capacity.longest_context_tokens:,}"
    yield line("capacity.longest_context_tokens", text, source=source)


def _per_token(deployment: Deployment, rank: Rank) -> str:
    """By the shapes of attention where that is the whole story, else by what the groups' pages make of it."""
    pool = rank.pool
    counts: dict[Mixer, int] = {}
    for count, layer in distinct(rank.stage.layers):
        for mixer in layer.mixers:
            counts[mixer] = counts.get(mixer, 0) + count
    shapes = [_product(mixer, count, deployment.rules) for mixer, count in counts.items()]
    stage = f" [the governing stage of {deployment.ranks.pp}]" if deployment.ranks.pp > 1 else ""
    if len(pool.groups) == 1 and pool.groups[0].growing and all(shapes):
        return " + ".join(shape or "" for shape in shapes) + stage
    growing = [group for group in pool.groups if group.growing]
    if not growing:
        return f"0 B [no layer's cache grows with the context]{stage}"
    if isinstance(pool, BlockPool):
        terms = (f"{pool.bytes_per_block:,} B per block id / {group.spec.block_tokens} tokens" for group in growing)
        exact = sum(Fraction(pool.bytes_per_block, group.spec.block_tokens) for group in growing)
    else:
        terms = (f"{g.layers} {g.spec.kind.value} layers x {_page_per_token(g)}" for g in growing)
        exact = sum(Fraction(group.page_bytes, group.spec.block_tokens) for group in growing)
    text = " + ".join(terms)
    return (text if exact == int(exact) else f"ceil({text})") + stage


def _page_per_token(group: Group) -> str:
    """Bytes of one token in one layer of a group, as a fraction where they are not whole."""
    page, tokens = group.page_bytes // group.layers, group.spec.block_tokens
    divisor = gcd(page, tokens)
    return f"{page // divisor:,} B" + (f" / {tokens // divisor} tokens" if tokens > divisor else "")


def _product(mixer: Mixer, layers: int, rules: CacheRules) -> str | None:
    """Bytes of one token in all layers of one shape; None where that alone does not say it."""
    if isinstance(mixer, LatentAttention):
        index = f" + {layers} x {mixer.indexer.dim + 4} B index" if mixer.indexer else ""
        width = f"{token_bytes(mixer, rules):,} B [{mixer.kv_rank} + {mixer.rope_dim} latent, on every rank]"
        return f"{layers} layers x {width}{index}"
    if not isinstance(mixer, Attention) or not mixer.owns_cache or mixer.cross or mixer.index_key_dim:
        return None
    heads = rank_kv_heads(mixer.kv_heads, rules.tp)
    dtype = rules.model_dtype if mixer.ignores_kv_dtype else rules.kv_dtype
    key, value = head_bytes(mixer.key_dim, dtype), head_bytes(mixer.value_dim, dtype)
    stored = f"{layers} layers x {heads} KV head{'s' if heads != 1 else ''}"
    if mixer.key_dim != mixer.value_dim:
        return f"{stored} x ({key} + {value}) B"
    if key % mixer.key_dim:
        return f"2 x {stored} x {key} B [{mixer.key_dim} wide with scales]"
    return f"2 x {stored} x {mixer.key_dim} x {key // mixer.key_dim} B"


def _per_block(pool: Pool) -> str:
    if isinstance(pool, BlockPool):
        fullest = max(pool.groups, key=lambda group: group.page_bytes)
        which = f"[the fullest of {len(pool.groups)} groups] " if len(pool.groups) > 1 else ""
        return f"{which}{_page(fullest)}"
    if isinstance(pool, TokenPool):
        return f"[one token slot] {_token_cell(pool)}"
    growing = [group for group in pool.groups if group.growing] or pool.groups
    pages = " + ".join(f"{g.page_bytes:,} B [{g.layers} {g.spec.kind.value} layers]" for g in growing)
    return f"[one block of each layer that grows] {pages}"


def _page(group: Group) -> str:
    """One block of a group's layers, which are alike or, in a group of one type, of several sizes."""
    spec = group.spec
    if group.page_bytes == group.layers * spec.page_bytes:
        return f"{group.layers} {spec.kind.value} layers x {spec.page_bytes:,} B [{spec.block_tokens} tokens]"
    caches = f"{group.layers} {spec.kind.value} caches of several sizes"
    if group.page_bytes % spec.block_tokens:
        return f"{group.page_bytes:,} B [{caches}, {spec.block_tokens} tokens]"
    return f"{group.page_bytes // spec.block_tokens:,} B [{caches}] x {spec.block_tokens} tokens"


def _token_cell(pool: TokenPool) -> str:
    full, windows = pool.cell_parts
    if not full and not windows:
        return f"{pool.bytes_per_block:,} B [states of one request]"
    return (
        f"{full:,} B [full] + ceil({windows:,} B [windowed] x {pool.window_share})" if windows else f"{full:,} B [full]"
    )


def _blocks(pool: Pool, tokens: int) -> str:
    if isinstance(pool, BlockPool):
        return " + ".join(_rule(g.spec, tokens, pool.flight, pool.reserved(g, tokens)) for g in pool.groups)
    if isinstance(pool, TokenPool):
        return f"{tokens:,} token slots" if any(pool.cell_parts) else "1 [one request's states]"
    return f"ceil({pool.reserved_bytes(tokens):,} B / {pool.bytes_per_block:,} B)"


def _rule(spec: CacheSpec, tokens: int, flight: Flight, blocks: int) -> str:
    """The rule of one of vLLM's groups with the figures put in."""
    b, w = spec.block_tokens, spec.span_tokens
    rule = {
        Kind.WINDOW: f"ceil(min({w:,} - 1 + {flight.tokens:,} in flight, {tokens:,}) / {b}) + 1",
        Kind.CHUNK: f"ceil(min({w:,} + {flight.tokens:,} in flight, {tokens:,}) / {b})",
        Kind.CROSS: f"ceil({flight.batched_tokens:,} batched tokens / {b})",
        Kind.STATE: f"{spec.state_blocks} states",
    }.get(spec.kind, f"ceil({tokens:,} tokens / {b})")
    return f"{blocks:,} [{spec.kind.value}: {rule}]"


def _bytes(pool: Pool, tokens: int) -> str:
    if isinstance(pool, BlockPool):
        return f"{pool.reserved_blocks(tokens):,} blocks x {pool.bytes_per_block:,} B"
    return " + ".join(f"{pool.reserved(g, tokens):,} {g.spec.kind.value} x {g.page_bytes:,} B" for g in pool.groups)


def _num_blocks(pool: Pool) -> str:
    if isinstance(pool, TokenPool) and (share := pool.token_share) != 1:
        return f"({pool.kv_bytes:,} B x {share} [beside the states]) // {pool.bytes_per_block:,} B"
    return f"{max(0, pool.kv_bytes):,} B // {pool.bytes_per_block:,} B"


def _requests(pool: Pool, tokens: int) -> str:
    if isinstance(pool, BlockPool):
        null = f"({pool.num_blocks:,} blocks - {pool.null_blocks} null)" if pool.null_blocks else f"{pool.num_blocks:,}"
        return f"{null} // {pool.reserved_blocks(tokens):,}"
    if isinstance(pool, TokenPool):
        return "min(" + ", ".join(f"{count:,} by {what}" for what, count in pool.limits(tokens).items()) + ")"
    return f"{max(0, pool.kv_bytes):,} B // {pool.reserved_bytes(tokens):,} B"
