"""Qwen3.5 and Qwen3.6, dense and with experts, text alone or with vision (vLLM, model_executor/models/qwen3_5.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _states as states
from planner.architectures import _vision as vision
from planner.architectures import qwen3_next
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text")
SECTIONS = ("text_config", "vision_config")
SPARSE = ("qwen3_5_moe", "qwen3_5_moe_text")


def blocks(config: VendorConfig) -> Stack:
    """The text model of Qwen3-Next's layers, beside Qwen3-VL's tower without deepstack where there is vision."""
    model_type = config.fields["model_type"]
    sparse = model_type in SPARSE
    if model_type.endswith("_text"):
        return _text(config, sparse=sparse)
    stack = _text(common.text_section(config), sparse=sparse)
    tower = vision.qwen3_vl(config.section("vision_config"), deepstack=None)
    return replace(stack, towers=(tower,), notes=(vision.NOTE,))


def _text(config: VendorConfig, *, sparse: bool) -> Stack:
    """Every layer has experts, or none has; layers for multi-token prediction are not loaded."""
    ffn = qwen3_next.moe(config, experts=256, top_k=8) if sparse else common.gated_mlp(config)
    # The engine keeps recurrent states in the dtype that the config names, else in the model's.
    delta_net = qwen3_next.delta_net(config, joined=False, dtype=states.state_dtype(config, "mamba_ssm_dtype"))
    norms = common.layer_norms(config)
    layer_of = {
        "full_attention": Layer(qwen3_next.gated_attention(config), ffn, norms),
        "linear_attention": Layer(delta_net, ffn, norms),
    }
    layers = tuple(layer_of[kind] for kind in qwen3_next.layer_kinds(config))
    return Stack(common.token_embedding(config, default_vocab=248320), layers, *common.positions(config, default=32768))
