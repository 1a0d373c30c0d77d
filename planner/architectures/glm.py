"""GLM-4-9B and GLM-Edge (transformers, models/glm/modeling_glm.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("glm",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with biases on query, key and value."""
    layer = Layer(
        common.full_attention(
            config,
            bias=config.flag("attention_bias", default=True),
            default_kv_heads=2,
            default_head_dim=None if "head_dim" in config.fields else 128,
        ),
        replace(common.gated_mlp(config), names=("gate_up_proj", "gate_up_proj", "down_proj")),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
