"""GLM-4.1V, GLM-4.5V and GLM-4.6V (vLLM, model_executor/models/glm4_1v.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _vision as vision
from planner.architectures import glm4, glm4_moe
from planner.blocks import Stack, Tower
from planner.tensors import Split, Tensor, linear, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("glm4v", "glm4v_moe")
SECTIONS = ("text_config", "vision_config")


def blocks(config: VendorConfig) -> Stack:
    """GLM-4 (or GLM-4.5's experts) beside a vision tower; the classes' attention has biases by default."""
    text = common.text_section(config)
    text.fields = {"attention_bias": True, **text.fields}
    stack = glm4_moe.blocks(text) if config.fields.get("model_type") == "glm4v_moe" else glm4.blocks(text)
    return replace(stack, towers=(_tower(config.section("vision_config")),), notes=(vision.NOTE,))


def _tower(section: VendorConfig, name: str = "model.visual") -> Tower:
    """RMS norms and no biases; the encoder's feed-forward is out_hidden_size wide, the merger's intermediate_size."""
    width = section.integer("hidden_size", default=1536, most=common.MOST_WIDTH)
    heads = section.integer("num_heads", "num_attention_heads", default=12, most=common.MOST_HEADS)
    out = section.integer("out_hidden_size", default=4096, most=common.MOST_WIDTH)
    inner = section.integer("intermediate_size", default=13696, most=common.MOST_WIDTH)
    patch = section.integer("patch_size", default=14, most=vision.MOST_PIXELS)
    frames = section.integer("temporal_patch_size", default=2, most=1024)
    inputs = section.integer("in_channels", "in_chans", default=3, most=1024) * frames * patch**2
    places = (section.integer("image_size", default=336, most=vision.MOST_PIXELS) // patch) ** 2
    merged = width * section.integer("spatial_merge_size", default=2, most=64) ** 2
    gated, merger = ("gate_proj", "up_proj", "down_proj"), f"{name}.merger"
    layer = (
        *vision.attention(f"{name}.blocks.attn", width, heads, ("qkv", "proj"), bias=False),
        *vision.mlp(f"{name}.blocks.mlp", width, out, gated, bias=False),
        *norm(f"{name}.blocks.norms", 2 * width),
    )
    return vision.tower(
        "vision tower",
        vision.once(
            vision.conv(f"{name}.patch_embed.proj", width, inputs, bias=True),
            (Tensor(f"{name}.embeddings.position_embedding", places, width),),
            vision.conv(f"{name}.downsample", out, merged, bias=True),
            norm(f"{name}.layernorms", 2 * width),
        ),
        vision.times(section.integer("depth", default=24, most=common.MOST_LAYERS), layer),
        vision.once(
            linear(f"{merger}.proj", out, out, Split.OUTPUT),
            norm(f"{merger}.post_projection_norm", out, bias=True),
            vision.mlp(merger, out, inner, gated, bias=False),
        ),
    )
