"""SantaCoder and StarCoder (transformers, models/gpt_bigcode/modeling_gpt_bigcode.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.tensors import Tensor
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("gpt_bigcode",)


def blocks(config: VendorConfig) -> Stack:
    """GPT-2's shape with one key/value head for all query heads unless multi_query is false."""
    hidden = common.hidden_size(config)
    qkv = "attn.c_attn"
    layer = Layer(
        common.full_attention(
            config,
            bias=True,
            output_bias=True,
            kv_heads=1 if config.flag("multi_query", default=True) else common.head_count(config),
            names=(qkv, qkv, qkv, "attn.c_proj"),
        ),
        common.plain_mlp(
            config, config.integer("n_inner", default=4 * hidden, most=common.MOST_WIDTH), "c_fc", "c_proj"
        ),
        common.layer_norms(config, bias=True),
    )
    longest, field = common.positions(config, "n_positions", default=1024)
    embedding = common.token_embedding(
        config, tied=True, norm_bias=True, positions=(Tensor("transformer.wpe", longest, hidden),)
    )
    return Stack(embedding, (layer,) * common.layer_count(config), longest, field)
