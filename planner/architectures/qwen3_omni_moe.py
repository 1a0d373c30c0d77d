"""Qwen3-Omni: the thinker, which is what the engine loads (vLLM, model_executor/models/qwen3_omni_moe_thinker.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _vision as vision
from planner.architectures import qwen3_moe
from planner.blocks import Stack, Tower
from planner.tensors import Split, linear, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("qwen3_omni_moe",)
SECTIONS = ("thinker_config", "talker_config")
NOTES = (
    "the towers own no cache",
    "only the thinker is counted, as the engine loads it: the talker and what turns codes into sound are not",
)


def blocks(config: VendorConfig) -> Stack:
    """Qwen3's experts beside Qwen3-VL's tower and an encoder of sound."""
    thinker = config.section("thinker_config")
    stack = qwen3_moe.blocks(common.text_section(thinker))
    section = thinker.section("vision_config")
    side = section.integer("image_size", default=768, most=vision.MOST_PIXELS)
    places = (side // section.integer("patch_size", default=16, most=vision.MOST_PIXELS)) ** 2
    section.fields = {**section.fields, "num_position_embeddings": places}
    towers = (vision.qwen3_vl(section, "visual"), _audio(thinker.section("audio_config")))
    return replace(stack, towers=towers, notes=NOTES)


def _audio(section: VendorConfig, name: str = "audio_tower") -> Tower:
    """Three convolutions that halve the spectrogram, then layers that every rank holds whole where TP cannot divide."""
    width = section.integer("d_model", default=1280, most=common.MOST_WIDTH)
    heads = section.integer("encoder_attention_heads", default=20, most=common.MOST_HEADS)
    inner = section.integer("encoder_ffn_dim", default=5120, most=common.MOST_WIDTH)
    down = section.integer("downsample_hidden_size", default=480, most=common.MOST_WIDTH)
    out = section.integer("output_dim", default=3584, most=common.MOST_WIDTH)
    bands = section.integer("num_mel_bins", default=128, most=common.MOST_HEADS)
    for _ in range(2):
        bands = (bands + 1) // 2
    rows = down * ((bands + 1) // 2)
    layer = (
        *vision.attention(f"{name}.layers.self_attn", width, heads),
        *vision.mlp(f"{name}.layers", width, inner, ("fc1", "fc2")),
        *norm(f"{name}.layers.norms", 2 * width, bias=True),
    )
    ends = (
        *linear(f"{name}.conv_out", width, rows, Split.REPLICATED),
        *linear(f"{name}.proj1", width, width, Split.REPLICATED, bias=True),
        *linear(f"{name}.proj2", out, width, Split.REPLICATED, bias=True),
    )
    return vision.tower(
        "audio tower",
        vision.once(
            vision.conv(f"{name}.conv2d1", down, 9, bias=True),
            *(vision.conv(f"{name}.conv2d{i}", down, 9 * down, bias=True) for i in (2, 3)),
            vision.unquantised(ends),
            norm(f"{name}.ln_post", width, bias=True),
        ),
        vision.times(
            section.integer("encoder_layers", "num_hidden_layers", default=32, most=common.MOST_LAYERS),
            (replace(tensor, split_only_by=heads) for tensor in vision.unquantised(layer)),
        ),
    )
