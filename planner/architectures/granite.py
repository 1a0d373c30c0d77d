"""Granite 3, dense (transformers, models/granite/modeling_granite.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("granite",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape: the multipliers that Granite adds have no weights."""
    bias = config.flag("attention_bias", default=False)
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias),
        common.gated_mlp(config, bias=config.flag("mlp_bias", default=False)),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
