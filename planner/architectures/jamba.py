"""Jamba: Mamba layers, some attention, experts in every other layer (vLLM, model_executor/models/jamba.py)."""

from planner.architectures import _common as common
from planner.architectures import _states as states
from planner.architectures.mamba import time_step_rank
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.mixers import Attention, Mixer, State
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("jamba",)


def blocks(config: VendorConfig) -> Stack:
    """Attention every attn_layer_period layers and experts every expert_layer_period, each from its own offset."""
    norms = common.layer_norms(config)
    mixers: dict[bool, Mixer] = {True: _attention(config), False: _state(config)}
    dense = common.gated_mlp(config)
    experts = config.integer("num_experts", default=16, most=common.MOST_HEADS)
    ffns: dict[bool, Mlp | Moe] = {True: _experts(config) if experts > 1 else dense, False: dense}
    parts = [(attends, sparse) for attends in mixers for sparse in ffns]
    kinds = {(attends, sparse): Layer(mixers[attends], ffns[sparse], norms) for attends, sparse in parts}
    attends, sparse = _every(config, "attn_layer", 8, 4), _every(config, "expert_layer", 2, 1)
    layers = tuple(
        kinds[i % attends[0] == attends[1], i % sparse[0] == sparse[1]] for i in range(common.layer_count(config))
    )
    return Stack(common.token_embedding(config), layers, *common.positions(config, default=262144))


def _every(config: VendorConfig, name: str, period: int, offset: int) -> tuple[int, int]:
    """(period, offset) of a kind of layer; class defaults are given."""
    every = config.integer(f"{name}_period", default=period, most=common.MOST_LAYERS)
    start = config.integer(f"{name}_offset", default=offset, least=0, most=common.MOST_LAYERS)
    config.refuse_unless(
        start < every or bool(config.problems), f"{name}_offset", f"{start} is not below {name}_period {every}"
    )
    return every, start


def _attention(config: VendorConfig) -> Attention:
    # The engine gives no attention layer of Jamba a window.
    return common.full_attention(config, default_kv_heads=8)


def _state(config: VendorConfig) -> State:
    return states.mamba1(
        common.hidden_size(config),
        states.expanded(config, "mamba_expand"),
        config.integer("mamba_d_state", default=16, most=common.MOST_HEADS),
        states.state_taps(config, "mamba_d_conv", default=4),
        time_step_rank(config, "mamba_dt_rank"),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        bias=config.flag("mamba_proj_bias", default=False),
        norms=True,
        name="mamba",
    )


def _experts(config: VendorConfig) -> Moe:
    return Moe(
        common.hidden_size(config),
        config.integer("intermediate_size", most=common.MOST_WIDTH),
        *common.routing(config, ("num_experts",), default=2),
        name="feed_forward",
    )
