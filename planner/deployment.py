"""A scenario turned into what the engine would run: blocks, ranks, dtypes and options, checked against each other."""

from dataclasses import dataclass

from planner.architectures import resolve
from planner.blocks import Stack
from planner.errors import InputError
from planner.inputs import Scenario
from planner.kv_cache import FP8_DTYPES, KNOWN_DTYPES, resolve_dtype
from planner.memory import Term, device_memory, scheduler_defaults
from planner.quantisation import Quantisation, from_checkpoint, from_engine_flag
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
    kv_dtype: str
    kv_dtype_reason: str
    block_tokens: int
    device: Term
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    notes: tuple[str, ...]


def deploy(scenario: Scenario) -> Deployment:
    """The deployment that a scenario asks for.

    raises: InputError with every way in which model, engine, device and parallelism do not go together
    """
    model, engine, options = scenario.model, scenario.engine, scenario.engine_options
    stack = resolve(model.config, model.origin)
    ranks = Ranks(**scenario.parallelism.model_dump())
    dtype = served_dtype(model.config, options.dtype)
    quantisation, stored_quantised, notes = _quantisation(scenario)
    kv_dtype, reason = resolve_dtype(scenario.kv_cache.dtype, dtype, model.config, model.hf_quant_config)
    device = device_memory(scenario.accelerator, scenario.memory)
    defaults = scheduler_defaults(engine, scenario.accelerator, device.bytes)
    block_tokens = scenario.kv_cache.block_tokens or engine.block_tokens
    found = [
        *(f"parallelism: {problem}" for problem in problems(stack, ranks, quantisation)),
        *_context_problems(scenario, stack),
        *_cache_problems(scenario, stack, kv_dtype, block_tokens),
        *_memory_problems(scenario),
    ]
    if found:
        raise InputError(*found)
    batched = options.max_num_batched_tokens or (defaults.max_num_batched_tokens if defaults else None)
    sequences = options.max_num_seqs or (defaults.max_num_seqs if defaults else None)
    return Deployment(
        scenario,
        stack,
        ranks,
        dtype,
        quantisation,
        stored_quantised,
        kv_dtype,
        reason,
        block_tokens,
        device,
        batched,
        sequences,
        notes,
    )


def _quantisation(scenario: Scenario) -> tuple[Quantisation | None, bool, tuple[str, ...]]:
    """(form of the linear layers, whether the checkpoint is quantised, notes).

    A form that planner does not know is refused unless the bytes are known otherwise.
    """
    model, asked = scenario.model, scenario.engine_options.quantization
    try:
        stored = from_checkpoint(model.config, model.hf_quant_config, model.origin)
    except InputError:
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
            f"{scenario.model.name} allows ({scenario.model.origin.at(stack.max_positions_field)})"
        )
    mean = scenario.workload.mean_tokens
    if mean is not None and mean > scenario.context:
        found.append(
            f"context_tokens: {scenario.context:,} is less than the workload's mean input and output together, "
            f"{mean:,} tokens"
        )
    return found


def _cache_problems(scenario: Scenario, stack: Stack, kv_dtype: str, block_tokens: int) -> list[str]:
    engine = scenario.engine
    found = []
    if scenario.kv_cache.dtype not in engine.kv_dtypes:
        accepted = ", ".join(engine.kv_dtypes)
        found.append(f"kv_cache.dtype: {engine.name} does not accept {scenario.kv_cache.dtype!r}; accepted: {accepted}")
    elif kv_dtype not in KNOWN_DTYPES:
        found.append(f"kv_cache.dtype: {kv_dtype!r} has no size that planner knows; known: {', '.join(KNOWN_DTYPES)}")
    if block_tokens % engine.block_tokens_multiple:
        found.append(
            f"kv_cache.block_tokens: {block_tokens} is not a multiple of {engine.block_tokens_multiple}, as "
            f"{engine.name} needs"
        )
    if engine.kind == "vllm" and kv_dtype in FP8_DTYPES and any(layer.mixer.alibi for layer in stack.layers):
        found.append(
            f"kv_cache.dtype: {engine.name} refuses {kv_dtype} for a model with ALiBi ({scenario.model.name}): its "
            "attention kernel has no fp8 cache"
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
