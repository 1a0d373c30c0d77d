"""Baichuan and Baichuan 2 (baichuan-inc on the Hub, modeling_baichuan.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("baichuan",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with one fused projection; 7B has rotary positions, 13B ALiBi (it has no
    max_position_embeddings, and model_max_length bounds it).
    """
    rotary = config.has("max_position_embeddings")
    qkv = "self_attn.W_pack"
    attention = common.full_attention(
        config, kv_heads=common.head_count(config), names=(qkv, qkv, qkv, "self_attn.o_proj")
    )
    layer = Layer(replace(attention, alibi=not rotary), common.gated_mlp(config), common.layer_norms(config))
    layers = (layer,) * common.layer_count(config)
    positions = common.positions(config, "max_position_embeddings" if rotary else "model_max_length")
    return Stack(common.token_embedding(config), layers, *positions)
