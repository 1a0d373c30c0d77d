"""DBRX (transformers, models/dbrx/modeling_dbrx.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Moe, Stack
from planner.mixers import Attention
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("dbrx",)


def blocks(config: VendorConfig) -> Stack:
    """Grouped-query attention with one fused projection, and experts in every layer; norms without a shift."""
    hidden = common.hidden_size(config)
    heads = config.integer("n_heads", most=common.MOST_HEADS)
    config.refuse_unless(
        hidden % heads == 0 or bool(config.problems), "n_heads", f"{heads} heads do not divide d_model {hidden}"
    )
    width = max(1, hidden // heads)
    attn, ffn = config.section("attn_config"), config.section("ffn_config")
    kv_heads = attn.integer("kv_n_heads", default=1, most=common.MOST_HEADS)
    attn.refuse_unless(
        heads % kv_heads == 0 or bool(config.problems), "kv_n_heads", f"{kv_heads} do not divide n_heads {heads}"
    )
    experts = ffn.integer("moe_num_experts", default=4, most=common.MOST_HEADS)
    top_k = ffn.integer("moe_top_k", default=1, most=common.MOST_HEADS)
    ffn.refuse_unless(top_k <= experts, "moe_top_k", f"{top_k} is more than the model's {experts} experts")
    qkv = "norm_attn_norm.attn.Wqkv"
    layer = Layer(
        Attention(hidden, heads, kv_heads, width, width, names=(qkv, qkv, qkv, "norm_attn_norm.attn.out_proj")),
        Moe(hidden, ffn.integer("ffn_hidden_size", default=3584, most=common.MOST_WIDTH), experts, top_k, name="ffn"),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config, "max_seq_len"))
