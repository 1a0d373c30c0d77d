"""FlexOlmo (transformers, models/flex_olmo/modeling_flex_olmo.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Moe, Stack
from planner.tensors import norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("flex_olmo",)


def blocks(config: VendorConfig) -> Stack:
    """OLMo 2's attention and norms with experts in every layer."""
    hidden, heads = common.hidden_size(config), common.head_count(config)
    width = common.head_width(config, hidden, heads)
    kv_heads = common.kv_head_count(config, heads)
    norms = (*norm("self_attn.q_norm", heads * width), *norm("self_attn.k_norm", kv_heads * width))
    bias = config.flag("attention_bias", default=False)
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias, norms=norms),
        Moe(
            hidden,
            config.integer("intermediate_size", most=common.MOST_WIDTH),
            *common.routing(config, ("num_experts", "num_local_experts"), default=5),
        ),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
