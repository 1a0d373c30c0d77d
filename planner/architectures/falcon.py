"""Falcon 7B, 40B, 180B, RW and Falcon2 (transformers, models/falcon/modeling_falcon.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("falcon",)


def blocks(config: VendorConfig) -> Stack:
    """An MLP without a gate beside or after the attention, its cache always in the model's dtype."""
    hidden = common.hidden_size(config)
    bias = config.flag("bias", default=False)
    qkv = "self_attention.query_key_value"
    inner = config.integer("ffn_hidden_size", default=4 * hidden, most=common.MOST_WIDTH)
    attention = common.full_attention(
        config,
        bias=bias,
        output_bias=bias,
        kv_heads=_kv_heads(config),
        names=(qkv, qkv, qkv, "self_attention.dense"),
    )
    layer = Layer(
        replace(attention, ignores_kv_dtype=True, alibi=config.flag("alibi", default=False)),
        common.plain_mlp(config, inner, "dense_h_to_4h", "dense_4h_to_h", bias=bias),
        common.layer_norms(config, count=_norms(config), bias=True),
    )
    embedding = common.token_embedding(config, tied=True, norm_bias=True)
    layers = (layer,) * common.layer_count(config)
    return Stack(embedding, layers, *common.positions(config, "max_position_embeddings", default=2048))


def _kv_heads(config: VendorConfig) -> int:
    """num_kv_heads in the new decoder architecture; before it one for all, or one per head."""
    heads = common.head_count(config)
    if not config.flag("new_decoder_architecture", default=False):
        return 1 if config.flag("multi_query", default=True) else heads
    kv_heads = config.integer("num_kv_heads", default=heads)
    config.refuse_unless(
        heads % kv_heads == 0, "num_kv_heads", f"{kv_heads} key/value heads do not divide {heads} heads"
    )
    return kv_heads


def _norms(config: VendorConfig) -> int:
    """Norms per layer: one where attention and MLP are parallel and share it, else two."""
    if not config.flag("parallel_attn", default=True):
        return 2
    new = config.flag("new_decoder_architecture", default=False)
    return config.integer("num_ln_in_parallel_attn", default=2 if new else 1, most=2)
