"""OLMo, the first generation (transformers, models/olmo/modeling_olmo.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("olmo",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with norms that have no weights at all."""
    bias = config.flag("attention_bias", default=False)
    layer = Layer(common.full_attention(config, bias=bias, output_bias=bias), common.gated_mlp(config))
    layers = (layer,) * common.layer_count(config)
    return Stack(replace(common.token_embedding(config), final=()), layers, *common.positions(config))
