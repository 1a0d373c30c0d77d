"""MPT (transformers, models/mpt/modeling_mpt.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Stack
from planner.mixers import Attention
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("mpt",)


def blocks(config: VendorConfig) -> Stack:
    """Multi-head attention with ALiBi and an MLP without a gate; no bias or shift anywhere; tied embeddings."""
    hidden = common.hidden_size(config)
    heads = config.integer("n_heads", most=common.MOST_HEADS)
    config.refuse_unless(
        hidden % heads == 0 or bool(config.problems), "n_heads", f"{heads} heads do not divide d_model {hidden}"
    )
    width = max(1, hidden // heads)
    attn = config.section("attn_config")
    # Shapes that transformers does not build (llm-foundry's own code does) are refused.
    attn.text("attn_type", default="multihead_attention", accepted=("multihead_attention",))
    alibi = attn.flag("alibi", default=True)
    attn.refuse_unless(alibi, "alibi", "learned position embeddings are not supported here")
    attn.refuse_unless(not attn.flag("qk_ln", default=False), "qk_ln", "query and key norms are not supported here")
    attn.refuse_unless(not attn.has("sliding_window_size"), "sliding_window_size", "windows are not supported here")
    config.refuse_unless(config.flag("no_bias", default=True), "no_bias", "biases are not supported here")
    ratio = config.integer("expansion_ratio", default=4)
    config.refuse_unless(ratio == 4, "expansion_ratio", f"{ratio} is not supported; MPT's code widens by 4")
    layer = Layer(
        Attention(
            hidden,
            heads,
            heads,
            width,
            width,
            alibi=True,
            names=("attn.Wqkv", "attn.Wqkv", "attn.Wqkv", "attn.out_proj"),
        ),
        Mlp(hidden, 4 * hidden, gated=False, name="ffn"),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    embedding = common.token_embedding(config, tied=True)
    return Stack(embedding, layers, *common.positions(config, "max_seq_len", default=2048))
