"""Phi-3, Phi-3.5 and Phi-4 (transformers, models/phi3/modeling_phi3.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("phi3",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape without biases; query, key and value, and gate and up, are one projection each.

    A window limits every layer, even one that is longer than the context.
    """
    qkv = "self_attn.qkv_proj"
    mlp = replace(common.gated_mlp(config), names=("gate_up_proj", "gate_up_proj", "down_proj"))
    layer = Layer(
        common.full_attention(config, names=(qkv, qkv, qkv, "self_attn.o_proj")),
        mlp,
        common.layer_norms(config),
    )
    layers = common.interleaved(layer, common.windowed_layers(config), common.window(config))
    return Stack(common.token_embedding(config), layers, *common.positions(config))
