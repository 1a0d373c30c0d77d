"""How each number came about, with the figures put in, and where the inputs came from."""

from collections.abc import Iterator

from planner.blocks import runs
from planner.cache_specs import CacheRules, token_bytes
from planner.deployment import Deployment
from planner.inputs import Scenario
from planner.kv_cache import CacheSpec, Flight, Kind, head_bytes, rank_kv_heads
from planner.memory import RankMemory
from planner.mixers import Attention, CompressedAttention, LatentAttention, Mixer, State
from planner.rank import Rank
from planner.report import Capacity, Cost, Derivation, Fleet, KvCache, PrefixReuse, Source


def derivations(
    deployment: Deployment,
    rank: Rank,
    cache: KvCache,
    capacity: Capacity,
    fleet: Fleet | None,
    cost: Cost | None,
    prefix: PrefixReuse | None,
) -> tuple[Derivation, ...]:
    """One line for each number of the report."""
    lines = [
        *_model(deployment),
        *_memory(rank.memory),
        *_cache(deployment, rank, cache),
        *_capacity(deployment, cache, capacity),
    ]
    if fleet and cost:
        lines += [*_fleet(deployment, capacity, fleet), *_cost(deployment.scenario, cost)]
    if prefix:
        reuse = deployment.scenario.workload.prefix
        shared = reuse.shared_tokens if reuse else 0
        text = f"{prefix.requests_per_month:,} requests x {shared:,} tokens"
        total = f"{prefix.saved_positions_per_month:,} positions"
        lines.append(_line("prefix.saved_positions_per_month", f"{text} = {total}"))
    return tuple(lines)


def sources(scenario: Scenario) -> tuple[Source, ...]:
    """Where model, accelerator, engine, workload and price came from."""
    model, gpu, engine = scenario.model, scenario.accelerator, scenario.engine
    workload, price = scenario.workload, scenario.price
    return (
        Source(what=f"model {model.name}", source=model.source, as_of=model.as_of, licence=model.licence),
        Source(what=f"accelerator {gpu.name}", source=gpu.source, as_of=gpu.as_of, licence=None),
        Source(what=f"engine {engine.name}", source=engine.source, as_of=engine.as_of, licence=None),
        Source(
            what=f"workload {workload.name}",
            source=workload.source,
            as_of=workload.as_of,
            licence=workload.licence,
        ),
        Source(what=f"price, {price.label}", source=price.source, as_of=price.as_of, licence=price.licence),
    )


def _line(path: str, text: str, basis: str = "computed", source: str = "") -> Derivation:
    return Derivation.model_construct(path=path, text=text, basis=basis, source=source)


def _model(deployment: Deployment) -> Iterator[Derivation]:
    stack, config = deployment.stack, deployment.scenario.model
    text = f"{stack.parameters:,} numbers in all weights of {config.name}"
    yield _line("model.parameters", text, "config", config.source)
    text = f"{stack.active_parameters:,} of them used for one token"
    yield _line("model.active_parameters", text, "config", config.source)


def _memory(memory: RankMemory) -> Iterator[Derivation]:
    device = memory.device
    yield _line("memory.device_bytes", f"{device.text} = {device.bytes:,} B", device.basis, device.source)
    weights = memory.weights
    yield _line("memory.weights_bytes", f"{weights.text} = {weights.bytes:,} B", weights.basis, weights.source)
    parts = " + ".join(f"{term.bytes:,} B {term.name} ({term.text})" for term in memory.workspace) or "0 B"
    basis = memory.workspace[0].basis if memory.workspace else "computed"
    source = memory.workspace[0].source if memory.workspace else ""
    yield _line("memory.workspace_bytes", parts, basis, source)
    reserve = memory.reserve
    yield _line("memory.reserve_bytes", f"{reserve.text} = {reserve.bytes:,} B", reserve.basis, reserve.source)
    budget = memory.kv_budget
    text = (
        f"{device.bytes:,} - {weights.bytes:,} weights - {memory.workspace_bytes:,} workspace - "
        f"{reserve.bytes:,} reserve = {budget.bytes:,} B"
        if budget.basis == "computed"
        else f"{budget.text} = {budget.bytes:,} B"
    )
    yield _line("memory.kv_budget_bytes", text, budget.basis)


def _cache(deployment: Deployment, rank: Rank, cache: KvCache) -> Iterator[Derivation]:
    pool = rank.pool
    context, block = deployment.scenario.context, cache.block_tokens
    source = deployment.scenario.engine.source
    text = f"{_per_token(deployment, rank, cache)} = {cache.bytes_per_token:,} B per token"
    yield _line("kv_cache.bytes_per_token", text, "computed", "Ainslie et al. 2023, arXiv:2305.13245")
    if cache.state_bytes_per_request:
        parts = [f"{g.layers} x {g.spec.state_bytes:,} B" for g in pool.groups if g.spec.state_bytes]
        yield _line("kv_cache.state_bytes_per_request", f"{' + '.join(parts)} = {cache.state_bytes_per_request:,} B")
    text = f"the fullest of {len(cache.groups)} groups: {_group(cache)} = {cache.bytes_per_block:,} B"
    if len(cache.groups) == 1 and cache.bytes_per_token:
        text = f"{cache.bytes_per_token:,} B x {block} tokens = {cache.bytes_per_block:,} B"
    yield _line("kv_cache.bytes_per_block", text, "computed", source)
    text = " + ".join(
        _reserved(group.spec, context, pool.flight, pool.reserved(group, context)) for group in pool.groups
    )
    yield _line("kv_cache.blocks_per_request", f"{text} = {cache.blocks_per_request:,} blocks", "computed", source)
    text = f"{cache.blocks_per_request:,} blocks x {cache.bytes_per_block:,} B = {cache.bytes_per_request:,} B"
    yield _line("kv_cache.bytes_per_request", text)
    text = f"{cache.wasted_tokens_per_request:,} positions of the last block beyond {context:,} tokens"
    yield _line("kv_cache.wasted_tokens_per_request", text)
    if cache.score_matrix_bytes:
        heads = cache.score_matrix_bytes // (2 * context * context)
        text = f"{heads} heads x {context:,}^2 x 2 B = {cache.score_matrix_bytes:,} B per layer and request, if stored"
        yield _line("kv_cache.score_matrix_bytes", text, "computed", "Dao et al. 2022, arXiv:2205.14135")


def _group(cache: KvCache) -> str:
    fullest = max(cache.groups, key=lambda group: group.page_bytes)
    return f"{fullest.layers} {fullest.kind} layers"


def _reserved(spec: CacheSpec, context: int, flight: Flight, blocks: int) -> str:
    """The rule of one group with the figures put in."""
    b, w = spec.block_tokens, spec.span_tokens
    rule = {
        Kind.WINDOW: f"ceil(min({w:,} - 1 + {flight.tokens:,} in flight, {context:,}) / {b}) + 1",
        Kind.CHUNK: f"ceil(min({w:,} + {flight.tokens:,} in flight, {context:,}) / {b})",
        Kind.CROSS: f"ceil({flight.batched_tokens:,} batched tokens / {b})",
        Kind.STATE: f"{spec.state_blocks} states",
    }.get(spec.kind, f"ceil({context:,} tokens / {b})")
    return f"{blocks:,} [{spec.kind.value}: {rule}]"


def _per_token(deployment: Deployment, rank: Rank, cache: KvCache) -> str:
    """2 x 32 layers x 8 KV heads x 128 x 2 B, one such product per shape of attention that grows with the context."""
    counts: dict[Mixer, int] = {}
    for count, layer in runs(rank.stage.layers):
        for mixer in layer.mixers:
            counts[mixer] = counts.get(mixer, 0) + count
    products = [_product(mixer, count, deployment.rules) for mixer, count in counts.items() if _grows(mixer)]
    shared = " (a block id costs as much as the fullest group's block)" if len(cache.groups) > 1 else ""
    stage = f" in the governing stage of {deployment.ranks.pp}" if deployment.ranks.pp > 1 else ""
    return (" + ".join(products) or "no layer's cache grows") + shared + stage


def _grows(mixer: Mixer) -> bool:
    if isinstance(mixer, Attention):
        return mixer.owns_cache and not mixer.cross and mixer.window is None and mixer.chunk is None
    return not isinstance(mixer, State)


def _product(mixer: Mixer, layers: int, rules: CacheRules) -> str:
    if isinstance(mixer, CompressedAttention):
        return f"{layers} layers of one state per {mixer.ratio or 'window'} tokens"
    if isinstance(mixer, LatentAttention):
        width = f"({mixer.kv_rank} + {mixer.rope_dim} latent)"
        return f"{layers} layers x {width}: {token_bytes(mixer, rules)} B, the same on every rank"
    if not isinstance(mixer, Attention):
        return ""
    heads, dtype = (
        rank_kv_heads(mixer.kv_heads, rules.tp),
        rules.model_dtype if mixer.ignores_kv_dtype else rules.kv_dtype,
    )
    key, value = head_bytes(mixer.key_dim, dtype), head_bytes(mixer.value_dim, dtype)
    if mixer.key_dim != mixer.value_dim:
        return f"{layers} layers x {heads} KV heads x ({key} + {value}) B"
    if key % mixer.key_dim:
        return f"2 x {layers} layers x {heads} KV heads x {key} B ({mixer.key_dim} wide with scales)"
    return f"2 x {layers} layers x {heads} KV heads x {mixer.key_dim} x {key // mixer.key_dim} B"


def _capacity(deployment: Deployment, cache: KvCache, capacity: Capacity) -> Iterator[Derivation]:
    engine, dp = deployment.scenario.engine, deployment.ranks.dp
    source = engine.source
    text = f"KV budget // {cache.bytes_per_block:,} B = {capacity.num_blocks:,} blocks"
    yield _line("capacity.num_blocks", text, "computed", source)
    per_rank = f"{capacity.num_blocks:,} blocks"
    if engine.null_blocks:
        per_rank = f"({per_rank} - {engine.null_blocks} null)"
    ranks = f" x dp {dp}" if dp > 1 else ""
    text = f"{per_rank} // {cache.blocks_per_request:,}{ranks} = {capacity.requests_per_replica:,} requests"
    yield _line("capacity.requests_per_replica", text, "computed", source)
    text = f"{capacity.num_blocks:,} / {cache.blocks_per_request:,}{ranks} = {capacity.max_concurrency:.4f}"
    yield _line("capacity.max_concurrency", text, "computed", source)
    if capacity.max_num_seqs is not None:
        text = f"min({capacity.requests_per_replica:,} by memory, {capacity.max_num_seqs:,} max_num_seqs)"
        yield _line("capacity.slots_per_replica", f"{text} = {capacity.slots_per_replica:,}", "computed", source)


def _fleet(deployment: Deployment, capacity: Capacity, fleet: Fleet) -> Iterator[Derivation]:
    scenario = deployment.scenario
    text = f"ceil({scenario.workload.concurrency:,} active requests / {capacity.slots_per_replica:,})"
    yield _line("fleet.active_replicas", f"{text} = {fleet.active_replicas:,}")
    fraction = scenario.spares.fraction
    text = f"ceil({fleet.active_replicas:,} x {fraction})" if fraction is not None else "given"
    basis = "computed" if fraction is not None else "given"
    yield _line("fleet.spare_replicas", f"{text} = {fleet.spare_replicas:,}", basis)
    text = f"({fleet.active_replicas:,} + {fleet.spare_replicas:,}) replicas x {fleet.devices_per_replica}"
    yield _line("fleet.devices", f"{text} = {fleet.devices:,}")
    if fleet.nodes is not None:
        text = f"{fleet.nodes:,} instances x {scenario.price.devices} = {fleet.billed_devices:,}"
        yield _line("fleet.billed_devices", text, "computed", scenario.price.source)


def _cost(scenario: Scenario, cost: Cost) -> Iterator[Derivation]:
    workload, price = scenario.workload, scenario.price
    text = " + ".join(f"${line.monthly_usd:,} {line.name} ({line.text})" for line in cost.lines)
    yield _line("cost.monthly_usd", f"{text} = ${cost.monthly_usd:,}", "computed", price.source)
    if workload.requests_per_month:
        text = f"${cost.monthly_usd:,} / {workload.requests_per_month:,} x 1000"
        yield _line("cost.per_1000_submitted_usd", f"{text} = ${cost.per_1000_submitted_usd:,}")
        text = f"${cost.monthly_usd:,} / ({workload.requests_per_month:,} x {workload.success_share}) x 1000"
        yield _line("cost.per_1000_successful_usd", f"{text} = ${cost.per_1000_successful_usd:,}")
