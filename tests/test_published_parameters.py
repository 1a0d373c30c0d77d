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
