"""Mistral 7B and its kin, where no window is in effect (transformers, models/mistral/modeling_mistral.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("mistral",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape without biases; a config without sliding_window has the class's window of 4096."""
    common.refuse_windows(config, default=4096)
    layer = Layer(
        common.full_attention(config, default_kv_heads=8),
        common.gated_mlp(config),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
