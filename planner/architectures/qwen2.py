"""Qwen2, Qwen2.5 and MiMo-7B, dense (transformers, models/qwen2/modeling_qwen2.py; vLLM 0.33, mimo.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("qwen2", "mimo")


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with biases on the query, key and value projections, and none on the output."""
    common.refuse_windows(config, unless_flag="use_sliding_window", default=4096)
    layer = Layer(
        common.full_attention(config, bias=True, default_kv_heads=32),
        common.gated_mlp(config),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
