"""RecurrentGemma (Griffin): linear recurrences with windowed attention in between.

source: transformers, models/recurrent_gemma/modeling_recurrent_gemma.py
"""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _states as states
from planner.blocks import Layer, Mlp, Stack
from planner.mixers import Attention, State
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("recurrent_gemma",)
CYCLE = ("recurrent", "recurrent", "attention")


def blocks(config: VendorConfig) -> Stack:
    """The mixers of block_types, over and over; an MLP of half the config's width each way in every layer."""
    hidden = common.hidden_size(config)
    width = config.integer("intermediate_size", default=7680, least=2, most=common.MOST_WIDTH) // 2
    mlp, norms = Mlp(hidden, width, bias=True, name="mlp_block"), common.layer_norms(config)
    layer_of = {"attention": Layer(_attention(config), mlp, norms), "recurrent": Layer(_state(config), mlp, norms)}
    cycle = config.texts("block_types") or CYCLE
    known = set(cycle) <= set(CYCLE)
    config.refuse_unless(known, "block_types", f"accepted: {', '.join(sorted(set(CYCLE)))}")
    count = config.integer("num_hidden_layers", default=26, most=common.MOST_LAYERS)
    layers = tuple(layer_of[cycle[i % len(cycle)]] for i in range(count)) if known else ()
    # Positions are rotary within the window: the config names no longest context.
    return Stack(common.token_embedding(config, tied=True), layers, *common.positions(config, default=8192))


def _attention(config: VendorConfig) -> Attention:
    bias = config.flag("attention_bias", default=False)
    attention = common.full_attention(config, bias=bias, output_bias=True)
    width = max(1, attention.hidden // attention.query_heads)
    window = config.integer("attention_window_size", "sliding_window", default=2048, most=common.MOST_WIDTH)
    return replace(attention, key_dim=width, value_dim=width, window=window)


def _state(config: VendorConfig) -> State:
    hidden, heads = common.hidden_size(config), common.head_count(config)
    width = config.integer("lru_width", default=hidden, most=common.MOST_WIDTH)
    config.refuse_unless(
        width % heads == 0 or bool(config.problems), "lru_width", f"{heads} heads do not divide {width}"
    )
    return states.gated_linear_recurrence(hidden, width, states.state_taps(config, "conv1d_width", default=4), heads)
