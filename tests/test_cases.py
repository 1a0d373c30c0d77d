"""Inputs that make other calculators, planners and engines wrong, each with the right value.

The issue named in a docstring is the public report of the fault.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from planner import catalog
from planner.errors import InputError
from planner.kv_cache import kv_bytes_per_token, resolve_dtype
from planner.origin import Origin
from planner.plan import estimate
from planner.render.tables import replicas, show_bytes
from planner.report import Report
from planner.units import GIB, MIB
from tests import logs
from tests.scenarios import report, scenario, vendor_model

LLAMA_8B = "llama-3.1-8b"


def refusal(model: str | Mapping[str, Any], overrides: dict[str, Any], accelerator: str = "h100-sxm") -> str:
    with pytest.raises(InputError) as caught:
        report(model, accelerator, overrides)
    return str(caught.value)


def line(found: Report, name: str) -> int:
    return next(part.bytes for part in found.memory.lines if part.name == name)


# Dimensions


def test_case_1_head_dim_is_read_not_divided() -> None:
    """Qwen3-4B: 36 layers, 8 KV heads, head_dim 128, although hidden/heads is 80: not 92,160 (LMCache#688)."""
    assert report("qwen3-4b").kv_cache.bytes_per_token == 36 * 2 * 8 * 128 * 2 == 147_456


@pytest.mark.parametrize("model", ["glm-4.5", vendor_model("zai-org/GLM-4.5")], ids=["shipped", "vendor"])
def test_case_2_glm_4_5(model: str | Mapping[str, Any]) -> None:
    """92 layers, 8 KV heads, head_dim 128: not 157,013 (LMCache#2248)."""
    assert (
        report(model, overrides={"parallelism.tp": 8}).kv_cache.bytes_per_token * 8 == 376_832 == 92 * 2 * 8 * 128 * 2
    )


# Sharding


def test_case_6_a_rank_stores_at_least_one_head() -> None:
    """Qwen3-30B-A3B, 4 KV heads: TP8 stores what TP4 stores, so equal bytes hold equally many requests."""
    pools = [
        report("qwen3-30b-a3b", overrides={"parallelism.tp": tp, "engine_options.kv_cache_bytes": 8 * GIB})
        for tp in (4, 8)
    ]
    assert [found.kv_cache.bytes_per_token for found in pools] == [48 * 2 * 1 * 128 * 2] * 2 == [24_576] * 2
    assert pools[0].capacity == pools[1].capacity
    assert any("tp 8 exceeds the 4 key/value heads" in warning for warning in pools[1].warnings)


def test_case_7_pipeline_stages_divide_the_cache() -> None:
    """Llama-3.1-8B on two stages holds 2.26 times the tokens of one: 1,075,312 / 476,016 in vLLM 0.19's logs."""
    one, two = (logs.one("meta-llama/Llama-3.1-8B-Instruct", pp=pp, tp="1", **BF16_8K) for pp in ("1", "2"))
    logged = int(two["kv_tokens"]) / int(one["kv_tokens"])
    planned = [estimate(logs.scenario_of(row)).capacity.num_blocks for row in (two, one)]
    assert planned[0] / planned[1] == pytest.approx(logged, rel=0.01)
    assert round(logged, 2) == 2.26


BF16_8K = {"weights_dtype": "bfloat16", "kv_dtype": "bf16", "max_model_len": "8192"}


def test_case_8_tp_must_divide_what_it_cuts() -> None:
    """Qwen3-14B: 40 heads do divide by 5; 8 KV heads, the vocabulary and the MLP width do not."""
    message = refusal("qwen3-14b", {"parallelism.tp": 5})
    assert "tp 5 and the model's 8 key/value heads: one must divide the other" in message
    assert "tp 5 does not divide the vocabulary of 151936" in message
    assert "tp 5 does not divide the model's 17408 width of mlp.gate_proj" in message
    assert "tp 3 does not divide the model's 40 attention heads" in refusal("qwen3-14b", {"parallelism.tp": 3})


def test_case_9_workspace_is_per_gpu() -> None:
    """The logs show 1.89 GiB of activations on each rank at TP 1, 2 and 4."""
    ranks = [report(LLAMA_8B, overrides={"parallelism.tp": tp}) for tp in (1, 2, 4)]
    assert len({line(found, "activations") for found in ranks}) == 1
    assert {sum(part.bytes for part in found.memory.lines) for found in ranks} == {ranks[0].memory.device_bytes}


# Data types

FP8_DYNAMIC: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
}
FP8_CACHE = {"dynamic": False, "num_bits": 8, "type": "float"}


def test_case_16_fp8_weights_leave_the_cache_in_bf16() -> None:
    """Llama-3.3-70B fp8-dynamic at TP2: 80 layers, 4 of 8 KV heads, 128 wide, 2 B (engine log)."""
    model = vendor_model("meta-llama/Llama-3.1-70B-Instruct", quantization_config=FP8_DYNAMIC)
    found = report(model, overrides={"parallelism.tp": 2})
    assert found.kv_cache.bytes_per_token == 80 * 2 * 4 * 128 * 2 == 163_840
    assert found.model.quantisation == "fp8, one scale per output channel"
    logged = logs.one("RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic")
    assert found.memory.weights_bytes / GIB == pytest.approx(float(logged["weights_gib"]), abs=0.1)


@pytest.mark.parametrize(
    ("quantization_config", "hf_quant_config", "cache"),
    [
        (FP8_DYNAMIC, None, "bfloat16"),
        ({**FP8_DYNAMIC, "kv_cache_scheme": FP8_CACHE}, None, "bfloat16"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, None, "bfloat16"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, None, "bfloat16"),
        ({"quant_method": "modelopt", "kv_cache_scheme": FP8_CACHE}, None, "fp8"),
        ({"quant_method": "modelopt", "kv_cache_scheme": {**FP8_CACHE, "dynamic": True}}, None, "bfloat16"),
        ({"quant_method": "modelopt_fp4", "kv_cache_quant_algo": "FP8"}, None, "fp8"),
        (None, {"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
        (None, {"quantization": {"kv_cache_quant_algo": "FP8"}}, "bfloat16"),
        (FP8_DYNAMIC, {"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}}, "bfloat16"),
    ],
)
def test_case_16_only_a_modelopt_checkpoint_can_declare_an_fp8_cache(
    quantization_config: dict[str, Any] | None, hf_quant_config: dict[str, Any] | None, cache: str
) -> None:
    config = {"quantization_config": quantization_config} if quantization_config else {}
    assert resolve_dtype("auto", "bfloat16", config, hf_quant_config)[0] == cache
    assert resolve_dtype("bfloat16", "bfloat16", config, hf_quant_config) == ("bfloat16", "given")


def test_case_17_a_float32_checkpoint_is_served_in_two_bytes() -> None:
    """starcoder: 40 layers, one KV head of 128, stored in float32; only --dtype float32 makes it 4 bytes."""
    model = vendor_model("bigcode/starcoder")
    assert model["config"]["torch_dtype"] == "float32"
    cache = [
        report(model, overrides=asked).kv_cache.bytes_per_token
        for asked in ({}, {"engine_options.dtype": "float32"}, {"kv_cache.dtype": "float32"})
    ]
    assert cache == [40 * 2 * 128 * 2, 40 * 2 * 128 * 4, 40 * 2 * 128 * 4]


@pytest.mark.parametrize(
    ("dtype", "head"),
    [
        ("bfloat16", 128 * 2),
        ("fp8", 128),
        ("fp8_per_token_head", 128 + 4),
        ("int8_per_token_head", 128 + 4),
        ("int4_per_token_head", 128 // 2 + 4),
        ("nvfp4", 128 // 2 + 128 // 16),
    ],
)
def test_case_18_quantised_caches_store_their_scales(dtype: str, head: int) -> None:
    """NVFP4: 4-bit values and one FP8 scale per 16 (TensorRT-LLM#8197)."""
    assert kv_bytes_per_token(8, 128, 128, dtype) == 2 * 8 * head
    assert report(LLAMA_8B, "b200-sxm", {"kv_cache.dtype": dtype}).kv_cache.bytes_per_token == 32 * 2 * 8 * head


# Limits and words


def test_case_19_context_beyond_the_positions_is_refused() -> None:
    """Qwen3-32B has 40,960 positions; aiconfigurator accepts 80,000 silently."""
    message = refusal("qwen3-32b", {"context_tokens": 80_000})
    assert "context_tokens: 80,000 is over the 40,960 positions that qwen3-32b allows" in message
    assert "qwen3-32b.yaml:" in message
    assert "config.max_position_embeddings" in message
    assert report("qwen3-32b", overrides={"context_tokens": 40_960}).scenario.context_tokens == 40_960


def test_case_19_a_rope_scaled_config_says_what_it_allows() -> None:
    """Four times the original 32,768 positions, as Qwen3's model card sets yarn up."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    model = vendor_model("Qwen/Qwen3-32B", rope_scaling=yarn)
    assert report(model, overrides={"context_tokens": 131_072}).model.max_positions == 4 * 32_768
    assert "config.rope_scaling.factor" in refusal(model, {"context_tokens": 131_073})


def test_case_20_the_model_or_the_request_does_not_fit() -> None:
    model = report("llama-3.1-70b")
    assert (model.fits, model.binding_limit) == (False, "device_memory")
    assert "the model does not fit" in model.binding_reason
    request = report(LLAMA_8B, overrides={"context_tokens": 131_072, "engine_options.kv_cache_bytes": 8 * GIB})
    assert (request.fits, request.binding_limit) == (False, "kv_memory")
    longest = (8 * GIB // 131_072 // 16 - 1) * 16  # 128 KiB a token, 16-token blocks, one null block
    assert request.capacity.longest_context_tokens == longest
    assert f"the longest context that fits is {longest:,} tokens" in request.binding_reason


def test_case_20_requests_that_do_not_fit_are_counted() -> None:
    asked = scenario(LLAMA_8B, overrides={"context_tokens": 65_536, "workload.concurrency": 100})
    carry = estimate(asked, 1).carry
    assert carry is not None
    assert carry.requests_at_context == 0  # one device is one replica, and the spare takes it
    carry = estimate(asked, 2).carry
    assert carry is not None
    assert carry.requests_at_context == estimate(asked).capacity.requests_per_replica
    assert carry.queued_requests == 100 - carry.requests_at_context


def test_case_21_60_users_on_26_slots_do_not_all_run() -> None:
    asked = {"workload.concurrency": 60, "engine_options.max_num_seqs": 26, "spares": {"replicas": 0}}
    found = estimate(scenario(LLAMA_8B, overrides=asked), 1)
    assert found.carry is not None
    assert (found.carry.running_requests, found.carry.queued_requests) == (26, 34)
    assert found.fleet is not None
    assert found.fleet.active_replicas == 3  # ceil(60 / 26)


def test_case_22_80_gb_is_81559_mib() -> None:
    """An engine sees 79.19 GiB of an H100; GiB is never called GB (hf-mem#33)."""
    gpu = scenario(LLAMA_8B).accelerator
    assert gpu.memory_mib == 81_559
    assert report(LLAMA_8B).memory.device_bytes == 81_091 * MIB
    assert show_bytes(81_091 * MIB) == "79.19 GiB"
    assert show_bytes(81_559 * MIB) == "79.65 GiB"


def test_case_23_replicas_and_devices_are_both_named() -> None:
    asked = {"parallelism.tp": 8, "workload.concurrency": 5, "engine_options.max_num_seqs": 1}
    found = report("llama-3.1-70b", overrides={**asked, "spares": {"replicas": 0}})
    assert replicas(found) == "5 replicas x TP8 = 40 h100-sxm"


def test_case_23_one_node_is_enough_where_it_is() -> None:
    """Small loads fill one 8-GPU instance, not one instance per replica (configiq#89)."""
    node = {"instance": "node", "devices": 8, "usd_per_hour": 8, "source": "test"}
    found = report(LLAMA_8B, overrides={"price": node, "workload.concurrency": 10})
    assert found.fleet is not None
    assert (found.fleet.devices, found.fleet.nodes, found.fleet.billed_devices) == (2, 1, 8)
    assert any("8 devices are billed and 2 used" in warning for warning in found.warnings)


def test_case_24_an_unpriced_gpu_is_an_error() -> None:
    assert "rtx-4090" not in catalog.names("price")
    with pytest.raises(InputError, match="rtx-4090 has no listed price, and an unpriced device is not free"):
        catalog.load_scenario({"model": LLAMA_8B, "accelerator": "rtx-4090", "workload": "chat"}, Origin("test"), {})
    with pytest.raises(InputError, match="usd_per_hour"):
        report(LLAMA_8B, overrides={"price.usd_per_hour": 0})


def test_case_25_what_was_asked_is_never_substituted() -> None:
    asked = {"context_tokens": 8192, "parallelism.tp": 1, "kv_cache.dtype": "bfloat16"}
    found = report("llama-3.1-70b", overrides=asked)
    facts = found.scenario
    assert (facts.context_tokens, facts.tp, found.kv_cache.dtype, found.fits) == (8192, 1, "bfloat16", False)
    proposed = next(
        tp for tp in (2, 4, 8, 16) if report("llama-3.1-70b", overrides={**asked, "parallelism.tp": tp}).fits
    )
    assert any(f"it would fit with --tp {proposed}:" in warning for warning in found.warnings)


@pytest.mark.parametrize("pool", [1, 2 * MIB - 1, 2 * MIB, 4 * MIB - 1])
def test_case_26_a_pool_without_a_usable_block_ends(pool: int) -> None:
    """A block of Llama-3.1-8B is 2 MiB, and one of them is the null block (sched-sim spins forever)."""
    asked = scenario(LLAMA_8B, overrides={"context_tokens": 1, "engine_options.kv_cache_bytes": pool})
    found = estimate(asked, 8)
    assert not found.fits
    assert found.fleet is None
    assert (found.capacity.usable_blocks, found.capacity.longest_context_tokens) == (0, 0)
    assert found.carry is not None
    assert (found.carry.running_requests, found.carry.queued_requests) == (0, 1)
