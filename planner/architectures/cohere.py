"""Cohere Command R and R+ (transformers, models/cohere/modeling_cohere.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.tensors import Split, Tensor
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("cohere",)


def blocks(config: VendorConfig) -> Stack:
    """Attention and gated MLP side by side after one norm; R+ norms each query and key head on its own."""
    common.refuse_windows(config)
    hidden, heads = common.hidden_size(config), common.head_count(config)
    width = common.head_width(config, hidden, heads)
    kv_heads = common.kv_head_count(config, heads)
    norms: tuple[Tensor, ...] = ()
    if config.flag("use_qk_norm", default=False):
        norms = (
            Tensor("self_attn.q_norm", heads * width, split=Split.OUTPUT, units=heads),
            Tensor("self_attn.k_norm", kv_heads * width, split=Split.KV_HEADS, units=kv_heads),
        )
    bias = config.flag("attention_bias", default=False)
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias, norms=norms),
        common.gated_mlp(config),
        common.layer_norms(config, count=1),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config, tied=True), layers, *common.positions(config))
