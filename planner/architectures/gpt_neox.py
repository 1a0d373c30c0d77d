"""GPT-NeoX, Pythia, RedPajama-INCITE and Dolly (transformers, models/gpt_neox/modeling_gpt_neox.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("gpt_neox",)


def blocks(config: VendorConfig) -> Stack:
    """Multi-head attention with fused projections and an MLP without a gate; LayerNorms with a shift."""
    bias = config.flag("attention_bias", default=True)
    qkv = "attention.query_key_value"
    attention = common.full_attention(
        config,
        bias=bias,
        output_bias=bias,
        kv_heads=common.head_count(config),
        names=(qkv, qkv, qkv, "attention.dense"),
    )
    intermediate = config.integer("intermediate_size", most=common.MOST_WIDTH)
    layer = Layer(
        attention,
        common.plain_mlp(config, intermediate, "dense_h_to_4h", "dense_4h_to_h"),
        common.layer_norms(config, bias=True),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config, norm_bias=True), layers, *common.positions(config))
