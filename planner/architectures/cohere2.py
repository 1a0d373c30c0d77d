"""Cohere Command R7B and Command A (transformers, models/cohere2/modeling_cohere2.py; vLLM, commandr.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("cohere2",)


def blocks(config: VendorConfig) -> Stack:
    """Attention and gated MLP side by side after one norm, all but every fourth layer windowed.

    A windowed layer sees its own position and `sliding_window` more. Heads are hidden_size / heads wide.
    """
    # vLLM builds no biases, and the published models have none.
    config.refuse_unless(
        not config.flag("attention_bias", default=False), "attention_bias", "biases are not supported here"
    )
    attention = common.full_attention(config)
    config.refuse_unless(
        bool(config.problems) or attention.key_dim * attention.query_heads == attention.hidden,
        "head_dim",
        f"{attention.key_dim} is not hidden_size / num_attention_heads, which the family uses",
    )
    layer = Layer(attention, common.gated_mlp(config), common.layer_norms(config, count=1))
    period = config.integer("sliding_window_pattern", default=4, most=common.MOST_LAYERS)
    window = common.window(config, 4096)
    layers = common.interleaved(layer, common.windowed_layers(config, period), window + 1 if window else None)
    return Stack(common.token_embedding(config, tied=True), layers, *common.positions(config, default=8192))
