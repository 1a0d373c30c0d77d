"""MiniCPM3: latent projections, keys and values cached head by head (vLLM, model_executor/models/minicpm3.py)."""

from planner.architectures import _common as common
from planner.architectures import _latent as latent
from planner.blocks import Layer, Stack
from planner.mixers import Attention
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("minicpm3",)


def blocks(config: VendorConfig) -> Stack:
    """Ordinary attention with one key/value head per query head, values padded to the keys' width."""
    value = None if config.has("v_head_dim") else common.hidden_size(config) // common.head_count(config)
    projections = latent.attention(config, value_dim=value)
    width = projections.nope_dim + projections.rope_dim
    heads = projections.heads
    attention = Attention(projections.hidden, heads, heads, width, width, weights=projections.tensors())
    layer = Layer(attention, common.gated_mlp(config), common.layer_norms(config))
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config, tied=True), layers, *common.positions(config))
