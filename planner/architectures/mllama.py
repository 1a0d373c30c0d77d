"""Llama 3.2 Vision: cross-attention layers over an image encoder (transformers, models/mllama/modeling_mllama.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _vision as vision
from planner.blocks import Layer, Stack, Tower
from planner.mixers import Attention
from planner.tensors import Split, Tensor, linear, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("mllama",)
SECTIONS = ("text_config", "vision_config")
CROSS_LAYERS = (3, 8, 13, 18, 23, 28, 33, 38)
SPECIAL_TOKENS = 8
"""Rows of the token table beyond the head's vocabulary."""
ASPECT_RATIOS = 8
"""The class's list of supported aspect ratios of four tiles."""


def blocks(config: VendorConfig) -> Stack:
    """Llama's layers, some of them replaced by gated cross-attention whose keys and values come from one image."""
    text, section = common.text_section(config), config.section("vision_config")
    hidden, count = common.hidden_size(text), common.layer_count(text)
    tiles = section.integer("max_num_tiles", default=4, most=1024)
    patches = _patches(section)
    own = common.full_attention(text, default_kv_heads=8)
    mlp, norms = common.gated_mlp(text), common.layer_norms(text)
    gates = (Tensor("cross_attn_gates", 2),)
    plain, crossing = Layer(own, mlp, norms), Layer(_cross(own, tiles * patches), mlp, (*norms, *gates))
    places = set(text.integers("cross_attention_layers") if text.has("cross_attention_layers") else CROSS_LAYERS)
    layers = tuple(crossing if i in places else plain for i in range(count))
    special = (Tensor("model.embed_tokens.special", SPECIAL_TOKENS, hidden),)
    embedding = replace(common.token_embedding(text), positions=special)
    tower = _tower(section, hidden, tiles, patches)
    return Stack(embedding, layers, *common.positions(text), notes=(vision.NOTE,), towers=(tower,))


def _cross(own: Attention, tokens: int) -> Attention:
    names = ("cross_attn.q_proj", "cross_attn.k_proj", "cross_attn.v_proj", "cross_attn.o_proj")
    norms = norm("cross_attn.norms", 2 * own.key_dim)
    return replace(own, norms=norms, cross=True, cross_tokens=tokens, names=names)


def _patches(section: VendorConfig) -> int:
    """Positions of one tile, its class token included."""
    side = section.integer("image_size", default=448, most=vision.MOST_PIXELS)
    return (side // section.integer("patch_size", default=14, most=vision.MOST_PIXELS)) ** 2 + 1


def _tower(section: VendorConfig, hidden: int, tiles: int, patches: int) -> Tower:
    """Two encoders in a row, the second one gated, with position tables per aspect ratio."""
    width = section.integer("hidden_size", default=1280, most=common.MOST_WIDTH)
    heads = section.integer("attention_heads", "num_attention_heads", default=16, most=common.MOST_HEADS)
    inner = section.integer("intermediate_size", default=5120, most=common.MOST_WIDTH)
    out = section.integer("vision_output_dim", default=7680, most=common.MOST_WIDTH)
    patch = section.integer("patch_size", default=14, most=vision.MOST_PIXELS)
    channels = section.integer("num_channels", default=3, most=1024)
    listed = section.fields.get("supported_aspect_ratios")
    ratios = 1 + (len(listed) if isinstance(listed, list) else ASPECT_RATIOS)
    name = "vision_model"
    layer = (
        *vision.attention(
            f"{name}.layers.self_attn", width, heads, ("q_proj", "k_proj", "v_proj", "o_proj"), bias=False
        ),
        *vision.mlp(f"{name}.layers.mlp", width, inner, ("fc1", "fc2")),
        *norm(f"{name}.layers.norms", 2 * width, bias=True),
    )
    gates = (Tensor(f"{name}.layers.gates", 2),)
    return vision.tower(
        "vision tower",
        vision.once(
            vision.conv(f"{name}.patch_embedding", width, channels * patch * patch, bias=False),
            (
                Tensor(f"{name}.class_embedding", width),
                Tensor(f"{name}.position_embedding", patches, width),
                Tensor(f"{name}.position_embedding.tiles", ratios, tiles * patches * width),
                Tensor(f"{name}.tile_embeddings", 2 * ratios, tiles * width),
                Tensor(f"{name}.embedding_gates", 3),
            ),
            norm(f"{name}.layernorms", 2 * width, bias=True),
            linear("multi_modal_projector", hidden, out, Split.REPLICATED, bias=True),
        ),
        vision.times(section.integer("num_hidden_layers", default=32, most=common.MOST_LAYERS), layer),
        vision.times(section.integer("num_global_layers", default=8, most=common.MOST_LAYERS), (*layer, *gates)),
    )
