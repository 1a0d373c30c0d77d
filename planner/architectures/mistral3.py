"""Mistral Small 3.1 and Ministral 3 with their vision tower (transformers, models/mistral3; vLLM, mistral3.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _vision as vision
from planner.architectures import mistral
from planner.blocks import Stack
from planner.tensors import Tensor, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("mistral3",)
SECTIONS = ("text_config", "vision_config")
PROJECTOR = "model.multi_modal_projector"


def blocks(config: VendorConfig) -> Stack:
    """Mistral's text model, a Pixtral tower, and a projector that merges neighbouring patches."""
    section = common.text_section(config)
    section.text("model_type", default="mistral", accepted=mistral.MODEL_TYPES)
    text = mistral.blocks(section)
    encoder = config.section("vision_config")
    encoder.text("model_type", default="pixtral", accepted=("pixtral",))
    depth = encoder.integer("num_hidden_layers", default=24, most=common.MOST_LAYERS)
    width = encoder.integer("hidden_size", default=1024, most=common.MOST_WIDTH)
    merged = width * config.integer("spatial_merge_size", default=2, most=64) ** 2
    hidden, bias = text.embedding.hidden, config.flag("multimodal_projector_bias", default=False)
    tower = vision.tower(
        "vision tower",
        vision.pixtral(encoder, layers=vision.feature_layers(config, depth, -1)),
        vision.once(
            norm(f"{PROJECTOR}.norm", width),
            (Tensor(f"{PROJECTOR}.patch_merger.merging_layer", width, merged),),
            vision.projector(PROJECTOR, (hidden, width), (hidden, hidden), ("linear_1", "linear_2"), bias=bias),
        ),
    )
    return replace(text, towers=(tower,), notes=(*text.notes, vision.NOTE))
