"""Granite 3 MoE (transformers, models/granitemoe/modeling_granitemoe.py and granitemoeshared)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = (
    "granitemoe",
    "granitemoeshared",
)


def blocks(config: VendorConfig) -> Stack:
    """Llama's attention, experts in every layer, and a shared expert where the config sizes one."""
    bias = config.flag("attention_bias", default=False)
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias),
        _experts(config),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))


def _experts(config: VendorConfig) -> Moe:
    hidden = common.hidden_size(config)
    experts, top_k = common.routing(config, ("num_local_experts",), default=2)
    # Only granitemoeshared's class reads this field.
    shared = (
        config.integer("shared_intermediate_size", default=0, least=0, most=common.MOST_WIDTH)
        if config.fields["model_type"] == "granitemoeshared"
        else 0
    )
    return Moe(
        hidden,
        config.integer("intermediate_size", most=common.MOST_WIDTH),
        experts,
        top_k,
        shared=Mlp(hidden, shared, name="shared_mlp", names=("input_linear", "input_linear", "output_linear"))
        if shared
        else None,
        name="block_sparse_moe",
    )
