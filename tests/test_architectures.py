"""Model families against what the engine itself allocates, and against configs that lie."""

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from planner import architectures
from planner.architectures import known_families, resolve
from planner.blocks import Moe, Stack
from planner.deployment import deploy
from planner.errors import InputError
from planner.mixers import Attention
from planner.origin import Origin
from planner.quantisation import from_checkpoint
from planner.sharding import Ranks, problems, rank_shape, stages, weight_bytes
from planner.weights import served_dtype
from tests.scenarios import ENGINE, VENDORS, scenario

ORIGIN = Origin("config.json")
MODELS: dict[str, Any] = VENDORS["models"]
RUNS = {(name, run["tp"]): run for name, row in ENGINE["models"].items() for run in reversed(row["variants"])}
"""A run of the engine by model and TP; weights do not depend on what else varies."""
ARTEFACT = ("bigcode/starcoder", 8)
"""Its count is an artefact of the engine's run."""
NEAR = {("nvidia/Qwen3.6-27B-NVFP4", 1): 386, ("nvidia/Qwen3.6-27B-NVFP4", 8): 386}
"""Bytes that the engine has more."""
FITS = [key for key, run in RUNS.items() if "lengths" in run and key != ARTEFACT]
WINDOWED = [  # by one window in all layers, which the config switches on
    "bigcode/starcoder2-7b", "microsoft/Phi-3-mini-128k-instruct", "microsoft/Phi-3.5-mini-instruct",
    "microsoft/Phi-4-mini-instruct", "mistralai/Mistral-7B-v0.1",
]  # fmt: skip
REFUSED = [key for key, run in RUNS.items() if "attention heads" in run.get("vllm_error", "")]

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
QWEN3_MOE: dict[str, Any] = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "olmo2", "cohere")


def read(config: Mapping[str, Any]) -> Stack:
    return resolve(config, ORIGIN)


def refusal(config: Mapping[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        read(config)
    return str(caught.value)


def attention_of(config: Mapping[str, Any], layer: int = 0) -> Attention:
    mixer = read(config).layers[layer].mixer
    assert isinstance(mixer, Attention)
    return mixer


def test_oracle_files_say_where_they_come_from() -> None:
    assert ENGINE["meta"]["engine"].startswith("vLLM 0.33.0 ")
    assert VENDORS["licence"]
    assert VENDORS["as_of"] == "2026-11-29"
    assert all(row["source"] for row in MODELS.values())
    assert ENGINE["models"].keys() == MODELS.keys()
    assert (len(MODELS), sum(row["reconstructed"] for row in MODELS.values())) == (110, 25)


@pytest.mark.parametrize(("name", "tp"), FITS)
def test_rank_holds_what_the_engine_allocates(name: str, tp: int) -> None:
    row, run, ranks = MODELS[name], RUNS[name, tp], Ranks(tp)
    stack, dtype = read(row["config"]), served_dtype(row["config"], "auto")
    quantisation = from_checkpoint(row["config"], row.get("hf_quant_config"), ORIGIN)
    (stage,) = stages(stack, 1)
    assert f"torch.{dtype}" == run["model_dtype"]
    assert problems(stack, ranks, quantisation) == []
    allocated = run["rank0_param_bytes"] - NEAR.get((name, tp), 0)
    assert weight_bytes(stack, stage, ranks, dtype, quantisation) == allocated
    if quantisation is None:
        shapes = ((count, rank_shape(tensor, ranks)) for count, tensor in stage.tensors(stack))
        elements = sum(count * rows * cols * copies for count, (rows, cols, copies) in shapes)
        assert elements == run["rank0_params"]


@pytest.mark.parametrize(("name", "tp"), REFUSED)
def test_what_the_engine_refuses_has_a_reason(name: str, tp: int) -> None:
    heads = re.search(r"attention heads \((\d+)\)", RUNS[name, tp]["vllm_error"])
    assert heads
    reasons = problems(read(MODELS[name]["config"]), Ranks(tp))
    assert f"tp {tp} does not divide the model's {heads[1]} attention heads" in reasons


def test_engine_refusals_of_heads_are_found() -> None:
    assert len(REFUSED) == 7


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_in_effect_are_read(name: str) -> None:
    """Every layer keeps the window, and the weights are those of the same model without it."""
    config = MODELS[name]["config"]
    stack = read(config)
    windows = {mixer.window for layer in stack.layers for mixer in layer.mixers if isinstance(mixer, Attention)}
    assert windows == {config["sliding_window"]}
    full = read({**config, "sliding_window": None})
    assert full.parameters == stack.parameters
    assert {mixer.window for layer in full.layers for mixer in layer.mixers if isinstance(mixer, Attention)} == {None}


@pytest.mark.parametrize("name", MODELS)
def test_experts_not_picked_are_not_active(name: str) -> None:
    stack = read(MODELS[name]["config"])
    parts = (layer.ffn for layer in stack.layers)
    sparse = any(isinstance(part, Moe) and part.top_k < part.experts for part in parts)
    towers = sum(count * tensor.elements for tower in stack.towers for count, tensor in tower.weights)
    assert (stack.active_parameters < stack.parameters - towers) == sparse
    assert stack.max_positions > 0


@pytest.mark.parametrize("model_type", LLAMA_LIKE)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": "32"}, "num_attention_heads: an integer is needed, not '32'"),
        ({"num_attention_heads": 0}, "num_attention_heads: 0 is out of range"),
        ({"num_attention_heads": True}, "num_attention_heads: an integer is needed, not True"),
        ({"num_key_value_heads": 64}, "64 key/value heads do not divide num_attention_heads 32"),
        ({"num_key_value_heads": 5}, "5 key/value heads do not divide num_attention_heads 32"),
        ({"num_key_value_heads": -8}, "num_key_value_heads: -8 is out of range"),
        ({"head_dim": 0}, "head_dim: 0 is out of range"),
        ({"hidden_size": 2**40}, f"hidden_size: {2**40} is out of range"),
        ({"hidden_size": 1.5}, "hidden_size: an integer is needed, not 1.5"),
        ({"hidden_size": [4096]}, "hidden_size: an integer is needed"),
        ({"vocab_size": None}, "vocab_size: missing"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000 is out of range"),
        ({"num_hidden_layers": float("nan")}, "num_hidden_layers: an integer is needed, not nan"),
        ({"layer_types": ["full_attention"] * 31}, "layer_types: lists 31 layers, and the model has 32"),
        ({"layer_types": []}, "layer_types: lists 0 layers, and the model has 32"),
        ({"layer_types": "full_attention"}, "layer_types: a list of strings is needed"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: true or false is needed, not 'yes'"),
        ({"vision_config": {"depth": 32}}, "vision_config: "),
    ],
)
def test_hostile_llama_like_configs(model_type: str, change: dict[str, Any], message: str) -> None:
    config = {**LLAMA, "model_type": model_type, "sliding_window": None, **change}
    assert message in refusal(config)


@pytest.mark.parametrize("model_type", LLAMA_LIKE)
def test_a_window_is_kept_where_the_family_has_windows_and_refused_elsewhere(model_type: str) -> None:
    config = {**LLAMA, "model_type": model_type, "sliding_window": 512, "use_sliding_window": True}
    config |= {"layer_types": ["full_attention"] * 31 + ["sliding_attention"]}
    if model_type in ("mistral", "qwen2", "qwen3", "phi3"):
        windows = [attention_of(config, layer).window for layer in range(32)]
        assert windows == [None] * 31 + [512]
        return
    assert "layer_types: layers of sliding_attention" in refusal(config)
    assert "sliding_window: a window (512)" in refusal({**config, "layer_types": None})


def test_class_defaults_of_windows() -> None:
    """Mistral windows every layer at 4,096; Qwen2 none, and where it is switched on those from max_window_layers."""
    config = {**LLAMA, "max_window_layers": 28}
    assert {attention_of({**config, "model_type": "mistral"}, layer).window for layer in range(32)} == {4096}
    assert attention_of({**config, "model_type": "qwen2"}, 31).window is None
    qwen2 = {**config, "model_type": "qwen2", "use_sliding_window": True}
    assert [attention_of(qwen2, layer).window for layer in (0, 27, 28, 31)] == [None, None, 4096, 4096]


@pytest.mark.parametrize("model_type", LLAMA_LIKE)
def test_layer_types_that_are_all_full_change_nothing(model_type: str) -> None:
    config = {**LLAMA, "model_type": model_type, "sliding_window": None}
    listed = {**config, "layer_types": ["full_attention"] * 32}
    assert read(listed).parameters == read(config).parameters


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**QWEN3_MOE, "num_experts_per_tok": 129}, "129 experts per token are more than the model's 128"),
        ({**QWEN3_MOE, "num_experts": 0}, "num_experts: 0 is out of range"),
        ({**QWEN3_MOE, "decoder_sparse_step": 0}, "decoder_sparse_step: 0 is out of range"),
        ({**QWEN3_MOE, "mlp_only_layers": ["0"]}, "mlp_only_layers: a list of integers is needed"),
        ({**GPT2, "n_head": 7}, "7 heads do not divide hidden_size 768"),
        ({**GPT2, "n_inner": "x"}, "n_inner: an integer is needed, not 'x'"),
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention: cross-attention is not supported"),
        ({**LLAMA, "model_type": "starcoder2", "norm_type": "rms_norm"}, "norm_type: 'rms_norm'"),
        ({**LLAMA, "model_type": "starcoder2", "mlp_type": "gated"}, "mlp_type: 'gated'"),
        ({**LLAMA, "model_type": "falcon", "num_ln_in_parallel_attn": 3}, "num_ln_in_parallel_attn: 3"),
        (
            {**LLAMA, "model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 5},
            "num_kv_heads: 5 key/value heads do not divide 32 heads",
        ),
        ({**MODELS["MiniMaxAI/MiniMax-M2.5"]["config"], "attn_type_list": [0, 1]}, "attn_type_list: linear"),
        ({**MODELS["MiniMaxAI/MiniMax-M2.5"]["config"], "qk_norm_type": "per_head"}, "qk_norm_type: "),
        (
            {**MODELS["MiniMaxAI/MiniMax-M2.5"]["config"], "shared_intermediate_size": 512},
            "shared_intermediate_size: a shared expert is not known",
        ),
    ],
)
def test_hostile_configs_of_single_families(config: dict[str, Any], message: str) -> None:
    assert message in refusal(config)


def test_all_problems_of_a_config_come_at_once_and_none_is_made_up() -> None:
    config = {**LLAMA, "num_attention_heads": "32", "vocab_size": 0, "num_hidden_layers": None}
    with pytest.raises(InputError) as caught:
        read(config)
    fields = [problem.split(": ")[1] for problem in caught.value.problems]
    assert sorted(fields) == ["num_attention_heads", "num_hidden_layers", "vocab_size"]


@pytest.mark.parametrize("model_type", sorted(known_families()))
@pytest.mark.parametrize("value", ["x", -1, 0, 1.5, True, [], {}, [1], None, 2**60, float("inf")])
def test_no_family_reads_nonsense_or_fails_on_it(model_type: str, value: object) -> None:
    fields = {name: value for config in (LLAMA, QWEN3_MOE, GPT2) for name in config}
    assert refusal({**fields, "model_type": model_type})
    assert refusal({"model_type": model_type})


@pytest.mark.parametrize(
    ("model_type", "kv_heads", "head_dim"),
    [("llama", 32, 128), ("mistral", 8, 128), ("qwen3", 32, 128), ("gemma", 16, 256), ("glm4_moe", 8, 128)],
)
def test_class_defaults_fill_what_a_config_omits(model_type: str, kv_heads: int, head_dim: int) -> None:
    config = {**QWEN3_MOE, "model_type": model_type, "n_routed_experts": 8, "sliding_window": None}
    del config["num_key_value_heads"]
    mixer = attention_of(config)
    assert (mixer.kv_heads, mixer.key_dim) == (kv_heads, head_dim)
    assert attention_of({**config, "num_key_value_heads": None}).kv_heads == 32


@pytest.mark.parametrize("switch", [{"use_sliding_window": False}, {"sliding_window": None}])
@pytest.mark.parametrize("model_type", ["mistral", "phi3", "starcoder2", "qwen2", "qwen3", "mixtral"])
def test_windows_that_are_switched_off_do_not_count(model_type: str, switch: dict[str, Any]) -> None:
    config = {**LLAMA, "num_local_experts": 8, "model_type": model_type, "sliding_window": 4096, **switch}
    assert len(read(config).layers) == 32


@pytest.mark.parametrize(
    ("change", "kv_heads", "norms"),
    [
        ({}, 1, 1),
        ({"multi_query": False, "parallel_attn": False, "alibi": True}, 32, 2),
        ({"new_decoder_architecture": True, "num_kv_heads": 8}, 8, 2),
        ({"new_decoder_architecture": True, "num_kv_heads": 8, "num_ln_in_parallel_attn": 1}, 8, 1),
    ],
)
def test_falcon_variants(change: dict[str, Any], kv_heads: int, norms: int) -> None:
    config = {**LLAMA, "model_type": "falcon", **change}
    layer, mixer = read(config).layers[0], attention_of(config)
    assert mixer.kv_heads == kv_heads
    assert mixer.alibi == change.get("alibi", False)
    assert mixer.ignores_kv_dtype
    assert sum(tensor.elements for tensor in layer.norms) == norms * 2 * 4096


def test_opt_350m_embeds_in_another_width() -> None:
    """Published: 331,196,416 parameters (facebook/opt-350m)."""
    config = {
        "model_type": "opt",
        "do_layer_norm_before": False,
        "ffn_dim": 4096,
        "hidden_size": 1024,
        "max_position_embeddings": 2048,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "vocab_size": 50272,
        "word_embed_proj_dim": 512,
    }
    assert read(config).parameters == 331_196_416


def test_blocks_of_scales_that_tp_cuts() -> None:
    """A linear layer needs whole blocks on each rank; an expert's are refined down to a side of 32."""
    declared = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    quantisation = from_checkpoint(declared, None, ORIGIN)
    dense = problems(read({**LLAMA, "intermediate_size": 14336 + 64}), Ranks(8), quantisation)
    assert any("mlp.down_proj: a rank's slice of 1800 does not hold whole blocks" in reason for reason in dense)
    assert problems(read(QWEN3_MOE), Ranks(8), quantisation) == []
    narrow = problems(read({**QWEN3_MOE, "moe_intermediate_size": 640}), Ranks(8), quantisation)
    assert any("mlp.experts.up_proj: a rank's slice of 80" in reason for reason in narrow)


@pytest.mark.parametrize(
    "declared",
    [
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "fp8", "weight_block_size": "128"},
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": 8}},
        {"quant_method": "awq", "bits": 4, "group_size": "128"},
        {"quant_method": "gptq", "bits": 4, "group_size": 0},
        {"quant_method": "modelopt", "quant_algo": ["FP8"]},
        {"quant_method": "unheard-of"},
        ["fp8"],
    ],
)
def test_hostile_quantisation(declared: object) -> None:
    with pytest.raises(InputError, match="quantization_config"):
        from_checkpoint({"quantization_config": declared}, None, ORIGIN)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}


def test_a_rank_needs_whole_groups_of_the_weights_that_tp_cuts() -> None:
    quantisation = from_checkpoint({"quantization_config": GPTQ}, None, ORIGIN)
    reasons = problems(read({**LLAMA, "intermediate_size": 14336 + 512}), Ranks(8), quantisation)
    assert reasons == [
        f"mlp.down_proj: a rank's slice of 1856 does not hold whole groups ({quantisation and quantisation.name})"
    ]
    assert problems(read(LLAMA), Ranks(8), quantisation) == []


def test_gptq_experts_have_biases_and_rules_may_leave_modules_alone() -> None:
    """The engine makes room for a bias in each expert; AWQ's experts have none."""
    stack, ranks = read(QWEN3_MOE), Ranks(2)
    (stage,) = stages(stack, 1)

    def size(**changed: Any) -> int:
        form = from_checkpoint({"quantization_config": {**GPTQ, **changed}}, None, ORIGIN)
        return weight_bytes(stack, stage, ranks, "float16", form)

    layers, rows = len(stack.layers), 2 * QWEN3_MOE["moe_intermediate_size"] // 2 + QWEN3_MOE["hidden_size"]
    assert size() - size(quant_method="awq") == 2 * layers * QWEN3_MOE["num_experts"] * rows
    attention = size(dynamic={"-:.*self_attn.*": {}})
    assert attention > size()
    with pytest.raises(InputError, match="'gptq' in this form is not known"):
        size(dynamic={"+:.*self_attn.*": {"bits": 8}})


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({**GPTQ, "sym": False}, "does not serve asymmetric gptq weights: its GPTQ weights are symmetric"),
        ({**GPTQ, "desc_act": True}, "does not serve reordered gptq weights"),
        ({**GPTQ, "bits": 3}, "does not serve 3-bit gptq weights"),
        ({**GPTQ, "quant_method": "awq", "bits": 8}, "does not serve 8-bit awq weights"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "does not serve bitsandbytes weights"),
    ],
)
def test_quantised_weights_that_the_engine_refuses_are_refused_by_name(declared: dict[str, Any], reason: str) -> None:
    model = {"name": "quantised", "config": {**LLAMA, "quantization_config": declared}, "source": "test"}
    with pytest.raises(InputError, match=reason):
        deploy(scenario(model))


def test_fbgemm_stores_a_scale_per_output_channel_and_a_bound() -> None:
    declared = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"], "activation_scale_ub": 1200.0}
    quantisation = from_checkpoint({"quantization_config": declared}, None, ORIGIN)
    assert quantisation
    assert quantisation.weight_bytes(64, 32) == 64 * 32 + 4 * 64 + 4


def test_an_unknown_model_type_is_refused_with_the_nearest_names() -> None:
    message = refusal({**LLAMA, "model_type": "lama"})
    assert "'lama' is not a model family that planner knows" in message
    assert "nearest known: llama" in message
    assert "model_type: missing" in refusal({"hidden_size": 1})


def test_two_files_that_claim_one_model_type_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = SimpleNamespace(__name__="twin", MODEL_TYPES=("llama",))
    monkeypatch.setattr(architectures, "import_module", lambda _: twin)
    known_families.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="llama is claimed by twin and"):
            known_families()
    finally:
        monkeypatch.undo()
        known_families.cache_clear()


def test_every_family_says_where_its_shapes_come_from() -> None:
    for module in known_families().values():
        assert module.__doc__
        assert re.search(r"\.py|models/\w", module.__doc__)


def test_a_tower_that_the_config_leaves_to_the_class_is_noted() -> None:
    config = MODELS["meta-llama/Llama-4-Scout-17B-16E-Instruct"]["config"]
    assert "vision_config" not in config
    note = "the config has no vision_config: its tower is counted from the class's defaults"
    assert note in resolve(config, ORIGIN).notes
    assert note not in resolve(scenario("llama-4-scout-17b-16e").model.config, ORIGIN).notes
