"""Persimmon-8B (transformers, models/persimmon/modeling_persimmon.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.tensors import norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("persimmon",)


def blocks(config: VendorConfig) -> Stack:
    """Multi-head attention with a fused projection, an MLP without a gate, biases and shifts everywhere."""
    hidden, heads = common.hidden_size(config), common.head_count(config)
    width = common.head_width(config, hidden, heads)
    normed = config.flag("qk_layernorm", default=True)
    norms = (
        (
            *norm("self_attn.q_layernorm", width, bias=True),
            *norm("self_attn.k_layernorm", width, bias=True),
        )
        if normed
        else ()
    )
    qkv = "self_attn.query_key_value"
    intermediate = config.integer("intermediate_size", most=common.MOST_WIDTH)
    layer = Layer(
        common.full_attention(
            config,
            bias=True,
            output_bias=True,
            kv_heads=heads,
            norms=norms,
            names=(qkv, qkv, qkv, "self_attn.dense"),
        ),
        common.plain_mlp(config, intermediate, "dense_h_to_4h", "dense_4h_to_h"),
        common.layer_norms(config, bias=True),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config, norm_bias=True), layers, *common.positions(config))
