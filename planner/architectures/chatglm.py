"""ChatGLM2, ChatGLM3 and GLM-4-9B in the Hub's own format (vLLM, model_executor/models/chatglm.py)."""

from planner.architectures import _common as common
from planner.blocks import Embedding, Layer, Mlp, Stack
from planner.mixers import Attention
from planner.tensors import norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("chatglm",)


def blocks(config: VendorConfig) -> Stack:
    """Grouped-query attention with biases on query, key and value, and a fused gated MLP."""
    hidden, heads = common.hidden_size(config), common.head_count(config)
    # Only the first ChatGLM-6B has these fields, and another shape.
    for field in ("position_encoding_2d", "inner_hidden_size"):
        config.refuse_unless(not config.has(field), field, "the first ChatGLM is not supported, only 2 and later")
    multi_query = config.flag("multi_query_attention", default=False)
    linear_bias = config.flag("add_bias_linear", default=False)
    qkv_bias = config.flag("add_qkv_bias", default=False)
    qkv = "self_attention.query_key_value"
    width = config.integer("kv_channels", default=128, most=common.MOST_HEADS)
    config.refuse_unless(
        width * heads == hidden or bool(config.problems),
        "kv_channels",
        f"{heads} heads of {width} channels are not hidden_size {hidden}",
    )
    kv_heads = config.integer("multi_query_group_num", default=1, most=common.MOST_HEADS) if multi_query else heads
    config.refuse_unless(
        heads % kv_heads == 0 or bool(config.problems),
        "multi_query_group_num",
        f"{kv_heads} groups do not divide num_attention_heads {heads}",
    )
    norm_bias = not config.flag("rmsnorm", default=True)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        width,
        width,
        qkv_bias or linear_bias,
        linear_bias,
        names=(qkv, qkv, qkv, "self_attention.dense"),
    )
    up = "dense_h_to_4h"
    ffn = config.integer("ffn_hidden_size", most=common.MOST_WIDTH)
    mlp = Mlp(hidden, ffn, bias=linear_bias, names=(up, up, "dense_4h_to_h"))
    layer = Layer(attention, mlp, common.layer_norms(config, bias=norm_bias))
    final = config.flag("post_layer_norm", default=True)
    embedding = Embedding(
        config.integer("padded_vocab_size", "vocab_size", most=common.MOST_WIDTH),
        hidden,
        config.flag("tie_word_embeddings", default=False),
        final=norm("transformer.encoder.final_layernorm", hidden, bias=norm_bias) if final else (),
        name="transformer.embedding.word_embeddings",
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(embedding, layers, *common.positions(config, "seq_length"))
