"""InternLM 3 (transformers, models/internlm3/modeling_internlm3.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("internlm3",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with biases everywhere or nowhere."""
    bias = config.flag("mlp_bias", "bias", default=False)
    # transformers refuses these too.
    config.refuse_unless(
        config.flag("attention_bias", "qkv_bias", default=False) == bias,
        "qkv_bias",
        "a value that differs from `bias` is not supported",
    )
    layer = Layer(
        common.full_attention(
            config,
            bias=bias,
            output_bias=bias,
            default_kv_heads=2,
            default_head_dim=None if "head_dim" in config.fields else 128,
        ),
        common.gated_mlp(config, bias=bias),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
