"""Model families against the parameter counts that vendors and others publish."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.architectures import known_families, resolve
from planner.errors import InputError
from planner.mixers import Attention
from planner.origin import Origin

MODELS: dict[str, Any] = json.loads((Path(__file__).parent / "oracles/published_parameters.json").read_text("utf-8"))[
    "models"
]
ORIGIN = Origin("config.json")


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_the_published_count(name: str) -> None:
    assert resolve(MODELS[name]["config"], ORIGIN).parameters == MODELS[name]["parameters"]


@pytest.mark.parametrize("name", MODELS)
def test_every_row_names_its_sources(name: str) -> None:
    assert MODELS[name]["config_source"]
    assert MODELS[name]["count_source"]


# Settings whose shapes are not known, by a row they change.
UNSIZED: list[tuple[str, dict[str, Any], str]] = [
    ("HuggingFaceTB/SmolLM3-3B", {"use_sliding_window": True, "sliding_window": 4096}, "sliding_window"),
    ("mosaicml/mpt-7b", {"no_bias": False}, "no_bias"),
    ("mosaicml/mpt-7b", {"expansion_ratio": 3}, "expansion_ratio"),
    ("mosaicml/mpt-7b", {"attn_config": {"alibi": False}}, "alibi"),
    ("mosaicml/mpt-7b", {"attn_config": {"attn_type": "multiquery_attention"}}, "attn_type"),
    ("mosaicml/mpt-7b", {"attn_config": "alibi"}, "attn_config"),
    ("openbmb/MiniCPM-2B-sft-bf16", {"num_experts": 8}, "num_experts"),
    ("zai-org/chatglm2-6b", {"position_encoding_2d": True}, "position_encoding_2d"),
    ("zai-org/chatglm2-6b", {"multi_query_group_num": 5}, "multi_query_group_num"),
    ("internlm/internlm2_5-7b-chat", {"bias": True}, "bias"),
    ("Qwen/Qwen-7B-Chat", {"intermediate_size": 22017}, "intermediate_size"),
    ("deepseek-ai/deepseek-moe-16b-base", {"num_experts_per_tok": 65}, "num_experts_per_tok"),
    (
        "ibm-granite/granite-3.3-8b-instruct",
        {"model_type": "granitemoehybrid", "layer_types": ["mamba"] * 39 + ["conv"], "num_local_experts": 0},
        "layer_types",
    ),
]


@pytest.mark.parametrize(("name", "changes", "field"), UNSIZED)
def test_what_is_not_sized_is_refused_by_field(name: str, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        resolve({**MODELS[name]["config"], **changes}, ORIGIN)


@pytest.mark.parametrize(
    ("name", "changes", "windows"),
    [
        ("Qwen/Qwen1.5-MoE-A2.7B", {"use_sliding_window": True, "sliding_window": 4096}, 0),  # as the engine reads it
        ("allenai/OLMoE-1B-7B-0924", {"model_type": "phimoe", "sliding_window": 4096}, 16),
        ("ibm-granite/granite-3.3-8b-instruct", {"model_type": "exaone4", "sliding_window_pattern": 4}, 30),
    ],
)
def test_a_window_changes_the_layers_and_no_weight(name: str, changes: dict[str, Any], windows: int) -> None:
    windowed = resolve({**MODELS[name]["config"], **changes}, ORIGIN)
    mixers = [mixer for layer in windowed.layers for mixer in layer.mixers if isinstance(mixer, Attention)]
    assert [mixer.window for mixer in mixers].count(4096) == windows
    full = resolve({**MODELS[name]["config"], **changes, "sliding_window": None}, ORIGIN)
    assert full.parameters == windowed.parameters


BROKEN: list[Any] = [None, -1, 0, 1.5, True, "many", [], {}, 10**30]


def parameters_or_refusal(config: dict[str, Any]) -> int | str:
    try:
        return resolve(config, ORIGIN).parameters
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("value", BROKEN)
def test_a_broken_field_is_read_as_absent_or_refused_but_never_a_traceback(name: str, value: object) -> None:
    config = MODELS[name]["config"]
    for field in config:
        if field != "model_type":
            answer = parameters_or_refusal({**config, field: value})
            assert answer if isinstance(answer, int) else answer.startswith("config.json: ")


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("value", [None, 0, -1, 1.5, "many", 10**30])
def test_a_broken_size_is_refused_by_name(name: str, value: object) -> None:
    config = MODELS[name]["config"]
    for field in SIZES:
        if field in config:
            with pytest.raises(InputError, match=field):
                resolve({**config, field: value}, ORIGIN)


@pytest.mark.parametrize("model_type", sorted(known_families()))
def test_an_empty_config_is_refused_in_every_family(model_type: str) -> None:
    wrapper = model_type.startswith("llava")  # its text config says of which family the text model is
    with pytest.raises(InputError, match="model_type: .* is not accepted; accepted: " if wrapper else "missing"):
        resolve({"model_type": model_type}, ORIGIN)


def test_baichuan_without_rotary_positions_has_alibi() -> None:
    config = MODELS["baichuan-inc/Baichuan-7B"]["config"]
    alibi = {**config, "max_position_embeddings": None, "model_max_length": 4096}
    for fields, expected in ((config, False), (alibi, True)):
        mixer = resolve(fields, ORIGIN).layers[0].mixer
        assert isinstance(mixer, Attention)
        assert mixer.alibi is expected


def test_layers_from_architecture_search_have_parts_of_their_own() -> None:
    """31 of 80 layers have no attention and cache nothing; a part that is a linear layer instead is refused."""
    config = MODELS["nvidia/Llama-3_3-Nemotron-Super-49B-v1"]["config"]
    layers = resolve(config, ORIGIN).layers
    assert sum(layer.mixer is None for layer in layers) == 31
    assert {layer.mixer.kv_heads for layer in layers if isinstance(layer.mixer, Attention)} == {8}
    first, *others = config["block_configs"]
    idle = {**first, "ffn": {"no_op": True}}
    assert resolve({**config, "block_configs": [idle, *others]}, ORIGIN).layers[0].ffn is None
    sized = {**first, "ffn": {"intermediate_size": 512}}
    assert resolve({**config, "block_configs": [sized, *others]}, ORIGIN).layers[0].ffn != layers[0].ffn
    for field, block in (
        ("replace_with_linear", {**first, "ffn": {"replace_with_linear": True}}),
        ("n_heads_in_group", {**first, "attention": {"n_heads_in_group": 7}}),
    ):
        with pytest.raises(InputError, match=rf"block_configs\.0\.\w+\.{field}"):
            resolve({**config, "block_configs": [block, *others]}, ORIGIN)
    with pytest.raises(InputError, match="a mapping for each of the 80 layers"):
        resolve({**config, "block_configs": others}, ORIGIN)


# Counts of transformers' own classes on the meta device; of Ling, the safetensors total in its Hub metadata.
COUNTED: dict[str, tuple[int, dict[str, Any]]] = {
    "Trinity Nano": (
        6_120_003_328,
        {
            "model_type": "afmoe",
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "max_position_embeddings": 131072,
            "moe_intermediate_size": 256,
            "num_attention_heads": 8,
            "num_dense_layers": 2,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 56,
            "num_key_value_heads": 2,
            "num_shared_experts": 1,
            "sliding_window": 2048,
            "vocab_size": 200192,
        },
    ),
    "Laguna S 2.1": (
        117_561_977_600,
        {
            "model_type": "laguna",
            "gating": "per-head",
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "layer_types": ["full_attention", *["sliding_attention"] * 3] * 12,
            "max_position_embeddings": 262144,
            "moe_intermediate_size": 1024,
            "num_attention_heads_per_layer": [48, 72, 72, 72] * 12,
            "num_experts": 256,
            "num_experts_per_tok": 10,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "shared_expert_intermediate_size": 1024,
            "sliding_window": 512,
            "vocab_size": 100352,
        },
    ),
    "Ling mini 2.0": (
        16_255_643_392,
        {
            "model_type": "bailing_moe_v2",
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "max_position_embeddings": 32768,
            "moe_shared_expert_intermediate_size": 512,
            "num_attention_heads": 16,
            "num_hidden_layers": 20,
            "router_dtype": "fp32",
            "vocab_size": 157184,
        },
    ),
    "Falcon Mamba 7B": (  # its inner width is not the multiple that it names
        7_272_665_088,
        {
            "model_type": "falcon_mamba",
            "expand": 16,
            "hidden_size": 4096,
            "intermediate_size": 8192,
            "num_hidden_layers": 64,
            "tie_word_embeddings": False,
            "vocab_size": 65024,
        },
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_are_those_of_the_vendor_class(name: str) -> None:
    parameters, config = COUNTED[name]
    assert resolve(config, ORIGIN).parameters == parameters
