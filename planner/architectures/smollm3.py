"""SmolLM3 (transformers, models/smollm3/modeling_smollm3.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("smollm3",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape: layers without rotary positions have the same weights."""
    common.refuse_windows(config, unless_flag="use_sliding_window")
    bias = config.flag("attention_bias", default=False)
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias, default_kv_heads=4),
        common.gated_mlp(config, bias=config.flag("mlp_bias", default=False)),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config, tied=True), layers, *common.positions(config))
