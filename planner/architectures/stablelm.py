"""StableLM 3B and StableLM 2 (transformers, models/stablelm/modeling_stablelm.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.tensors import norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("stablelm",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with LayerNorms that shift; StableLM 2 12B norms each head and has one norm per layer."""
    hidden, heads = common.hidden_size(config), common.head_count(config)
    width = common.head_width(config, hidden, heads)
    kv_heads = common.kv_head_count(config, heads, default=32)
    # A norm of its own for each head, so as many weights as the projection has rows.
    normed = config.flag("qk_layernorm", default=False)
    norms = (
        (*norm("self_attn.q_layernorm", heads * width), *norm("self_attn.k_layernorm", kv_heads * width))
        if normed
        else ()
    )
    parallel = config.flag("use_parallel_residual", default=False)
    layer = Layer(
        common.full_attention(config, bias=config.flag("use_qkv_bias", default=False), kv_heads=kv_heads, norms=norms),
        common.gated_mlp(config),
        common.layer_norms(config, count=1 if parallel else 2, bias=True),
    )
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config, norm_bias=True), layers, *common.positions(config))
