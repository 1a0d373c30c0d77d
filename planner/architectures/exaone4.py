"""EXAONE 4 (transformers, models/exaone4/modeling_exaone4.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("exaone4",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with query and key norms of one head's width; the layer norms follow attention and MLP."""
    layer = Layer(
        common.full_attention(config, per_head_norm=True, default_kv_heads=32),
        common.gated_mlp(config),
        common.layer_norms(config),
    )
    return Stack(common.token_embedding(config), layers(config, layer), *common.positions(config))


def layers(config: VendorConfig, layer: Layer) -> tuple[Layer, ...]:
    """The layer windowed but for every fourth; without a window, full everywhere."""
    window = common.window(config, 4096)
    period = 4
    if window is not None and not config.has("layer_types"):
        period = config.integer("sliding_window_pattern", default=4, most=common.MOST_LAYERS)
    return common.interleaved(layer, common.windowed_layers(config, period), window)
