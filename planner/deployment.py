"""A scenario turned into what the engine would run: blocks, ranks, dtypes and options, checked against each other."""

from dataclasses import dataclass

from planner.architectures import resolve
from planner.blocks import Stack
from planner.cache_specs import CacheRules, block_problem, mixers_of, scheduler_block
from planner.errors import InputError
from planner.inputs import Scenario
from planner.kv_cache import KNOWN_DTYPES, Flight, resolve_dtype
from planner.memory import Term, device_memory, scheduler_defaults
from planner.mixers import Attention, Mixer
from planner.quantisation import Quantisation, from_checkpoint, from_engine_flag
from planner.quantisation import kinds as quantisation_kinds
from planner.sharding import Ranks, problems
from planner.weights import served_dtype


@dataclass(frozen=True, slots=True)
class Deployment:
    """One replica's configuration, everything resolved."""

    scenario: Scenario
    stack: Stack
    ranks: Ranks
    dtype: str
    """Dtype the model is served in."""
    quantisation: Quantisation | None
    """How the engine stores the linear layers; None: in dtype, or in a form that planner does not know."""
    stored_quantised: bool
    """The checkpoint itself is quantised."""
    rules: CacheRules
    """What the layout of the cache depends on."""
    kv_dtype_reason: str
    block_tokens: int
    device: Term
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    notes: tuple[str, ...]

    @property
    def kv_dtype(self) -> str:
        """Dtype of the KV cache."""
        return self.rules.kv_dtype

    @property
    def flight(self) -> Flight:
        """What the scheduler can have in flight; an engine without a scheduler has nothing."""
        tokens = self.max_num_batched_tokens or 0
        return Flight(tokens, tokens * self.scenario.engine.steps_in_flight)


def deploy(scenario: Scenario) -> Deployment:
    """The deployment that a scenario asks for.

    raises: InputError with every way in which model, engine, device and parallelism do not go together
    """
    model, options = scenario.model, scenario.engine_options
    stack = resolve(model.config, model.origin)
    ranks = Ranks(**scenario.parallelism.model_dump())
    gpu = scenario.accelerator
    has_bf16 = gpu.bf16_dense_tflops is not None
    dtype = served_dtype(model.config, options.dtype, has_bf16=has_bf16)
    quantisation, stored_quantised, notes = _quantisation(scenario)
    rules, reason = _cache_rules(scenario, stack, dtype)
    mixers = tuple(mixers_of(stack.layers))
    found = [
        *_refusals(scenario),
        *(f"parallelism: {problem}" for problem in problems(stack, ranks, quantisation)),
        *_context_problems(scenario, stack),
        *_cache_problems(scenario, mixers, rules),
        *_memory_problems(scenario),
        *([f"engine_options.dtype: {gpu.name} has no bfloat16"] if dtype == "bfloat16" and not has_bf16 else []),
    ]
    if found:
        raise InputError(*found)
    device = device_memory(scenario.accelerator, scenario.memory)
    batched, sequences = _scheduler_limits(scenario, stack, device.bytes)
    return Deployment(
        scenario=scenario,
        stack=stack,
        ranks=ranks,
        dtype=dtype,
        quantisation=quantisation,
        stored_quantised=stored_quantised,
        rules=rules,
        kv_dtype_reason=reason,
        block_tokens=scheduler_block(mixers, rules),
        device=device,
        max_num_batched_tokens=batched,
        max_num_seqs=sequences,
        notes=notes,
    )


def _scheduler_limits(scenario: Scenario, stack: Stack, device_bytes: int) -> tuple[int | None, int | None]:
    """(max_num_batched_tokens, max_num_seqs): as asked for, else the engine's defaults on this device.

    source: vLLM 0.33, engine/arg_utils.py
    """
    options = scenario.engine_options
    batched, sequences = options.max_num_batched_tokens, options.max_num_seqs
    defaults = scheduler_defaults(scenario.engine, scenario.accelerator, device_bytes)
    if defaults is None:
        return batched, sequences
    if batched is None:
        batched = max(defaults.max_num_batched_tokens, stack.least_batched_tokens)
    if sequences is None:
        sequences = min(defaults.max_num_seqs, batched)
    if batched < sequences:
        raise InputError(
            f"engine_options.max_num_batched_tokens: {batched:,} must be at least max_num_seqs, {sequences:,}"
        )
    return batched, sequences


def _cache_rules(scenario: Scenario, stack: Stack, dtype: str) -> tuple[CacheRules, str]:
    """(what cache specs depend on, why the cache has its dtype)."""
    model, engine, asked = scenario.model, scenario.engine, scenario.kv_cache
    kv_dtype, reason = resolve_dtype(asked.dtype, dtype, model.config, model.hf_quant_config)
    capability = scenario.accelerator.compute_capability or "0"
    major = capability.split(".")[0]
    rules = CacheRules(
        tp=scenario.parallelism.tp,
        model_dtype=dtype,
        kv_dtype=kv_dtype,
        kv_dtype_given=asked.dtype != "auto",
        sm=int(major) if major.isdecimal() else 0,
        default_block_tokens=engine.block_tokens,
        block_tokens=asked.block_tokens,
        prefix_caching=scenario.engine_options.prefix_caching and engine.kind == "vllm",
        max_positions=stack.max_positions,
        windows=model.config.get("model_type")
        not in (engine.token_pools.windows_as_full if engine.token_pools else ()),
        one_pool=engine.kind == "vllm",
    )
    return rules, reason


def _refusals(scenario: Scenario) -> list[str]:
    """Why this engine version does not serve this model at all, by its model_type or architecture."""
    config, engine = scenario.model.config, scenario.engine
    architectures = config.get("architectures")
    names = [config.get("model_type"), *(architectures if isinstance(architectures, list) else ())]
    for name in names:
        if isinstance(name, str) and name in engine.refuses:
            return [f"engine {engine.name} does not serve {name}: {engine.refuses[name]}; engine generic plans it"]
    refused = [kind for kind in quantisation_kinds(config) if kind in engine.refuses]
    return [f"engine {engine.name} does not serve {kind} weights: {engine.refuses[kind]}" for kind in refused]


def _quantisation(scenario: Scenario) -> tuple[Quantisation | None, bool, tuple[str, ...]]:
    """(form of the linear layers, whether the checkpoint is quantised, notes).

    A form that planner does not know is refused unless the bytes are known otherwise.
    """
    model, asked = scenario.model, scenario.engine_options.quantization
    try:
        stored = from_checkpoint(model.config, model.hf_quant_config, model.origin)
    except InputError:
        refused = _refusals(scenario)
        if refused:
            raise InputError(*refused) from None
        if asked is not None or (scenario.memory.weights_gib is None and model.weights is None):
            raise
        return (
            None,
            True,
            ("the form of the checkpoint's quantisation is unknown: weights are taken as given",),
        )
    if asked is None or (stored is not None and asked in stored.name):
        return stored, stored is not None, ()
    if stored is not None:
        raise InputError(
            f"engine_options.quantization: {asked} is asked for, but the checkpoint is already {stored.name}"
        )
    return from_engine_flag(asked), False, ()


def _context_problems(scenario: Scenario, stack: Stack) -> list[str]:
    found = []
    if scenario.context > stack.max_positions:
        found.append(
            f"context_tokens: {scenario.context:,} is over the {stack.max_positions:,} positions that "
            f"{scenario.model.name} allows ({scenario.model.origin.at(*stack.max_positions_field.split('.'))})"
        )
    mean = scenario.workload.mean_tokens
    if mean is not None and mean > scenario.context:
        found.append(
            f"context_tokens: {scenario.context:,} is less than the workload's mean input and output together, "
            f"{mean:,} tokens"
        )
    return found


def _cache_problems(scenario: Scenario, mixers: tuple[Mixer, ...], rules: CacheRules) -> list[str]:
    engine, asked = scenario.engine, scenario.kv_cache
    found = []
    if asked.dtype not in engine.kv_dtypes:
        accepted = ", ".join(engine.kv_dtypes)
        found.append(f"kv_cache.dtype: {engine.name} does not accept {asked.dtype!r}; accepted: {accepted}")
    elif rules.kv_dtype not in KNOWN_DTYPES:
        known = ", ".join(KNOWN_DTYPES)
        found.append(f"kv_cache.dtype: {rules.kv_dtype!r} has no size that planner knows; known: {known}")
    if asked.block_tokens and asked.block_tokens % engine.block_tokens_multiple:
        found.append(
            f"kv_cache.block_tokens: {asked.block_tokens} is not a multiple of {engine.block_tokens_multiple}, as "
            f"{engine.name} needs"
        )
    if engine.kind != "vllm":
        return found
    if problem := block_problem(mixers, rules):
        found.append(f"kv_cache.block_tokens: {problem}")
    if rules.fp8 and any(isinstance(mixer, Attention) and mixer.alibi for mixer in mixers):
        found.append(
            f"kv_cache.dtype: {engine.name} refuses {rules.kv_dtype} for a model with ALiBi ({scenario.model.name}): "
            "its attention kernel has no fp8 cache"
        )
    return found


def _memory_problems(scenario: Scenario) -> list[str]:
    engine, given = scenario.engine, scenario.memory
    if engine.workspace is not None or scenario.engine_options.kv_cache_bytes is not None:
        return []
    return [
        f"memory.{field}: missing; {engine.name} assumes no engine's rules, so say what it takes [GiB per device]"
        for field in ("workspace_gib", "reserve_gib")
        if getattr(given, field) is None
    ]
