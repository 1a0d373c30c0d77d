"""GLM-4-0414 and GLM-Z1 (transformers, models/glm4/modeling_glm4.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("glm4",)


def blocks(config: VendorConfig) -> Stack:
    """GLM's shape with a norm before and after both attention and MLP."""
    layer = Layer(
        common.full_attention(
            config,
            bias=config.flag("attention_bias", default=True),
            default_kv_heads=2,
            default_head_dim=None if "head_dim" in config.fields else 128,
        ),
        replace(common.gated_mlp(config), names=("gate_up_proj", "gate_up_proj", "down_proj")),
        common.layer_norms(config, count=4),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
