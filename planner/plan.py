"""The straight line: Scenario -> Report."""

import hashlib
from decimal import Decimal
from fractions import Fraction

from planner import __version__, cost, fleet
from planner.cache_groups import Group
from planner.cache_specs import mixers_of
from planner.deployment import Deployment, deploy
from planner.derive import derivations, sources
from planner.errors import InputError
from planner.inputs import Scenario
from planner.mixers import Attention, LatentAttention
from planner.pool import Pool, longest_context
from planner.rank import Rank, governing_rank
from planner.remarks import assumptions, warnings
from planner.report import (
    CacheAtContext,
    CacheGroup,
    Capacity,
    Carry,
    Cost,
    CostLine,
    Fleet,
    KvCache,
    Memory,
    MemoryLine,
    ModelFacts,
    PrefixReuse,
    Report,
    ScenarioFacts,
)
from planner.units import ceil_div, cents, counted, show_rate


def estimate(scenario: Scenario, devices: int | None = None) -> Report:
    """The report on a scenario; with devices, also what that many of them carry.

    raises: InputError where the scenario's parts do not go together
    """
    deployment = deploy(scenario)
    rank = governing_rank(deployment)
    capacity = _capacity(deployment, rank.pool)
    fits = capacity.requests_per_replica > 0
    fleet_part = _fleet(deployment, capacity) if fits else None
    binding, reason = _binding(deployment, rank, capacity)
    memory, cache = _memory(deployment, rank), _kv_cache(deployment, rank.pool)
    cost_part = _cost(scenario, fleet_part) if fleet_part else None
    prefix = _prefix(scenario)
    return Report(
        planner_version=__version__,
        inputs_digest=digest(scenario),
        scenario=_scenario_facts(deployment),
        fits=fits,
        binding_limit=binding,
        binding_reason=reason,
        model=_model_facts(deployment),
        memory=memory,
        kv_cache=cache,
        capacity=capacity,
        fleet=fleet_part,
        cost=cost_part,
        carry=_carry(deployment, rank.pool, capacity, devices) if devices is not None else None,
        prefix=prefix,
        assumptions=assumptions(deployment),
        warnings=(*warnings(deployment, rank.memory, capacity, fleet_part), *(() if fits else _proposals(scenario))),
        derivations=derivations(deployment, rank, cache, capacity, fleet_part, cost_part, prefix),
        sources=sources(scenario),
    )


def _proposals(scenario: Scenario) -> tuple[str, ...]:
    """What would fit where the scenario does not: proposed, never substituted."""
    for tp in (2, 4, 8, 16):
        if tp <= scenario.parallelism.tp:
            continue
        given = scenario.parallelism
        wider = given.model_copy(update={"tp": tp, "ep": tp * given.dp if given.ep > 1 else 1})
        try:
            deployment = deploy(scenario.model_copy(update={"parallelism": wider}))
        except InputError:
            continue
        requests = governing_rank(deployment).pool.requests(scenario.context)
        if requests:
            experts = f" --ep {wider.ep}" if wider.ep > 1 else ""
            each = counted(requests * wider.dp, "request")
            return (f"it would fit with --tp {tp}{experts}: {each} of {scenario.context:,} tokens per replica",)
    return ("no tensor parallelism up to 16 on this device makes it fit",)


def digest(scenario: Scenario) -> str:
    """SHA-256 of the resolved inputs, so that two reports can be told to rest on the same ones."""
    return "sha256:" + hashlib.sha256(scenario.model_dump_json().encode()).hexdigest()


def _scenario_facts(deployment: Deployment) -> ScenarioFacts:
    scenario, ranks = deployment.scenario, deployment.ranks
    return ScenarioFacts(
        name=scenario.name,
        title=scenario.title,
        model=scenario.model.name,
        accelerator=scenario.accelerator.name,
        engine=scenario.engine.name,
        engine_version=scenario.engine.version,
        workload=scenario.workload.name,
        tp=ranks.tp,
        pp=ranks.pp,
        dp=ranks.dp,
        ep=ranks.ep,
        context_tokens=scenario.context,
        mean_tokens=scenario.workload.mean_tokens,
        concurrency=scenario.workload.concurrency,
        requests_per_month=scenario.workload.requests_per_month,
        success_share=scenario.workload.success_share,
        usd_per_device_hour=scenario.price.usd_per_hour / scenario.price.devices,
        price=scenario.price.label,
        hours_per_month=scenario.hours_per_month,
    )


def _model_facts(deployment: Deployment) -> ModelFacts:
    stack = deployment.stack
    return ModelFacts(
        model_type=deployment.scenario.model.config["model_type"],
        parameters=stack.parameters,
        active_parameters=stack.active_parameters,
        layers=len(stack.layers),
        max_positions=stack.max_positions,
        dtype=deployment.dtype,
        quantisation=deployment.quantisation.name if deployment.quantisation else None,
    )


def _memory(deployment: Deployment, rank: Rank) -> Memory:
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


def _kv_cache(deployment: Deployment, pool: Pool) -> KvCache:
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


def _capacity(deployment: Deployment, pool: Pool) -> Capacity:
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


def _binding(deployment: Deployment, rank: Rank, capacity: Capacity) -> tuple[str, str]:
    """(the limit that binds, why)."""
    memory, pool, scenario = rank.memory, rank.pool, deployment.scenario
    if memory.kv_budget.bytes <= 0:
        taken = memory.device.bytes - memory.kv_budget.bytes
        return "device_memory", (
            f"the model does not fit: weights, workspace and reserve take {taken:,} B of the device's "
            f"{memory.device.bytes:,} B"
        )
    if capacity.requests_per_replica == 0:
        return "kv_memory", (
            f"not one request of {counted(scenario.context, 'token')} fits: it needs "
            f"{pool.reserved_blocks(scenario.context):,} blocks and {pool.usable_blocks:,} are usable; the longest "
            f"context that fits is {counted(capacity.longest_context_tokens, 'token')}"
        )
    slots, concurrency = capacity.slots_per_replica, scenario.workload.concurrency
    if concurrency <= slots:
        return (
            "one_replica",
            f"one replica is the smallest fleet: {concurrency:,} of its {counted(slots, 'slot')} needed",
        )
    if slots < capacity.requests_per_replica:
        return (
            "max_num_seqs",
            (
                f"the scheduler runs {counted(slots, 'request')} per replica; memory would hold "
                f"{capacity.requests_per_replica:,}"
            ),
        )
    return "kv_memory", f"KV memory holds {counted(slots, 'request')} per replica and {concurrency:,} are active"


def _fleet(deployment: Deployment, capacity: Capacity) -> Fleet:
    scenario, per_replica = deployment.scenario, deployment.ranks.devices
    active = fleet.active_replicas(scenario.workload.concurrency, capacity.slots_per_replica)
    spare = fleet.spare_replicas(active, scenario.spares)
    placement = fleet.place(active + spare, per_replica, scenario.price)
    return Fleet(
        active_replicas=active,
        spare_replicas=spare,
        devices_per_replica=per_replica,
        devices=(active + spare) * per_replica,
        billed_devices=placement.billed_devices,
        nodes=placement.nodes,
        slots=active * capacity.slots_per_replica,
    )


def _carry(deployment: Deployment, pool: Pool, capacity: Capacity, devices: int) -> Carry:
    """What this many devices carry at the scenario's context, and the context they carry its concurrency at."""
    per_replica, concurrency = deployment.ranks.devices, deployment.scenario.workload.concurrency
    replicas = devices // per_replica
    active = fleet.active_within(replicas, deployment.scenario.spares)
    waived = replicas > 0 and active == 0
    active = replicas if waived else active
    spare = 0 if waived or not active else fleet.spare_replicas(active, deployment.scenario.spares)
    slots = active * capacity.slots_per_replica
    per_rank = ceil_div(concurrency, active * deployment.ranks.dp) if active else 0
    schedulable = bool(active) and (not deployment.max_num_seqs or per_rank <= deployment.max_num_seqs)
    return Carry(
        devices=devices,
        active_replicas=active,
        spare_replicas=spare,
        spares_waived=waived,
        idle_devices=devices - (active + spare) * per_replica,
        requests_at_context=slots,
        running_requests=min(slots, concurrency),
        queued_requests=max(0, concurrency - slots),
        longest_context_tokens=longest_context(pool, per_rank, deployment.stack.max_positions) if schedulable else 0,
    )


def _cost(scenario: Scenario, fleet_part: Fleet) -> Cost:
    price, billed = scenario.price, fleet_part.billed_devices
    devices = cost.device_month_usd(billed, price, scenario.hours_per_month)
    unit = f"{fleet_part.nodes} x {price.unit}" if price.sold_whole else counted(billed, "device")
    text = f"{unit} x {show_rate(price.usd_per_hour)}/h x {scenario.hours_per_month} h"
    other = [(line.name, "given", Fraction(line.usd)) for line in scenario.other_monthly]
    lines = [("devices", text, devices), *other]
    monthly = sum((usd for _, _, usd in lines), Fraction(0))
    requests = scenario.workload.requests_per_month
    successful = Fraction(requests or 0) * Fraction(scenario.workload.success_share)
    return Cost(
        currency="USD",
        lines=tuple(CostLine(name=name, text=why, monthly_usd=cents(usd)) for name, why, usd in lines),
        monthly_usd=cents(monthly),
        other_monthly_usd=cents(monthly - devices),
        per_1000_submitted_usd=_per_thousand(monthly, Fraction(requests or 0)),
        per_1000_successful_usd=_per_thousand(monthly, successful),
    )


def _per_thousand(monthly: Fraction, requests: Fraction) -> Decimal | None:
    return cents(cost.per_thousand_usd(monthly, requests)) if requests else None


def _prefix(scenario: Scenario) -> PrefixReuse | None:
    """Prompt positions that a cached shared prefix saves each month."""
    prefix, requests = scenario.workload.prefix, scenario.workload.requests_per_month
    if prefix is None or requests is None or not scenario.engine_options.prefix_caching:
        return None
    reusing = int(requests * prefix.request_share)
    return PrefixReuse(requests_per_month=reusing, saved_positions_per_month=reusing * prefix.shared_tokens)
