"""MiniMax-M3: grouped-query attention over blocks that an index key picks (vLLM, models/minimax_m3/nvidia/model.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _vision as vision
from planner.blocks import Layer, Mlp, Moe, Stack, Tower
from planner.mixers import Attention
from planner.tensors import Split, linear, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("minimax_m3_vl", "minimax_m3_text")
SECTIONS = ("text_config", "vision_config")


def blocks(config: VendorConfig) -> Stack:
    """Plain attention in some layers and indexed in the rest; dense or expert layers by a list; a vision tower."""
    text = config.section("text_config") if config.has("text_config") else config
    count = text.integer("num_hidden_layers", default=60, most=common.MOST_LAYERS)
    sparse = text.section("sparse_attention_config")
    indexed = _marked(sparse, "sparse_attention_freq", count)
    with_experts = _marked(text, "moe_layer_freq", count)
    plain, norms = common.full_attention(text, per_head_norm=True), common.layer_norms(text)
    dense = Mlp(plain.hidden, text.integer("dense_intermediate_size", default=12288, most=common.MOST_WIDTH))
    own, moe = _indexed(plain, sparse), _experts(text)
    kinds = tuple(zip(indexed, with_experts, strict=True))
    made = {key: Layer(own if key[0] else plain, moe if key[1] else dense, norms) for key in set(kinds)}
    stack = Stack(common.token_embedding(text), tuple(made[key] for key in kinds), *common.positions(text))
    if not config.has("vision_config"):
        return stack
    return replace(stack, towers=(_tower(config, plain.hidden),), notes=(vision.NOTE,))


def _marked(config: VendorConfig, field: str, count: int) -> tuple[bool, ...]:
    """Which layers a list of numbers marks: those that are not 0."""
    marks = config.integers(field)
    config.refuse_unless(len(marks) == count, field, f"lists {len(marks)} layers, and the model has {count}")
    return tuple(bool(mark) for mark in (*marks, *(0,) * count)[:count])


def _indexed(plain: Attention, sparse: VendorConfig) -> Attention:
    """With index queries beside the key/value heads, and one index key for all of them."""
    heads, width = sparse.integer("sparse_num_index_heads", most=2**16), sparse.integer("sparse_index_dim", most=2**16)
    sparse.refuse_unless(
        heads == plain.kv_heads and width == plain.key_dim,
        "sparse_num_index_heads",
        f"{heads} index heads of {width} are not the key/value heads' number and width",
    )
    index = (
        *linear("self_attn.index_q_proj", heads * width, plain.hidden, Split.KV_HEADS, units=heads),
        *linear("self_attn.index_k_proj", width, plain.hidden, Split.REPLICATED),
        *norm("self_attn.index_q_norm", width),
        *norm("self_attn.index_k_norm", width),
    )
    return replace(plain, norms=(*plain.norms, *index), index_key_dim=width)


def _experts(text: VendorConfig) -> Moe:
    hidden, width = common.hidden_size(text), text.integer("intermediate_size", most=common.MOST_WIDTH)
    shared = text.integer("n_shared_experts", default=1, least=0, most=1024)
    name = "block_sparse_moe"
    return Moe(
        hidden,
        width,
        *common.routing(text, ("num_local_experts",)),
        shared=Mlp(hidden, shared * width, name=f"{name}.shared_experts") if shared else None,
        router_bias=text.flag("use_routing_bias", default=True),
        router_dtype="float32",
        name=name,
    )


def _tower(config: VendorConfig, out: int) -> Tower:
    """A CLIP-like encoder of patches in space and time, a projector, and a merger of neighbouring patches."""
    section, name = config.section("vision_config"), "vision_tower"
    width = section.integer("hidden_size", most=common.MOST_WIDTH)
    heads = section.integer("num_attention_heads", most=common.MOST_HEADS)
    section.refuse_unless(width % heads == 0, "num_attention_heads", f"{heads} heads do not divide {width}")
    inner = section.integer("intermediate_size", most=common.MOST_WIDTH)
    merging = section.section("img_token_compression_config")
    side = merging.integer("spatial_merge_size", default=2, most=64)
    frames = merging.integer("temporal_patch_size", default=2, most=1024)
    patch = section.integer("patch_size", most=vision.MOST_PIXELS)
    pixels = section.integer("num_channels", default=3, most=1024) * frames * patch**2
    middle = config.integer("projector_hidden_size", default=out, most=common.MOST_WIDTH)
    stem = f"{name}.vision_model.encoder.layers"
    layer = (
        *vision.attention(f"{stem}.self_attn", width, heads),
        *vision.mlp(stem, width, inner, ("fc1", "fc2")),
        *norm(f"{stem}.layer_norms", 2 * width, bias=True),
    )
    linears = ("linear_1", "linear_2")
    return vision.tower(
        "vision tower",
        vision.once(
            vision.conv(f"{name}.vision_model.embeddings.patch_embedding", width, pixels, bias=False),
            norm(f"{name}.vision_model.pre_layrnorm", width, bias=True),
        ),
        vision.times(section.integer("num_hidden_layers", most=common.MOST_LAYERS), layer),
        vision.once(
            vision.projector(f"{name}.multi_modal_projector", (middle, width), (out, middle), linears),
            vision.projector(f"{name}.patch_merge_mlp", (middle, out * side**2), (out, middle), linears),
        ),
    )
