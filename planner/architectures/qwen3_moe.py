"""Qwen3 mixture of experts (transformers, models/qwen3_moe/modeling_qwen3_moe.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.blocks import Layer, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("qwen3_moe",)


def blocks(config: VendorConfig) -> Stack:
    """Experts in every decoder_sparse_step-th layer but those of mlp_only_layers; others are dense.

    With use_sliding_window, every layer is windowed.
    """
    bias = config.flag("attention_bias", default=False)
    full = common.full_attention(config, bias=bias, output_bias=bias, per_head_norm=True, default_kv_heads=4)
    attention = replace(full, window=common.switched_window(config))
    norms = common.layer_norms(config)
    moe = Moe(
        common.hidden_size(config),
        config.integer("moe_intermediate_size", most=common.MOST_WIDTH),
        *common.routing(config, ("num_experts", "num_local_experts"), default=8),
    )
    sparse = Layer(attention, moe, norms)
    dense = Layer(attention, common.gated_mlp(config), norms)
    step = config.integer("decoder_sparse_step", default=1)
    only_dense = frozenset(config.integers("mlp_only_layers"))
    layers = tuple(
        sparse if i not in only_dense and (i + 1) % step == 0 else dense for i in range(common.layer_count(config))
    )
    return Stack(common.token_embedding(config), layers, *common.positions(config))
