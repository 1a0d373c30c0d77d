"""Mamba and Falcon-Mamba: state layers only (vLLM, model_executor/models/mamba.py)."""

from planner.architectures import _common as common
from planner.architectures import _states as states
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("mamba", "falcon_mamba")
DEFAULT_POSITIONS = 2048
"""What the engine takes for a config that names no longest context (vLLM 0.33, config/model.py)."""


def blocks(config: VendorConfig) -> Stack:
    """One Mamba layer and one norm, repeated; an intermediate_size counts before the multiple of the hidden width."""
    given = config.has("intermediate_size")
    state = states.mamba1(
        common.hidden_size(config),
        config.integer("intermediate_size", most=common.MOST_WIDTH) if given else states.expanded(config, "expand"),
        config.integer("state_size", default=16, most=common.MOST_HEADS),
        states.state_taps(config, "conv_kernel", default=4),
        time_step_rank(config, "time_step_rank"),
        conv_bias=config.flag("use_conv_bias", default=True),
        bias=config.flag("use_bias", default=False),
        norms=False,
        name="mixer",
    )
    layers = (Layer(state, None, common.layer_norms(config, count=1)),) * common.layer_count(config)
    return Stack(
        common.token_embedding(config, tied=True), layers, *common.positions(config, default=DEFAULT_POSITIONS)
    )


def time_step_rank(config: VendorConfig, field: str) -> int:
    """Width through which the time step is projected: a sixteenth of the hidden width, rounded up, for "auto"."""
    if config.fields.get(field, "auto") == "auto":
        return -(-common.hidden_size(config) // 16)
    return config.integer(field, most=common.MOST_WIDTH)
