"""LLaVA, LLaVA-NeXT and LLaVA-OneVision, Pixtral in its transformers layout included (vLLM, llava.py, llava_next.py,
llava_onevision.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _vision as vision
from planner.architectures import llama, mistral, qwen2
from planner.blocks import Stack, Tower
from planner.tensors import Tensor
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("llava", "llava_next", "llava_onevision")
SECTIONS = ("text_config", "vision_config")
TEXT = {"llama": llama, "mistral": mistral, "qwen2": qwen2}
LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
MISTRAL = {**LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072}
DEFAULTS = {"llama": LLAMA, "mistral": MISTRAL}
"""What the text models' config classes fill in: published files list only what differs."""
WIDTHS = {"clip_vision_model": 1024, "siglip_vision_model": 768, "pixtral": 1024}
DEPTHS = {"clip_vision_model": 24, "siglip_vision_model": 12, "pixtral": 24}


def blocks(config: VendorConfig) -> Stack:
    """A text model beside an encoder that is built up to the layer whose output is used, and a projector."""
    text = common.text_section(config)
    kind = text.text("model_type", default="llama", accepted=TEXT)
    text.fields = {**DEFAULTS.get(kind, {}), **text.fields}
    stack: Stack = TEXT[kind].blocks(text)
    return replace(stack, towers=(_tower(config, stack.embedding.hidden),), notes=(vision.NOTE,))


def _tower(config: VendorConfig, hidden: int) -> Tower:
    section, one_vision = config.section("vision_config"), config.fields.get("model_type") == "llava_onevision"
    kind = section.text("model_type", default="clip_vision_model", accepted=WIDTHS)
    width = section.integer("hidden_size", default=WIDTHS[kind], most=common.MOST_WIDTH)
    depth = section.integer("num_hidden_layers", default=DEPTHS[kind], most=common.MOST_LAYERS)
    built = vision.feature_layers(config, depth, -1 if one_vision else -2)
    bias = config.flag("multimodal_projector_bias", default=True)
    layers = config.fields.get("vision_feature_layer")
    inputs = width * (len(layers) if isinstance(layers, list) else 1)
    linears = vision.projector(
        "multi_modal_projector", (hidden, inputs), (hidden, hidden), ("linear_1", "linear_2"), bias=bias
    )
    newline = () if config.fields.get("model_type") == "llava" else (Tensor("image_newline", hidden),)
    return vision.tower(
        "vision tower",
        _encoder(kind, section, built),
        vision.once(vision.unquantised(vision.whole(linears)) if one_vision else linears, newline),
    )


def _encoder(kind: str, section: VendorConfig, built: int) -> vision.Weights:
    if kind == "pixtral":
        return vision.pixtral(section, layers=built)
    if kind == "siglip_vision_model":
        return vision.siglip(section, layers=built, post_norm=False)
    return vision.clip(section, layers=built, post_norm=False)
