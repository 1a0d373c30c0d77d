"""Mixtral (transformers, models/mixtral/modeling_mixtral.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("mixtral",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's attention without biases, and experts in every layer; a window limits all of them."""
    experts, top_k = common.routing(config, ("num_local_experts",), default=2)
    intermediate = config.integer("intermediate_size", most=common.MOST_WIDTH)
    layer = Layer(
        common.full_attention(config, default_kv_heads=8),
        Moe(common.hidden_size(config), intermediate, experts, top_k, name="block_sparse_moe"),
        common.layer_norms(config),
    )
    layers = common.interleaved(layer, common.windowed_layers(config), common.window(config))
    return Stack(common.token_embedding(config), layers, *common.positions(config))
