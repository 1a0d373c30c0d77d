"""Phi-1, Phi-1.5 and Phi-2 (transformers, models/phi/modeling_phi.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.tensors import norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("phi",)


def blocks(config: VendorConfig) -> Stack:
    """Biases everywhere, the output head included; one norm feeds attention and MLP side by side."""
    hidden, heads = common.hidden_size(config), common.head_count(config)
    width = common.head_width(config, hidden, heads)
    # One query and one key LayerNorm of a head's width, with a shift: no published Phi has them.
    normed = config.flag("qk_layernorm", default=False)
    norms = (
        (
            *norm("self_attn.q_layernorm", width, bias=True),
            *norm("self_attn.k_layernorm", width, bias=True),
        )
        if normed
        else ()
    )
    intermediate = config.integer("intermediate_size", most=common.MOST_WIDTH)
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.dense")
    layer = Layer(
        common.full_attention(config, bias=True, output_bias=True, norms=norms, names=names),
        common.plain_mlp(config, intermediate, "fc1", "fc2"),
        common.layer_norms(config, count=1, bias=True),
    )
    embedding = common.token_embedding(config, norm_bias=True, head_bias=True)
    layers = (layer,) * common.layer_count(config)
    return Stack(embedding, layers, *common.positions(config, "max_position_embeddings", default=2048))
