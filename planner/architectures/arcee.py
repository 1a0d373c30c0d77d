"""Arcee AFM (transformers, models/arcee/modeling_arcee.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("arcee",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's attention and norms with an MLP that has no gate."""
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
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
