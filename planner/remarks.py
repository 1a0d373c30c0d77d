"""What a reader must know beside the numbers: assumptions that nobody gave, and warnings."""

from collections.abc import Iterator

from planner.cache_specs import mixers_of
from planner.deployment import Deployment
from planner.inputs import Scenario
from planner.latency import why_no_prefix
from planner.memory import RankMemory
from planner.mixers import Attention
from planner.report import Capacity, Fleet, Latency
from planner.report_money import Cost
from planner.tensors import EXPERT_SPLITS
from planner.units import GIB, counted, show_seconds
from planner.weights import checkpoint_dtype

HIGH_UTILISATION = 0.85
"""Of a fleet under arrivals: above, its waits are worth a warning."""


def assumptions(deployment: Deployment, latency: Latency | None) -> tuple[str, ...]:
    """What planner chose or took over because the scenario does not say it."""
    scenario = deployment.scenario
    chosen = {
        "engine": f"engine {scenario.engine.name}: the newest vLLM known; --engine chooses another",
        "price": (
            f"{scenario.price.label}: the lowest dated on-demand price listed{_holding(deployment)}; --price chooses "
            "another"
        ),
        "spares": _spares(deployment),
        "hours_per_month": f"{scenario.hours_per_month} hours a month, the FinOps convention",
    }
    lines = [chosen[name] for name in scenario.assumed if name in chosen]
    if scenario.workload.assumed:
        fields = ", ".join(scenario.workload.assumed)
        lines.append(f"workload {scenario.workload.name}: {fields}: the profile's assumptions, not from its source")
    if scenario.commitment and (share := scenario.commitment.peak_hours_share) < 1:
        lines.append(
            f"devices beyond the commitment are held for {share:.1%} of the hours: in the others it serves alone"
        )
    if scenario.api_price:
        lines.append(
            f"{scenario.api_price.name} is compared with the reservation, the whole monthly cost, which is paid "
            "whatever is served"
        )
    failures = scenario.spares.failures
    if failures and failures.assumed:
        fields = ", ".join(failures.assumed)
        lines.append(f"failures {failures.name}: {fields}: the profile's assumption, not from its source")
    if deployment.kv_dtype_reason != "given":
        lines.append(f"KV cache dtype {deployment.kv_dtype} ({deployment.kv_dtype_reason})")
    dtype, asked = deployment.dtype, checkpoint_dtype(scenario.model.config)
    if scenario.engine_options.dtype == "auto" and asked and dtype != asked:
        lines.append(f"served in {dtype}: {_substitution(deployment, asked)}")
    lines.append("every active request is reserved at the full context: the safe floor of what fits")
    lines.extend(_prefix_assumptions(scenario))
    lines.extend(_speed_assumptions(deployment, latency) if latency else ())
    return (*lines, *deployment.stack.notes, *deployment.notes)


def _prefix_assumptions(scenario: Scenario) -> Iterator[str]:
    """How often a shared prefix is found."""
    workload = scenario.workload
    if workload.prefix is None or why_no_prefix(scenario):
        return
    if workload.tenants is None:
        yield (
            f"{workload.prefix.request_share:.0%} of the requests find the shared prefix cached, as given: "
            "workload.tenants says among whom it is shared, and what of it a finite cache keeps"
        )
        return
    given = workload.tenants.popularity or workload.tenants.prefix_popularity
    yield (
        "prefixes are found as often as Che's approximation of a cache that drops the least recently used says: "
        "requests independent, spread evenly over replicas without regard to their prefix, "
        f"{'popularity as given' if given else 'every tenant and prefix equally popular'}"
    )
    if workload.tenants.cache_scope == "per_tenant":
        yield "the scope of cached prefixes is set from the authenticated identity (cache_salt in vLLM), not by clients"


def _speed_assumptions(deployment: Deployment, latency: Latency) -> Iterator[str]:
    """What the figures of speed rest on."""
    workload = deployment.scenario.workload
    yield f"times by {latency.calibration}; low to high: {latency.range_basis}"
    if latency.borrowed:
        yield f"kernels that {latency.calibration} does not hold: {', '.join(latency.borrowed)}"
    if len(latency.bands) == 1:
        yield (
            f"workload {workload.name} gives no percentiles of its lengths: p95 TTFT is that of the longest prompt, "
            f"{latency.bands[0].input_tokens:,} tokens"
        )
    if latency.output_tokens == 1:
        yield "answers are one token long on average: TPOT and gaps between tokens are of the longer ones"
    if deployment.scenario.arrivals_per_s is None:
        yield "each request that ends is followed by another at once: arrivals_per_s says how they come instead"
    if workload.requests_per_month:
        yield "input and output tokens bear the monthly cost by the time of a busy replica that each take"
    if deployment.stack.towers:
        yield "prompts are text: the time of the model's vision or audio towers is not in TTFT"


def _substitution(deployment: Deployment, asked: str) -> str:
    gpu = deployment.scenario.accelerator
    if asked == "bfloat16" and gpu.bf16_dense_tflops is None:
        return f"the checkpoint is in {asked}, which {gpu.name} does not compute in"
    return f"the checkpoint is in {asked}"


def _holding(deployment: Deployment) -> str:
    """Of which instances the price was the lowest."""
    together = min(deployment.ranks.tp * deployment.ranks.dp, deployment.scenario.price.devices)
    return f" of an instance of at least {together} devices" if together > 1 else ""


def _spares(deployment: Deployment) -> str:
    """The rule that nobody gave."""
    spares = deployment.scenario.spares
    if spares.failures is not None:
        return f"spares: by failures {spares.failures.name} of whole instances; --set spares.failures changes it"
    fraction = spares.fraction or 0
    return f"spares: {fraction:.0%} of the active replicas, rounded up; --set spares.fraction changes it"


def warnings(
    deployment: Deployment,
    memory: RankMemory,
    capacity: Capacity,
    latency: Latency | None,
    no_latency: str,
    fleet: Fleet | None,
    cost: Cost | None,
) -> tuple[str, ...]:
    """What may make the plan wrong or wasteful.

    no_latency: why no speed is predicted; empty where it is, or nothing fits
    """
    return (
        *_ceiling(deployment, latency),
        *([f"latency and throughput are not predicted: {no_latency}"] if no_latency else ()),
        *_workload_warnings(deployment),
        *_memory_warnings(deployment, memory),
        *_parallelism_warnings(deployment),
        *_capacity_warnings(deployment, capacity, fleet),
        *(_speed_warnings(deployment, latency) if latency else ()),
        *(_fleet_warnings(deployment, fleet) if fleet else ()),
        *_price_warnings(deployment.scenario),
        *(_cost_warnings(deployment.scenario, cost) if cost else ()),
    )


def _ceiling(deployment: Deployment, latency: Latency | None) -> list[str]:
    if latency is None:
        return ["This is a memory ceiling: throughput, latency and failed devices can need more."]
    objectives = deployment.scenario.workload.objectives
    if objectives.ttft_p95_s is None and objectives.itl_p95_s is None:
        return [
            "No latency is asked for: the fleet holds its requests, however slowly; --ttft-p95 and --itl-p95 size it "
            "by speed too."
        ]
    return []


def _speed_warnings(deployment: Deployment, latency: Latency) -> Iterator[str]:
    scenario = deployment.scenario
    objectives, gpu = scenario.workload.objectives, scenario.accelerator
    if latency.calibration.endswith(" peaks"):
        yield f"nobody measured a {gpu.name} for this: times are by {latency.calibration}"
    if scenario.arrivals_per_s is not None and (latency.utilisation or 0) > HIGH_UTILISATION:
        yield (
            f"utilisation is {latency.utilisation:.0%}: near saturation small errors of the step time move waits many "
            "times over"
        )
    for name, limit, found in (
        ("TTFT", objectives.ttft_p95_s, latency.ttft_p95_s),
        ("gaps between tokens", objectives.itl_p95_s, latency.itl_p95_s),
    ):
        if limit is not None and found.best <= limit < found.high:
            yield (
                f"p95 of {name} is within {show_seconds(float(limit))} by the best estimate only: its range reaches "
                f"{show_seconds(found.high)}"
            )
    if deployment.ranks.tp * deployment.ranks.dp > scenario.price.devices and scenario.price.sold_whole:
        yield "messages between ranks are priced as within one node, and a replica here spans several"


def _workload_warnings(deployment: Deployment) -> list[str]:
    scenario, found = deployment.scenario, []
    if scenario.context < scenario.workload.context_tokens:
        found.append(
            f"the context of {scenario.context:,} tokens is below the {scenario.workload.context_tokens:,} of workload "
            f"{scenario.workload.name}: its longer requests are not planned for"
        )
    if scenario.workload.burstiness != 1 and scenario.arrivals_per_s is None:
        found.append("burstiness counts only where arrivals_per_s says how requests come: it is not used here")
    if scenario.workload.requests_per_month is None:
        found.append("the workload has no requests_per_month: cost per request and token is not given")
    return found


def _memory_warnings(deployment: Deployment, memory: RankMemory) -> list[str]:
    engine, found = deployment.scenario.engine, []
    if memory.device.basis == "datasheet" and engine.kind == "vllm":
        found.append(
            f"no figure of what {engine.name} sees of a {deployment.scenario.accelerator.name} is known: the driver's "
            "total is used, and engines see up to 2 % less"
        )
    assumed = [term for term in memory.workspace if term.basis == "assumed"]
    if assumed:
        total = sum(term.bytes for term in assumed) / GIB
        found.append(
            f"workspace of {total:.2f} GiB is not measured for {engine.name}: {_first_clause(assumed[0].source)}"
        )
    if memory.reserve.bytes < 0:
        found.append(
            f"the given KV cache exceeds the device by {-memory.reserve.bytes:,} B after weights and workspace: the "
            "engine would run out of memory"
        )
    return found


def _first_clause(text: str) -> str:
    return text.split(";")[0].strip()


def _parallelism_warnings(deployment: Deployment) -> list[str]:
    tp, found = deployment.ranks.tp, []
    attention = [m for m in mixers_of(deployment.stack.layers) if isinstance(m, Attention) and m.owns_cache]
    kv_heads = max((m.kv_heads for m in attention), default=tp)
    if tp > kv_heads:
        found.append(
            f"tp {tp} exceeds the {kv_heads} key/value heads: each rank stores one whole head, so a token's keys and "
            f"values take as many bytes on a rank as at tp {kv_heads}"
        )
    has_experts = any(tensor.split in EXPERT_SPLITS for _, tensor in deployment.stack.tensors())
    if deployment.ranks.dp > 1 and not has_experts:
        found.append(
            f"dp {deployment.ranks.dp} copies a dense model whole: separate replicas do the same and fail apart"
        )
    return found


def _capacity_warnings(deployment: Deployment, capacity: Capacity, fleet: Fleet | None) -> list[str]:
    limit = capacity.max_num_seqs
    by_memory = capacity.requests_per_replica // deployment.ranks.dp
    if limit is None or limit >= by_memory or fleet is None or fleet.active_replicas == 1:
        return []
    return [
        f"max_num_seqs lets {counted(limit, 'request')} run where memory would hold {by_memory:,}: raise it with "
        "--max-num-seqs (--max-num-batched-tokens must be no smaller)"
    ]


def _fleet_warnings(deployment: Deployment, fleet: Fleet) -> list[str]:
    price, found = deployment.scenario.price, _commitment_warnings(deployment.scenario, fleet)
    idle = fleet.billed_devices - fleet.devices
    if idle:
        beyond = fleet.billed_devices > fleet.committed_devices
        whole = f"{price.unit} is sold whole: " if price.sold_whole and beyond else ""
        found.append(
            f"{whole}{fleet.billed_devices:,} devices are billed and {fleet.devices:,} used; {idle:,} stand idle"
        )
    spares = deployment.scenario.spares
    if spares.failures and spares.devices_per_node is None and price.devices == 1:
        found.append(
            "devices sold one by one are taken to fail one by one: spares.devices_per_node says how many share a node"
        )
    if spares.by_availability and (spares.devices_per_node or 0) > price.devices:
        found.append(
            f"whoever sells {'an instance' if price.sold_whole else 'devices'} decides on which node: the availability "
            f"counts on {fleet.spare_rules[0].text.partition(',')[0]}"
        )
    if price.sold_whole and price.devices < deployment.ranks.devices:
        found.append(f"one replica of {deployment.ranks.devices} devices spans several {price.unit}")
    return found


def _cost_warnings(scenario: Scenario, cost: Cost) -> Iterator[str]:
    """Figures of money that are not given, and those that the fleet cannot reach."""
    if scenario.workload.requests_per_month and cost.prefill_share is None:
        yield "cost per input and output token is not given: it follows from how long both take"
    if cost.month_utilisation is not None and cost.month_utilisation > 1:
        yield f"the month's requests need {cost.month_utilisation:.2f} times the capacity that is billed"
    api = cost.api
    if api and api.most_requests is not None and api.break_even_requests > api.most_requests:
        yield (
            f"this fleet never breaks even with the API: it can do {api.most_requests:,} requests a month, and the API "
            f"is cheaper up to {api.break_even_requests:,}"
        )


def _price_warnings(scenario: Scenario) -> Iterator[str]:
    """Prices that are older than the scenario allows, or of no known day though somebody else quotes them."""
    prices = (scenario.price, *((scenario.commitment.price,) if scenario.commitment else ()))
    dated = [(price.named, price.as_of) for price in prices if price.as_of or price.provider or price.instance]
    if scenario.api_price:
        dated.append((scenario.api_price.name, scenario.api_price.as_of))
    for name, as_of in dated:
        if as_of is None:
            yield f"the price of {name} is undated: treat it as stale"
        elif scenario.priced_on and (age := (scenario.priced_on - as_of).days) > scenario.price_stale_days:
            yield (
                f"the price of {name} is stale: as of {as_of}, {counted(age, 'day')} before "
                f"{scenario.priced_on}; price_stale_days allows {scenario.price_stale_days:,}"
            )


def _commitment_warnings(scenario: Scenario, fleet: Fleet) -> list[str]:
    """What is paid for beyond what was asked for, or beyond what runs."""
    found, committed, asked = [], fleet.committed_devices, scenario.commitment
    if asked and committed > asked.devices:
        whole = f"{asked.price.unit} is sold whole"
        found.append(f"{whole}: a commitment to {asked.devices:,} devices is billed as {committed:,}")
    if committed > fleet.devices:
        found.append(f"the commitment is larger than the fleet: all {committed:,} devices are billed")
    return found
