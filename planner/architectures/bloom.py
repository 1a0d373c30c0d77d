"""BLOOM (transformers, models/bloom/modeling_bloom.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.tensors import norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("bloom",)


def blocks(config: VendorConfig) -> Stack:
    """Multi-head attention with ALiBi, an MLP of four times the width, biases everywhere, a normed embedding.

    ALiBi bounds no context: 2048 is what BLOOM was trained on and what the engine assumes.
    """
    hidden = common.hidden_size(config)
    qkv = "self_attention.query_key_value"
    attention = common.full_attention(
        config,
        bias=True,
        output_bias=True,
        kv_heads=common.head_count(config),
        names=(qkv, qkv, qkv, "self_attention.dense"),
    )
    layer = Layer(
        replace(attention, alibi=True),
        common.plain_mlp(config, 4 * hidden, "dense_h_to_4h", "dense_4h_to_h"),
        common.layer_norms(config, bias=True),
    )
    embedding = common.token_embedding(
        config,
        tied=True,
        norm_bias=True,
        positions=norm("transformer.word_embeddings_layernorm", hidden, bias=True),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(embedding, layers, *common.positions(config, "seq_length", default=2048))
