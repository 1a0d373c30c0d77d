"""Configs and settings that strangers write: a sound report or a refusal, never another exception."""

import json
import math
from collections.abc import Iterator
from copy import deepcopy
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from planner import catalog, plan
from planner.cli import app
from planner.documents import load_mapping
from planner.errors import InputError
from planner.report import Report
from planner.saved import to_json, to_yaml
from tests.scenarios import report, scenario

SECONDS = 2
"""Far above what one estimate takes, far below a hang."""
MAY_BE_NEGATIVE = ("kv_budget_bytes", "reserve_bytes", "bytes")
"""Where the other lines exceed the device, which the report then says."""
QUANTISED = ("llama-3.1-70b-fp8", "qwen3-30b-a3b-fp8", "qwen3-235b-a22b-nvfp4", "qwen3-32b-fp8-static")
FUZZED = (
    *QUANTISED,
    "llama-3.1-8b",
    "gpt2",
    "falcon-40b",
    "mixtral-8x7b",
    "minimax-m2.5",
    "glm-4.5",
    "gemma-2b",
    "gpt-oss-120b",
    "qwen3.5-27b",
    "deepseek-v3",
    "deepseek-v4-flash",
    "gemma-3-4b",
    "nemotron-3-nano-30b-a3b",
)
EXTREMES: tuple[Any, ...] = (
    None, True, False, "", "x", "\u202e", 0, 1, -1, 3, 7, 2**31, 2**63, 10**400, -(10**400), 0.0, 1.5, -2.5, 128.0,
    1e308, math.inf, -math.inf, math.nan, [], {}, [None], [[]], ["x"], [0, 128], [128, 128.0], [1.5, 1], {"x": 1},
    {"name": "x"}, "full_attention", "modelopt", "compressed-tensors", "gptq", "fp8", "NVFP4", ["re:("],
    ["*a*b*c*d*e*f*g*h*"], "bfloat16",
)  # fmt: skip


DROP = object()


def estimate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["estimate", "--gpu", "h100-sxm", "--workload", "chat", *arguments])


def fields_of(model: str) -> dict[str, Any]:
    return load_mapping(catalog.bundled() / "model_configs" / f"{model}.yaml")


def attempt(model: dict[str, Any], overrides: dict[str, Any], devices: int | None = None) -> Report | InputError:
    try:
        return plan.estimate(scenario(model, overrides=overrides), devices)
    except InputError as refusal:
        return refusal


def numbers(value: object, name: str = "") -> Iterator[tuple[str, int | float | Decimal]]:
    """(name of the field, number) of every number in a report."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, key)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from numbers(inner, name)
    elif isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        yield name, value


def check(outcome: Report | InputError) -> None:
    """A refusal has messages of one short line each; a report adds up, and can be written."""
    if isinstance(outcome, InputError):
        assert outcome.problems
        assert all(0 < len(problem) < 1500 for problem in outcome.problems)
        return
    for name, number in numbers(outcome.model_dump()):
        assert math.isfinite(number), name
        assert number >= 0 or name in MAY_BE_NEGATIVE, name
    memory, capacity = outcome.memory, outcome.capacity
    assert sum(line.bytes for line in memory.lines) == memory.device_bytes
    total = memory.weights_bytes + memory.workspace_bytes + memory.reserve_bytes + memory.kv_budget_bytes
    assert total == memory.device_bytes
    assert outcome.fits == (capacity.requests_per_replica > 0) == (outcome.fleet is not None)
    assert capacity.num_blocks * outcome.kv_cache.bytes_per_block <= max(0, memory.kv_budget_bytes)
    if outcome.cost and outcome.fleet:
        lines = sum(line.monthly_usd for line in outcome.cost.lines)
        assert abs(lines - outcome.cost.monthly_usd) <= Decimal("0.01") * len(outcome.cost.lines)
        assert outcome.fleet.slots >= (outcome.scenario.concurrency or 0)
    assert to_yaml(outcome)
    assert Report.model_validate_json(to_json(outcome)) == outcome


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every field and item inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, child in inner:
        yield (*path, key)
        yield from places(child, (*path, key))


def mutate(value: dict[str, Any], path: tuple[Any, ...], change: object, *, drop: bool) -> None:
    """Change or drop what lies at a path, if it is still there."""
    target: Any = value
    for key in path[:-1]:
        if not isinstance(target, (dict, list)) or (isinstance(target, list) and not isinstance(key, int)):
            return
        if key not in target if isinstance(target, dict) else key >= len(target):
            return
        target = target[key]
    if isinstance(target, list) and isinstance(path[-1], int) and path[-1] < len(target):
        target[path[-1]] = change
    elif isinstance(target, dict) and drop:
        target.pop(path[-1], None)
    elif isinstance(target, dict):
        target[path[-1]] = change


ADDED = (
    ("config", "quantization_config"), ("config", "rope_scaling"), ("config", "layer_types"), ("config",
    "text_config"), ("config", "head_dim"), ("config", "torch_dtype"), ("config", "dtype"), ("config", "model_type"),
    ("hf_quant_config",), ("weights",), ("config", "rope_parameters"), ("config", "compression_config"),
)  # fmt: skip


@st.composite
def mutated_models(draw: st.DrawFn) -> dict[str, Any]:
    fields = deepcopy(fields_of(draw(st.sampled_from(FUZZED))))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([*places(fields), *ADDED]))
        mutate(fields, path, deepcopy(draw(st.sampled_from(EXTREMES))), drop=draw(st.booleans()))
    return fields


RANKS = st.fixed_dictionaries(
    {}, optional={f"parallelism.{name}": st.sampled_from([1, 2, 3, 8, 4096]) for name in ("tp", "pp", "dp", "ep")}
)


@settings(max_examples=400, deadline=timedelta(seconds=SECONDS), suppress_health_check=[HealthCheck.too_slow])
@given(mutated_models(), RANKS)
def test_mutated_models_give_a_sound_report_or_a_refusal(model: dict[str, Any], ranks: dict[str, Any]) -> None:
    check(attempt(model, ranks))


PATHS = (
    "name", "title", "context_tokens", "hours_per_month", "other_monthly", "assumed", "spares", "spares.fraction",
    "spares.replicas", "parallelism", "parallelism.tp", "parallelism.pp", "kv_cache.dtype", "kv_cache.block_tokens",
    "engine", "engine.kind", "engine.block_tokens", "engine.null_blocks", "engine.scheduler", "engine.workspace",
    "engine.kv_dtypes", "engine.workspace.non_torch_gib", "engine.workspace.forward_mlp_widths",
    "engine.block_tokens_multiple", "engine_options.gpu_memory_utilization", "engine_options.max_num_seqs",
    "engine_options.max_num_batched_tokens", "engine_options.dtype", "engine_options.quantization",
    "engine_options.kv_cache_bytes", "memory.device_gib", "memory.weights_gib", "memory.workspace_gib",
    "memory.reserve_gib", "workload.concurrency", "workload.context_tokens", "workload.input_tokens",
    "workload.input_tokens.mean", "workload.output_tokens", "workload.requests_per_month", "workload.success_share",
    "workload.prefix", "workload.name", "accelerator.memory_mib", "accelerator.name",
    "accelerator.engine_visible_mib", "price", "price.usd_per_hour", "price.devices", "price.instance",
    "model.weights", "model.weights.total_bytes", "model.name", "model.config", "model.origin",
    "model.hf_quant_config", "model.notes.x", "x", "x.y", "", ".", "model", "workload.",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *EXTREMES, Decimal("1e-30"), Decimal("0.1"), Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"),
    Decimal("1e-999999"), Decimal("999999999999999"), "0.5", "1e-5000", "1e5000", 2**48, 16, 8, "auto", "fp8",
    {"mean": 100}, {"usd_per_hour": 2**40}, {"shared_tokens": 10, "request_share": "0.5"}, [{"name": "a", "usd":
    "0.005"}, {"name": "b", "usd": "0.005"}], {"fraction": 1}, {"replicas": 2**48}, ["nonsense"], "nonsense",
    "generic", "vllm-0.19", "a100-sxm-80gb",
)  # fmt: skip


AMOUNTS = (
    "context_tokens", "hours_per_month", "spares.fraction", "kv_cache.block_tokens",
    "engine_options.gpu_memory_utilization", "engine_options.max_num_seqs", "engine_options.max_num_batched_tokens",
    "engine_options.kv_cache_bytes", "memory.device_gib", "memory.weights_gib", "memory.workspace_gib",
    "memory.reserve_gib", "workload.concurrency", "workload.requests_per_month", "workload.success_share",
    "price.usd_per_hour", "price.devices", "model.weights.total_bytes", "accelerator.memory_mib",
    "engine.workspace.non_torch_gib", "engine.null_blocks",
)  # fmt: skip
AMOUNT = st.one_of(
    st.integers(0, 200),
    st.integers(0, 2**48),
    st.decimals(0, 10**15, places=30),
    st.sampled_from(["1e-30", "999999999999999", 0.1]),
)
SETTINGS = st.one_of(
    st.dictionaries(st.sampled_from(PATHS), st.sampled_from(VALUES), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from(AMOUNTS), AMOUNT, min_size=1, max_size=3),
)


@settings(max_examples=400, deadline=timedelta(seconds=SECONDS), suppress_health_check=[HealthCheck.too_slow])
@given(SETTINGS, st.sampled_from(("llama-3.1-8b", "qwen3-30b-a3b-fp8")), st.one_of(st.none(), st.integers(1, 2**60)))
def test_settings_at_random_give_a_sound_report_or_a_refusal(
    overrides: dict[str, Any], model: str, devices: int | None
) -> None:
    check(attempt(fields_of(model), {"workload.source": "test", **deepcopy(overrides)}, devices))


CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        ({"hidden_size": DROP}, 1, "hidden_size: missing"),
        ({"hidden_size": None}, 3, "hidden_size: missing"),
        ({"hidden_size": "4096"}, 3, "hidden_size: an integer is needed, not '4096'"),
        ({"hidden_size": 4096.5}, 3, "hidden_size: an integer is needed, not 4096.5"),
        ({"hidden_size": -4096}, 3, "hidden_size: -4096 is out of range"),
        ({"hidden_size": 2**63}, 3, "hidden_size: 9223372036854775808 is out of range"),
        ({"hidden_size": 10**400}, 3, "hidden_size: an integer of a hundred digits or more is out of range"),
        ({"hidden_size": True}, 3, "hidden_size: an integer is needed, not True"),
        ({"hidden_size": math.inf}, 3, "hidden_size: an integer is needed, not inf"),
        ({"hidden_size": math.nan}, 3, "hidden_size: an integer is needed, not nan"),
        ({"hidden_size": "9" * 10**6}, 3, "hidden_size: an integer is needed, not '999"),
        ({"num_key_value_heads": 64}, 8, "num_key_value_heads: 64 key/value heads do not divide"),
        ({"head_dim": 0}, 10, "head_dim: 0 is out of range"),
        ({"layer_types": ["full_attention"]}, 10, "layer_types: lists 1 layers, and the model has 32"),
        (
            {"text_config": {"hidden_size": 8}},
            10,
            "text_config: 'llama' with this section is more than planner knows of the family",
        ),
        ({"model_type": "lama"}, 2, "model_type: 'lama' is not a model family"),
        ({"model_type": DROP}, 1, "model_type: missing"),
        ({"model_type": ["llama"]}, 2, "model_type: missing"),
        ({"rope_scaling": {"type": "linear", "factor": "8"}}, 12, "rope_scaling.factor: a number above 0"),
        ({"quantization_config": ["fp8"]}, 10, "quantization_config: a mapping is needed"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4.0}}, 10, "'gptq' in this form is not known"),
    ],
)
def test_a_broken_config_json_gives_one_message_with_its_line(
    tmp_path: Path, change: dict[str, Any], line: int, message: str
) -> None:
    config = {name: value for name, value in {**CONFIG, **change}.items() if value is not DROP}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config, indent=1), "utf-8")
    result = estimate("--model", str(path))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"planner: {path}:{line}: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 1500


@pytest.mark.parametrize("value", [math.inf, math.nan, 10**4000, "\u202e", {"x": [1]}])
def test_fields_that_are_not_read_may_hold_anything(tmp_path: Path, value: object) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "unread": value}), "utf-8")
    for form in ("text", "json", "yaml"):
        assert estimate("--model", str(path), "--format", form).exit_code == 0


@pytest.mark.parametrize(
    ("pattern", "accepted"),
    [
        ("re:.*", True),
        ("re:(?:model\\.)?layers\\.\\d+\\.mlp.*", True),
        ("*" * 300, True),
        ("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", True),
        ("re:(a+)+$", False),
        ("re:(.*)*x", False),
        ("re:(a|a)*b", False),
        ("re:(.?){99}x", False),
        ("re:.*.*.*.*x", False),
        ("re:a{99999999999}", False),
        ("re:(", False),
        ("re:" + "(" * 5000, False),
        ("re:[[a]", True),
    ],
)
def test_patterns_of_modules_left_alone_cannot_hang(pattern: str, accepted: bool) -> None:
    model = fields_of("qwen3-32b-fp8")
    model["config"]["quantization_config"] |= {"modules_to_not_convert": [pattern] * 50}
    start = perf_counter()
    outcome = attempt(model, {})
    assert perf_counter() - start < SECONDS
    assert isinstance(outcome, Report) == accepted
    check(outcome)


def test_a_star_matches_any_text() -> None:
    model = fields_of("qwen3-32b-fp8")
    sizes = []
    for ignored in ([], ["*mlp*down*"], ["model.layers.*.mlp.down_proj"], ["*mlp*"]):
        model["config"]["quantization_config"] |= {"modules_to_not_convert": ignored}
        sizes.append(report(model).memory.weights_bytes)
    assert sizes[0] < sizes[1] == sizes[2] < sizes[3]


@pytest.mark.parametrize("producer", ["modelopt", ["modelopt"], 1, {"name": None}, None])
def test_a_quantisation_file_without_a_known_producer_does_not_count(producer: object) -> None:
    plain = fields_of("llama-3.1-8b")
    declared = {"producer": producer, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    found = report(plain | {"hf_quant_config": declared})
    assert found.memory == report(plain).memory
    assert found.kv_cache == report(plain).kv_cache
