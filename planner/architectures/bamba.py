"""Bamba: Mamba-2 with a few attention layers (transformers, models/bamba/modeling_bamba.py)."""

from planner.architectures import _common as common
from planner.architectures import _states as states
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("bamba",)


def blocks(config: VendorConfig) -> Stack:
    """Attention in the layers of attn_layer_indices, Mamba-2 in the others, a gated MLP in all."""
    bias = config.flag("attention_bias", default=False)
    mlp, norms = common.gated_mlp(config, bias=config.flag("mlp_bias", default=False)), common.layer_norms(config)
    attention = Layer(
        common.full_attention(config, bias=bias, output_bias=bias, default_kv_heads=8),
        mlp,
        norms,
    )
    state = Layer(states.checked_mamba2(config, inner=states.expanded(config, "mamba_expand")), mlp, norms)
    indices = frozenset(config.integers("attn_layer_indices"))
    count = common.layer_count(config)
    config.refuse_unless(
        all(0 <= i < count for i in indices) or bool(config.problems),
        "attn_layer_indices",
        f"names layers beyond the model's {count}",
    )
    layers = tuple(attention if i in indices else state for i in range(count))
    return Stack(common.token_embedding(config), layers, *common.positions(config, default=262144))
