"""Falcon-H1: attention and Mamba-2 side by side in every layer (vLLM, model_executor/models/falcon_h1.py)."""

from planner.architectures import _common as common
from planner.architectures import _states as states
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("falcon_h1",)


def blocks(config: VendorConfig) -> Stack:
    """One kind of layer, with both an attention cache and a state; the engine builds no biases but the states'."""
    for field in ("attention_bias", "mlp_bias", "projectors_bias"):
        config.refuse_unless(not config.flag(field, default=False), field, "biases are not supported here")
    inner = (
        states.expanded(config, "mamba_expand")
        if "mamba_d_ssm" in config.fields and not config.has("mamba_d_ssm")
        else config.integer("mamba_d_ssm", default=1024, most=common.MOST_WIDTH)
    )
    gated_norm = config.flag("mamba_rms_norm", default=False)
    layer = Layer(
        common.full_attention(config, default_kv_heads=8),
        common.gated_mlp(config),
        common.layer_norms(config),
        beside=(states.checked_mamba2(config, inner=inner, gated_norm=gated_norm),),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config, default=8192))
