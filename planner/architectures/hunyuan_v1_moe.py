"""Hunyuan-A13B (transformers, models/hunyuan_v1_moe/modeling_hunyuan_v1_moe.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.blocks import Layer, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("hunyuan_v1_moe",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's attention with norms of one head's width; experts and a shared MLP in every layer."""
    # Hunyuan-Large shares keys and values between layers; transformers builds no such layers.
    config.refuse_unless(not config.flag("use_cla", default=False), "use_cla", "cross-layer attention is not supported")
    hidden = common.hidden_size(config)
    bias = config.flag("attention_bias", default=False)
    shared = common.gated_mlp(config)
    experts = config.integer("num_experts", "num_local_experts", default=1, most=common.MOST_HEADS)
    top_k = _same_in_all_layers(config, "moe_topk", default=1)
    config.refuse_unless(top_k <= experts, "moe_topk", f"{top_k} is more than the model's {experts} experts")
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias, per_head_norm=True),
        Moe(
            hidden,
            shared.intermediate,
            experts,
            top_k,
            shared=replace(shared, name="mlp.shared_mlp"),
            router_dtype="float32",
        ),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))


def _same_in_all_layers(config: VendorConfig, field: str, default: int) -> int:
    """A number, or a list of one number per layer that must all be equal."""
    if not isinstance(config.fields.get(field), list):
        return config.integer(field, default=default, most=common.MOST_HEADS)
    values = config.integers(field)
    if len(set(values)) != 1 or values[0] < 1:
        config.problem(field, "layers that differ are not supported: one positive number for all is needed")
        return default
    return values[0]
