"""ERNIE 4.5, dense (transformers, models/ernie4_5/modeling_ernie4_5.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("ernie4_5",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape; use_bias biases every projection, not the output head."""
    bias = config.flag("use_bias", default=False)
    layer = Layer(
        common.full_attention(
            config,
            bias=bias,
            output_bias=bias,
            default_kv_heads=2,
            default_head_dim=None if "head_dim" in config.fields else 128,
        ),
        common.gated_mlp(config, bias=bias),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config, tied=True), layers, *common.positions(config))
