"""EXAONE 4 without windows: 1.2B (transformers, models/exaone4/modeling_exaone4.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("exaone4",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with query and key norms of one head's width; the layer norms follow attention and MLP."""
    common.refuse_windows(config, default=4096)
    layer = Layer(
        common.full_attention(config, per_head_norm=True, default_kv_heads=32),
        common.gated_mlp(config),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
