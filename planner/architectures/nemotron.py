"""Nemotron-4 and Minitron (transformers, models/nemotron/modeling_nemotron.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("nemotron",)


def blocks(config: VendorConfig) -> Stack:
    """Grouped-query attention, an MLP without a gate, and LayerNorms with a shift."""
    bias = config.flag("attention_bias", default=False)
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias),
        common.plain_mlp(
            config,
            config.integer("intermediate_size", most=common.MOST_WIDTH),
            "up_proj",
            "down_proj",
            bias=config.flag("mlp_bias", default=False),
        ),
        common.layer_norms(config, bias=True),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config, norm_bias=True), layers, *common.positions(config))
