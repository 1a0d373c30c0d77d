"""Gemma 3, text only or with its vision tower (transformers, models/gemma3/modeling_gemma3.py; vLLM, gemma3_mm.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _vision as vision
from planner.blocks import Layer, Stack
from planner.tensors import Tensor, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("gemma3", "gemma3_text")
SECTIONS = ("text_config", "vision_config")


def blocks(config: VendorConfig) -> Stack:
    """The text model, and for gemma3 the SigLIP tower and the projection of its patches, whole on every rank."""
    if config.fields.get("model_type") != "gemma3":
        return _text(config)
    text = _text(common.text_section(config))
    encoder = config.section("vision_config")
    width = encoder.integer("hidden_size", default=768, most=common.MOST_WIDTH)
    projector = (
        Tensor("multi_modal_projector.mm_input_projection_weight", width, text.embedding.hidden),
        *norm("multi_modal_projector.mm_soft_emb_norm", width),
    )
    tower = vision.tower("vision tower", vision.siglip(encoder), vision.once(projector))
    return replace(text, towers=(tower,), notes=(vision.NOTE,))


def _text(config: VendorConfig) -> Stack:
    """Gemma 2's shape with query and key norms, all but every sixth layer windowed; rope scaling adds no positions."""
    config.refuse_unless(
        not config.flag("use_bidirectional_attention", default=False),
        "use_bidirectional_attention",
        "attention to later positions (embedding models) is not supported here",
    )
    bias = config.flag("attention_bias", default=False)
    attention = common.full_attention(
        config,
        bias=bias,
        output_bias=bias,
        per_head_norm=True,
        default_heads=8,
        default_kv_heads=4,
        default_head_dim=256,
    )
    layer = Layer(attention, common.gated_mlp(config), common.layer_norms(config, count=4))
    period = config.integer("sliding_window_pattern", default=6, most=common.MOST_LAYERS)
    layers = common.interleaved(layer, common.windowed_layers(config, period), common.window(config, 4096))
    embedding = common.token_embedding(config, tied=True, default_vocab=262_208)
    return Stack(embedding, layers, *common.unscaled_positions(config, 131_072))
