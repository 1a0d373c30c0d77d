"""Helium (transformers, models/helium/modeling_helium.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("helium",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape; the output projection has no bias."""
    attention = common.full_attention(
        config,
        bias=config.flag("attention_bias", default=False),
        default_kv_heads=20,
        default_head_dim=None if "head_dim" in config.fields else 128,
    )
    # The output projection is hidden_size wide on both sides, whatever the heads come to.
    config.refuse_unless(
        attention.query_heads * attention.value_dim == attention.hidden or bool(config.problems),
        "head_dim",
        f"{attention.query_heads} heads of {attention.value_dim} are not hidden_size {attention.hidden}",
    )
    layer = Layer(
        attention,
        common.gated_mlp(config, bias=config.flag("mlp_bias", default=False)),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
