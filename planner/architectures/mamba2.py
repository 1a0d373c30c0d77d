"""Mamba-2, such as Mamba-Codestral: state layers only (vLLM, model_executor/models/mamba2.py)."""

from planner.architectures import _common as common
from planner.architectures import _states as states
from planner.architectures.mamba import DEFAULT_POSITIONS
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("mamba2",)


def blocks(config: VendorConfig) -> Stack:
    """One Mamba-2 layer and one norm, repeated."""
    heads = config.integer("num_heads", default=128, most=common.MOST_HEADS)
    head_dim = config.integer("head_dim", default=64, most=common.MOST_HEADS)
    inner = states.expanded(config, "expand")
    config.refuse_unless(
        heads * head_dim == inner or bool(config.problems),
        "num_heads",
        f"{heads} heads of {head_dim} do not make up the {inner} channels of the state layers",
    )
    state = states.mamba2(
        common.hidden_size(config),
        heads,
        head_dim,
        config.integer("n_groups", default=8, most=common.MOST_HEADS),
        config.integer("state_size", default=128, most=common.MOST_HEADS),
        states.state_taps(config, "conv_kernel", default=4),
        conv_bias=config.flag("use_conv_bias", default=True),
        bias=config.flag("use_bias", default=False),
        name="mixer",
    )
    layers = (Layer(state, None, common.layer_norms(config, count=1)),) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config, default=DEFAULT_POSITIONS))
