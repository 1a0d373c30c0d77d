"""Model families against what the engine itself allocates, and against configs that lie."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planner import architectures
from planner.architectures import known_families, resolve
from planner.blocks import Stack
from planner.errors import InputError
from planner.origin import Origin
from planner.quantisation import from_checkpoint
from planner.sharding import Ranks, problems, rank_shape, stages, weight_bytes

ORIGIN = Origin("config.json")
ORACLE: dict[str, Any] = json.loads((Path(__file__).parent / "oracles/engine_weights.json").read_text("utf-8"))
MODELS: dict[str, Any] = ORACLE["models"]
FULL = [name for name, row in MODELS.items() if not row.get("windowed")]
WINDOWED = [name for name, row in MODELS.items() if row.get("windowed")]
FITS = [(n, tp) for n in MODELS for tp in (1, 8) if "bytes" in MODELS[n].get(f"tp{tp}", {})]
REFUSED = [(n, tp) for n in MODELS for tp in (1, 8) if "refusal" in MODELS[n].get(f"tp{tp}", {})]

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


def config_of(name: str) -> dict[str, Any]:
    """The vendor's config, with a window switched off so that windowed models compare too."""
    row = MODELS[name]
    config: dict[str, Any] = row["config"]
    return {**config, "sliding_window": None} if row.get("windowed") else config


def test_oracle_file_says_where_it_comes_from() -> None:
    assert ORACLE["source"].startswith("computed with the public package vLLM 0.33.0")
    assert ORACLE["licence"]
    assert ORACLE["as_of"] == "2026-11-29"


@pytest.mark.parametrize(("name", "tp"), FITS)
def test_rank_holds_what_the_engine_allocates(name: str, tp: int) -> None:
    row, ranks = MODELS[name], Ranks(tp)
    stack = read(config_of(name))
    quantisation = from_checkpoint(row["config"], row.get("hf_quant_config"), ORIGIN)
    stage = stages(stack, 1)[0]
    assert problems(stack, ranks, quantisation) == []
    assert weight_bytes(stack, stage, ranks, row["dtype"], quantisation) == row[f"tp{tp}"]["bytes"]
    if quantisation is None:
        shapes = ((count, rank_shape(tensor, ranks)) for count, tensor in stage.tensors(stack))
        elements = sum(count * rows * cols * copies for count, (rows, cols, copies) in shapes)
        assert elements == row[f"tp{tp}"]["parameters"]


@pytest.mark.parametrize(("name", "tp"), REFUSED)
def test_what_the_engine_refuses_has_a_reason(name: str, tp: int) -> None:
    assert "attention heads" in MODELS[name][f"tp{tp}"]["refusal"]
    reasons = problems(read(config_of(name)), Ranks(tp))
    heads = MODELS[name]["config"].get("num_attention_heads") or MODELS[name]["config"]["n_head"]
    assert f"tp {tp} does not divide the model's {heads} attention heads" in reasons


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_in_effect_are_refused(name: str) -> None:
    assert "sliding_window: windowed layers" in refusal(MODELS[name]["config"])


@pytest.mark.parametrize("name", FULL)
def test_experts_not_picked_are_not_active(name: str) -> None:
    stack = read(MODELS[name]["config"])
    sparse = any(key in MODELS[name]["config"] for key in ("num_experts_per_tok",))
    assert (stack.active_parameters < stack.parameters) == sparse
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
        ({"layer_types": ["full_attention"] * 31 + ["sliding_attention"]}, "layers of sliding_attention"),
        ({"layer_types": "full_attention"}, "layer_types: a list of strings is needed"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: true or false is needed, not 'yes'"),
        ({"vision_config": {"depth": 32}}, "vision_config: "),
    ],
)
def test_hostile_llama_like_configs(model_type: str, change: dict[str, Any], message: str) -> None:
    config = {**LLAMA, "model_type": model_type, "sliding_window": None, **change}
    assert message in refusal(config)


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
        ({**LLAMA, "model_type": "mistral"}, "sliding_window: windowed layers (4096)"),
        ({**LLAMA, "model_type": "qwen2", "use_sliding_window": True}, "windowed layers (4096)"),
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
    mixer = read(config).layers[0].mixer
    assert (mixer.kv_heads, mixer.key_dim) == (kv_heads, head_dim)
    assert read({**config, "num_key_value_heads": None}).layers[0].mixer.kv_heads == 32


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
    layer = read({**LLAMA, "model_type": "falcon", **change}).layers[0]
    assert layer.mixer.kv_heads == kv_heads
    assert layer.mixer.alibi == change.get("alibi", False)
    assert layer.mixer.ignores_kv_dtype
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
        assert ".py" in module.__doc__
