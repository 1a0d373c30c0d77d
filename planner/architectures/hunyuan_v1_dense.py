"""Hunyuan dense, 0.5B to 7B (transformers, models/hunyuan_v1_dense/modeling_hunyuan_v1_dense.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("hunyuan_v1_dense",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with query and key norms of one head's width."""
    # Hunyuan-Large shares keys and values between layers; transformers builds no such layers.
    config.refuse_unless(not config.flag("use_cla", default=False), "use_cla", "cross-layer attention is not supported")
    bias = config.flag("attention_bias", default=False)
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias, per_head_norm=True),
        common.gated_mlp(config),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
