"""InternLM, the first generation (InternLM/InternLM-7B on the Hub, modeling_internlm.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("internlm",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with biases on all four attention projections."""
    bias = config.flag("bias", default=True)
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias),
        common.gated_mlp(config),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
