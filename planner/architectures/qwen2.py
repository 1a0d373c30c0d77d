"""Qwen2, Qwen2.5 and MiMo-7B, dense (transformers, models/qwen2/modeling_qwen2.py; vLLM 0.33, mimo.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("qwen2", "mimo")
SOME_WINDOWED = "vLLM 0.33 refuses windows in only some layers of this family"


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with biases on the query, key and value projections, and none on the output."""
    layer = Layer(
        common.full_attention(config, bias=True, default_kv_heads=32),
        common.gated_mlp(config),
        common.layer_norms(config),
    )
    return stack(config, layer)


def stack(config: VendorConfig, layer: Layer) -> Stack:
    """The layer throughout; with use_sliding_window, windowed from layer max_window_layers on."""
    window = common.switched_window(config)
    windowed = common.windowed_layers(config)
    if window is not None and not config.has("layer_types"):
        first = config.integer("max_window_layers", default=28, least=0)
        windowed = tuple(i >= first for i in range(len(windowed)))
    layers = common.interleaved(layer, windowed, window)
    notes = (SOME_WINDOWED,) if len({id(each) for each in layers}) > 1 else ()
    return Stack(common.token_embedding(config), layers, *common.positions(config), notes)
