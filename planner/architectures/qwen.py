"""Qwen, the first generation (Qwen/Qwen-7B on the Hub, modeling_qwen.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Stack
from planner.mixers import Attention
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("qwen",)


def blocks(config: VendorConfig) -> Stack:
    """Multi-head attention with a biased fused projection; each of the MLP's halves is half intermediate_size.

    The context is seq_length: max_position_embeddings (32768) is what NTK scaling could reach.
    """
    config.refuse_unless(
        config.flag("no_bias", default=True), "no_bias", "biases beyond the fused projection are not supported"
    )
    hidden, heads = common.hidden_size(config), common.head_count(config)
    width = config.integer("kv_channels", default=128, most=common.MOST_HEADS)
    intermediate = config.integer("intermediate_size", least=2, most=common.MOST_WIDTH)
    config.refuse_unless(intermediate % 2 == 0, "intermediate_size", f"{intermediate} is not even")
    qkv = "attn.c_attn"
    attention = Attention(hidden, heads, heads, width, width, bias=True, names=(qkv, qkv, qkv, "attn.c_proj"))
    mlp = Mlp(hidden, intermediate // 2, names=("w2", "w1", "c_proj"))
    layer = Layer(attention, mlp, common.layer_norms(config))
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config, "seq_length"))
