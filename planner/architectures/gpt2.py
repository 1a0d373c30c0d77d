"""GPT-2 (transformers, models/gpt2/modeling_gpt2.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.tensors import Tensor
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("gpt2",)


def blocks(config: VendorConfig) -> Stack:
    """Multi-head attention and an MLP without a gate, biases everywhere, learned positions, a tied head."""
    cross = config.flag("add_cross_attention", default=False)
    config.refuse_unless(not cross, "add_cross_attention", "cross-attention is not supported; accepted: false")
    hidden = common.hidden_size(config)
    qkv = "attn.c_attn"
    layer = Layer(
        common.full_attention(
            config,
            bias=True,
            output_bias=True,
            kv_heads=common.head_count(config),
            names=(qkv, qkv, qkv, "attn.c_proj"),
        ),
        common.plain_mlp(
            config, config.integer("n_inner", default=4 * hidden, most=common.MOST_WIDTH), "c_fc", "c_proj"
        ),
        common.layer_norms(config, bias=True),
    )
    longest, field = common.positions(config, "n_positions", "n_ctx", default=1024)
    embedding = common.token_embedding(
        config, tied=True, norm_bias=True, positions=(Tensor("transformer.wpe", longest, hidden),)
    )
    return Stack(embedding, (layer,) * common.layer_count(config), longest, field)
