"""Orion-14B (vLLM, model_executor/models/orion.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("orion",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with LayerNorms that shift."""
    layer = Layer(common.full_attention(config), common.gated_mlp(config), common.layer_norms(config, bias=True))
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config, norm_bias=True), layers, *common.positions(config))
