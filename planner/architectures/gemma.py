"""Gemma, first generation (transformers, models/gemma/modeling_gemma.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("gemma",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with heads of 256 and an output head that shares the embedding."""
    common.refuse_windows(config)
    bias = config.flag("attention_bias", default=False)
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias, default_kv_heads=16, default_head_dim=256),
        common.gated_mlp(config),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config, tied=True), layers, *common.positions(config))
