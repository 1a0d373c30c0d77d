"""Seed-OSS (transformers, models/seed_oss/modeling_seed_oss.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("seed_oss",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with biases on query, key and value."""
    layer = Layer(
        common.full_attention(
            config,
            bias=config.flag("attention_bias", default=True),
            output_bias=config.flag("attention_out_bias", default=False),
            default_kv_heads=8,
            default_head_dim=None if "head_dim" in config.fields else 128,
        ),
        common.gated_mlp(config, bias=config.flag("mlp_bias", default=False)),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
