"""Mistral 7B and its kin, Ministral included (transformers, models/mistral, ministral and ministral3)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("mistral", "ministral", "ministral3")
NO_WINDOW = ("ministral3",)
"""Types whose config class has no window by default; the others' is 4096."""


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape without biases; a window limits the layers that layer_types lists, else all."""
    kind = config.fields.get("model_type")
    default_head_dim = 128 if kind == "ministral3" else None
    layer = Layer(
        common.full_attention(config, default_heads=32, default_kv_heads=8, default_head_dim=default_head_dim),
        common.gated_mlp(config),
        common.layer_norms(config),
    )
    window = common.window(config, None if kind in NO_WINDOW else 4096)
    layers = common.interleaved(layer, common.windowed_layers(config), window)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
