"""OLMo 3 (transformers, models/olmo3/modeling_olmo3.py)."""

from planner.architectures import _common as common
from planner.architectures import olmo2
from planner.blocks import Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("olmo3",)


def blocks(config: VendorConfig) -> Stack:
    """OLMo 2's layer, all but every fourth windowed."""
    windowed = common.windowed_layers(config, 4)
    layers = common.interleaved(olmo2.layer(config), windowed, common.window(config, 4096))
    return Stack(common.token_embedding(config), layers, *common.positions(config))
