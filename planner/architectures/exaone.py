"""EXAONE 3 and 3.5 (vLLM, model_executor/models/exaone.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("exaone",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape under GPT-like names."""
    bias = config.flag("attention_bias", "bias", default=False)
    names = (
        "attn.attention.q_proj",
        "attn.attention.k_proj",
        "attn.attention.v_proj",
        "attn.attention.out_proj",
    )
    mlp = common.gated_mlp(config, bias=config.flag("mlp_bias", default=False))
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias, names=names),
        replace(mlp, names=("c_fc_0", "c_fc_1", "c_proj")),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    embedding = replace(common.token_embedding(config), name="transformer.wte")
    return Stack(embedding, layers, *common.positions(config))
