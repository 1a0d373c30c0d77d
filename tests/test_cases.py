"""Inputs that make other calculators, planners and engines wrong, each with the right value.

The issue named in a docstring is the public report of the fault.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from planner import catalog
from planner.deployment import deploy
from planner.errors import InputError
from planner.kv_cache import kv_bytes_per_token, resolve_dtype
from planner.mixers import Attention
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


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_case_3_a_latent_cache_is_whole_on_every_rank(tp: int) -> None:
    """DeepSeek-V3: 61 layers of (512 + 64) x 2 B, no factor 2 for keys and values, never divided (LMCache#694)."""
    found = report("deepseek-v3", "b300-sxm", {"parallelism.tp": tp, "engine_options.kv_cache_bytes": 24 * GIB})
    assert found.kv_cache.bytes_per_token == 61 * (512 + 64) * 2 == 70_272
    assert found.kv_cache.bytes_per_block == 32 * 70_272  # the B200 generation's kernel has blocks of 32
    assert found.capacity.num_blocks == 24 * GIB // (32 * 70_272)


def test_case_4_keys_and_values_differ_in_width_and_layers_in_heads() -> None:
    """MiMo-V2-Flash: 9 full layers of 4 heads, 39 windowed (128) of 8; keys 192 wide, values 128."""
    layers = deploy(scenario("mimo-v2-flash")).stack.layers
    mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, Attention)]
    shapes = Counter((m.kv_heads, m.key_dim, m.value_dim, m.window) for m in mixers)
    assert shapes == {(4, 192, 128, None): 9, (8, 192, 128, 128): 39}
    cache = report("mimo-v2-flash", overrides={"parallelism.tp": 4, "context_tokens": 32_768, **POOL}).kv_cache
    # one of 4 heads a rank in full layers, two in windowed ones
    assert cache.bytes_per_token == 9 * (192 + 128) * 2 == 5760
    plain = report("mimo-v2-flash", overrides={**GENERIC, "context_tokens": 32_768, "parallelism.tp": 8}).kv_cache
    assert plain.bytes_per_request == 32_768 * 9 * 320 * 2 + 128 * 39 * 320 * 2


def test_case_5_kinds_of_layers_differ_in_heads_and_width() -> None:
    """Gemma-4-26B: 5 full layers with 2 heads of 512, 25 windowed ones with 8 of 256."""
    layers = deploy(scenario("gemma-4-26b-a4b")).stack.layers
    mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, Attention)]
    shapes = Counter((m.kv_heads, m.key_dim, m.value_dim, m.window) for m in mixers)
    assert shapes == {(2, 512, 512, None): 5, (8, 256, 256, 1024): 25}
    groups = report("gemma-4-26b-a4b", overrides=POOL).kv_cache.groups
    # the full layers' page is half as large, so their block holds twice the tokens
    assert [(g.kind, g.layers, g.block_tokens) for g in groups] == [("window", 5, 16)] * 5 + [("full", 5, 32)]
    assert {g.page_bytes for g in groups} == {5 * 16 * 8 * (256 + 256) * 2}


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


def test_more_ranks_than_heads_in_only_some_layers_is_no_warning() -> None:
    """MiMo-V2-Flash: 4 heads in full layers, 8 in windowed ones, which TP8 still divides."""
    pools = [
        report(
            "mimo-v2-flash",
            overrides={
                "parallelism.tp": tp,
                "engine_options.kv_cache_bytes": 40 * 10**9,
                "workload.context_tokens": 8192,
            },
        )
        for tp in (4, 8)
    ]
    assert pools[1].capacity.requests_per_replica > pools[0].capacity.requests_per_replica
    assert not any("key/value heads" in warning for warning in pools[1].warnings)


def test_a_checkpoint_dtype_that_the_gpu_lacks_is_said() -> None:
    assumed = report("qwen3-0.6b", "t4").assumptions
    assert "served in float16: the checkpoint is in bfloat16, which t4 does not compute in" in assumed


def test_case_7_pipeline_stages_divide_the_cache() -> None:
    """Llama-3.1-8B on two stages holds 2.26 times the tokens of one: 1,075,312 / 476,016 in vLLM 0.19's logs."""
    one, two = (logs.one("meta-llama/Llama-3.1-8B-Instruct", pp=pp, tp="1", **BF16_8K) for pp in ("1", "2"))
    logged = int(two["kv_tokens"]) / int(one["kv_tokens"])
    planned = [estimate(logs.scenario_of(row)).capacity.num_blocks for row in (two, one)]
    assert planned[0] / planned[1] == pytest.approx(logged, rel=0.01)
    assert round(logged, 2) == 2.26


def test_case_7_the_fullest_stage_governs() -> None:
    """gpt-oss-120b on two stages of 18 layers: each has 9 full and 9 windowed, and the last the output head too."""
    one, two = (report("gpt-oss-120b", overrides={"parallelism.pp": pp, "context_tokens": 32_768}) for pp in (1, 2))
    assert 2 * two.kv_cache.bytes_per_block == one.kv_cache.bytes_per_block
    assert [group.layers for group in two.kv_cache.groups] == [9, 9]
    assert two.memory.governing_rank.startswith("pipeline stage ")
    assert two.capacity.requests_per_replica > 2 * one.capacity.requests_per_replica


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


# Hybrids

POOL = {"engine_options.kv_cache_bytes": 24 * GIB}
GENERIC: dict[str, Any] = {"engine": "generic", "memory": {"workspace_gib": 1, "reserve_gib": 1}, **POOL}


@pytest.mark.parametrize(
    ("tokens", "all_full", "reserved", "held"),
    [
        (16_384, 1_207_959_552, 1_208_549_376, 608_698_368),
        (32_768, 2_415_919_104, 1_817_247_744, 1_212_678_144),
    ],
)
def test_case_10_half_of_gpt_oss_is_windowed(tokens: int, all_full: int, reserved: int, held: int) -> None:
    """gpt-oss-120b on H100: 18 full and 18 windowed (128) layers, 8 heads of 64 (aiconfigurator#1537).

    A block id costs 18 x 16 x 2,048 B. Reserved: L / 16 full and ceil(min(127 + 16,384, L) / 16) + 1 windowed blocks;
    held: L / 16 and 8.
    """
    cache = report("gpt-oss-120b", overrides={"context_tokens": tokens, **POOL}).kv_cache
    assert all_full == tokens * 36 * 2 * 8 * 64 * 2
    assert cache.bytes_per_block == 18 * 16 * 2048
    assert cache.bytes_per_request == reserved == (tokens // 16 + min(1032, tokens // 16) + 1) * 18 * 16 * 2048
    assert cache.held_bytes_per_request == held == (tokens // 16 + 8) * 18 * 16 * 2048
    assert cache.bytes_per_token == 18 * 2048


def test_case_10_twice_the_context_reserves_half_more() -> None:
    """x1.50 reserved, x1.99 held."""
    short, long = (report("gpt-oss-120b", overrides={"context_tokens": n, **POOL}).kv_cache for n in (16_384, 32_768))
    assert round(long.bytes_per_request / short.bytes_per_request, 2) == 1.50
    assert round(long.held_bytes_per_request / short.held_bytes_per_request, 2) == 1.99


def gemma_4_31b() -> dict[str, Any]:
    """Gemma-4-31B by its published sizes: 50 windowed layers with 16 heads of 256, 10 full ones with 4 of 512."""
    config = vendor_model("google/gemma-4-26B-A4B")["config"]["text_config"]
    sizes = {"num_hidden_layers": 60, "num_key_value_heads": 16, "num_global_key_value_heads": 4, "hidden_size": 5376}
    kinds = {"layer_types": [*config["layer_types"], *config["layer_types"]], "num_attention_heads": 32}
    dense = {"enable_moe_block": False, "num_experts": None, "top_k_experts": None, "intermediate_size": 21_504}
    return vendor_model("google/gemma-4-26B-A4B", text_config={**config, **sizes, **kinds, **dense})


@pytest.mark.parametrize("tokens", [512, 1024, 4096, 131_072])
def test_case_11_a_windowed_part_stops_growing_at_the_window(tokens: int) -> None:
    """880 KiB a token is the slope below 1,024 tokens only (configiq#112)."""
    windowed, full = 50 * 16 * (256 + 256) * 2, 10 * 4 * (512 + 512) * 2
    assert windowed + full == 880 * 1024
    cache = report(gemma_4_31b(), overrides={**GENERIC, "context_tokens": tokens}).kv_cache
    assert cache.bytes_per_request == full * tokens + windowed * min(tokens, 1024)
    assert cache.bytes_per_token == full == 80 * 1024
    assert [(point.context_tokens, point.held_bytes) for point in cache.by_context] == [
        (n, full * n + windowed * min(n, 1024)) for n in (*(2**k for k in range(10, 17) if 2**k < tokens), tokens)
    ]


def test_case_12_only_one_layer_in_four_has_a_cache() -> None:
    """Qwen3.5-27B: 16 of 64 layers, 4 heads of 256; 48 states (LMCache#3080, vllm#54458).

    A state: 3 taps of 10,240 channels in 2 B, 48 heads of 128 x 128 in 4 B: 3,207,168 B. A page of it takes
    ceil(3,207,168 / (64 x 4,096 B per token)) = 13 units of 64 tokens.
    """
    state = 3 * (2 * 128 * 16 + 128 * 48) * 2 + 48 * 128 * 128 * 4
    cache = report("qwen3.5-27b", overrides={"context_tokens": 32_768, **POOL}).kv_cache
    assert cache.bytes_per_token == 16 * 2 * 4 * 256 * 2 == 65_536
    assert cache.state_bytes_per_request == 48 * state == 153_944_064
    assert cache.block_tokens == 64 * 13 == 832
    assert [(g.kind, g.layers, g.reserved_blocks, g.held_blocks) for g in cache.groups] == [
        *[("state", 16, 3, 1)] * 3,
        ("full", 16, 40, 40),  # ceil(32,768 / 832)
    ]
    plain = report("qwen3.5-27b", overrides={**GENERIC, "context_tokens": 32_768}).kv_cache
    assert plain.bytes_per_request == 32_768 * 65_536 + 153_944_064


def test_case_13_layers_without_a_cache_are_not_counted() -> None:
    """Nemotron-3-Super-120B: 8 attention and 40 state layers of 88, 2 heads of 128 (aisimulate#176)."""
    model = vendor_model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8")
    layers = deploy(scenario(model)).stack.layers
    kinds = Counter(type(layer.mixer).__name__ for layer in layers)
    assert kinds == {"Attention": 8, "State": 40, "NoneType": 40}
    cache = report(model, overrides=POOL).kv_cache
    assert cache.bytes_per_token == 8 * 2 * 2 * 128 * (1 if cache.dtype == "fp8" else 2)
    assert sum(group.layers for group in cache.groups) == 48


def test_case_14_concurrency_and_not_tokens_says_what_a_hybrid_pool_holds() -> None:
    """gpt-oss-120b in 24 GiB: 43,690 block ids over 2 groups are 349,520 tokens, yet 14.18 requests of 32,768 fit,
    and not 10.67 (vllm#40691)."""
    found = report("gpt-oss-120b", overrides={"context_tokens": 32_768, **POOL})
    blocks = 24 * GIB // (18 * 16 * 2048)
    assert found.capacity.num_blocks == blocks == 43_690
    assert round(blocks // 2 * 16 / 32_768, 2) == 10.67
    assert round(found.capacity.max_concurrency, 4) == round(blocks / (2048 + 1033), 4) == 14.1805


@pytest.mark.parametrize(("gpu", "batched"), [("h100-sxm", 8192), ("b200-sxm", 16_384), ("a100-sxm-80gb", 2048)])
def test_case_15_a_window_is_neither_just_itself_nor_the_whole_context(gpu: str, batched: int) -> None:
    """Reserved: the window and two steps' tokens; prefilling: the window and one chunk; decoding: the window."""
    cache = report("gpt-oss-120b", gpu, {"context_tokens": 131_072, **POOL}).kv_cache
    window, full = cache.groups
    assert (window.span_tokens, full.span_tokens) == (128, None)
    assert window.reserved_blocks == -(-(127 + 2 * batched) // 16) + 1
    assert window.held_blocks == 128 // 16 < window.reserved_blocks < full.reserved_blocks == 131_072 // 16
    chunk = (127 + batched) // 16 + 1
    assert cache.prefill_bytes_per_request == (chunk + 8192) * cache.bytes_per_block


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
    for devices, waived in ((1, True), (2, False)):  # one active; the only replica is no spare
        carry = estimate(asked, devices).carry
        assert carry is not None
        assert (carry.active_replicas, carry.spare_replicas, carry.spares_waived) == (1, devices - 1, waived)
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
