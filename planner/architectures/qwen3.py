"""Qwen3, dense (transformers, models/qwen3/modeling_qwen3.py)."""

from planner.architectures import _common as common
from planner.architectures import qwen2
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("qwen3",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with a query and a key norm per head; head_dim does not follow from hidden_size."""
    bias = config.flag("attention_bias", default=False)
    attention = common.full_attention(
        config,
        bias=bias,
        output_bias=bias,
        per_head_norm=True,
        default_kv_heads=32,
        default_head_dim=128,
    )
    return qwen2.stack(config, Layer(attention, common.gated_mlp(config), common.layer_norms(config)))
