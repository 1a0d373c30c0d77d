"""StarCoder2 (transformers, models/starcoder2/modeling_starcoder2.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("starcoder2",)


def blocks(config: VendorConfig) -> Stack:
    """Grouped-query attention and an MLP without a gate, biases unless use_bias is false, layer norms.

    A window limits every layer.
    """
    config.text("norm_type", default="layer_norm", accepted=("layer_norm",))
    config.text("mlp_type", default="default", accepted=("default",))
    bias = config.flag("use_bias", default=True)
    intermediate = config.integer("intermediate_size", most=common.MOST_WIDTH)
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias, default_kv_heads=2),
        common.plain_mlp(config, intermediate, "c_fc", "c_proj", bias=bias),
        common.layer_norms(config, bias=True),
    )
    layers = common.interleaved(layer, common.windowed_layers(config), common.window(config))
    embedding = common.token_embedding(config, tied=True, norm_bias=True)
    return Stack(embedding, layers, *common.positions(config))
