"""Llama and the models that keep its shape (transformers, models/llama/modeling_llama.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("llama", "aquila", "xverse")


def blocks(config: VendorConfig) -> Stack:
    """Grouped-query attention and a gated MLP, RMS norms, biases only where the config says so."""
    common.refuse_windows(config)
    bias = config.flag("attention_bias", default=False)
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias),
        common.gated_mlp(config, bias=config.flag("mlp_bias", default=False)),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))
