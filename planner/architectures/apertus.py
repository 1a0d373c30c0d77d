"""Apertus (transformers, models/apertus/modeling_apertus.py and activations.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.tensors import Tensor
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("apertus",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's attention with norms of one head's width; an MLP without a gate, whose activation is learned."""
    bias = config.flag("attention_bias", default=False)
    # xIELU learns two slopes per layer; its two constants, stored beside them, are no parameters.
    config.text("hidden_act", default="xielu", accepted=("xielu",))
    activation = Tensor("mlp.act_fn", 2)
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias, per_head_norm=True),
        common.plain_mlp(
            config,
            config.integer("intermediate_size", most=common.MOST_WIDTH),
            "up_proj",
            "down_proj",
            bias=False,
        ),
        (*common.layer_norms(config), activation),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
