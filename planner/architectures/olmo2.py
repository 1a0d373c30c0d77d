"""OLMo 2 (transformers, models/olmo2/modeling_olmo2.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.tensors import norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("olmo2",)


def blocks(config: VendorConfig) -> Stack:
    """The same layer throughout."""
    common.refuse_windows(config)
    layers = (layer(config),) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))


def layer(config: VendorConfig) -> Layer:
    """Norms after attention and MLP; one query and one key norm over all heads, whole on every rank."""
    hidden, heads = common.hidden_size(config), common.head_count(config)
    width = common.head_width(config, hidden, heads)
    kv_heads = common.kv_head_count(config, heads)
    norms = (*norm("self_attn.q_norm", heads * width), *norm("self_attn.k_norm", kv_heads * width))
    bias = config.flag("attention_bias", default=False)
    return Layer(
        common.full_attention(config, bias=bias, output_bias=bias, norms=norms),
        common.gated_mlp(config),
        common.layer_norms(config),
    )
