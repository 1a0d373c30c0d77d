"""What a reader must know beside the numbers: assumptions that nobody gave, and warnings."""

from planner.cache_specs import mixers_of
from planner.deployment import Deployment
from planner.memory import RankMemory
from planner.mixers import Attention
from planner.report import Capacity, Fleet
from planner.tensors import EXPERT_SPLITS
from planner.units import GIB, counted
from planner.weights import checkpoint_dtype


def assumptions(deployment: Deployment) -> tuple[str, ...]:
    """What planner chose or took over because the scenario does not say it."""
    scenario = deployment.scenario
    chosen = {
        "engine": f"engine {scenario.engine.name}: the newest vLLM known; --engine chooses another",
        "price": (
            f"{scenario.price.label}: the lowest dated on-demand price listed{_holding(deployment)}; --price chooses "
            "another"
        ),
        "spares": f"spares: {_spares(deployment)} of the active replicas, rounded up; --set spares.fraction changes it",
        "hours_per_month": f"{scenario.hours_per_month} hours a month, the FinOps convention",
    }
    lines = [chosen[name] for name in scenario.assumed if name in chosen]
    if scenario.workload.assumed:
        fields = ", ".join(scenario.workload.assumed)
        lines.append(f"workload {scenario.workload.name}: {fields}: the profile's assumptions, not from its source")
    if deployment.kv_dtype_reason != "given":
        lines.append(f"KV cache dtype {deployment.kv_dtype} ({deployment.kv_dtype_reason})")
    dtype, asked = deployment.dtype, checkpoint_dtype(scenario.model.config)
    if scenario.engine_options.dtype == "auto" and asked and dtype != asked:
        lines.append(f"served in {dtype}: {_substitution(deployment, asked)}")
    lines.append("every active request is reserved at the full context: the safe floor of what fits")
    return (*lines, *deployment.stack.notes, *deployment.notes)


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
    fraction = deployment.scenario.spares.fraction
    return f"{fraction:.0%}" if fraction is not None else f"{deployment.scenario.spares.replicas}"


def warnings(deployment: Deployment, memory: RankMemory, capacity: Capacity, fleet: Fleet | None) -> tuple[str, ...]:
    """What may make the plan wrong or wasteful."""
    return (
        "This is a memory ceiling: throughput, latency and failed devices can need more.",
        *_workload_warnings(deployment),
        *_memory_warnings(deployment, memory),
        *_parallelism_warnings(deployment),
        *_capacity_warnings(deployment, capacity, fleet),
        *(_fleet_warnings(deployment, fleet) if fleet else ()),
    )


def _workload_warnings(deployment: Deployment) -> list[str]:
    scenario, found = deployment.scenario, []
    if scenario.context < scenario.workload.context_tokens:
        found.append(
            f"the context of {scenario.context:,} tokens is below the {scenario.workload.context_tokens:,} of workload "
            f"{scenario.workload.name}: its longer requests are not planned for"
        )
    if scenario.workload.requests_per_month is None:
        found.append("the workload has no requests_per_month: cost per request is not given")
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
    price, found = deployment.scenario.price, []
    idle = fleet.billed_devices - fleet.devices
    if idle:
        found.append(
            f"{price.unit} is sold whole: {fleet.billed_devices:,} devices are billed and {fleet.devices:,} used; "
            f"{idle:,} stand idle"
        )
    if price.sold_whole and price.devices < deployment.ranks.devices:
        found.append(f"one replica of {deployment.ranks.devices} devices spans several {price.unit}")
    if price.instance and price.as_of is None:
        found.append(f"the price of {price.provider} {price.instance} is undated: treat it as stale")
    return found
