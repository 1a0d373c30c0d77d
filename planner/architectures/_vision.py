"""Vision encoders that several families share: their weights as the engine divides them; none owns a cache.

source: vLLM 0.33, model_executor/models (qwen2_5_vl.py, qwen3_vl.py, siglip.py, clip.py, pixtral.py, mllama4.py,
kimi_k25_vit.py); class defaults from transformers, models/*/configuration_*.py
"""

from collections.abc import Iterable
from dataclasses import replace

from planner.architectures import _common as common
from planner.blocks import Mlp, Tower
from planner.tensors import Split, Tensor, linear, norm
from planner.vendor_config import VendorConfig

NOTE = "the vision tower owns no cache"
MOST_PIXELS = 2**16
Weights = tuple[tuple[int, Tensor], ...]


def tower(name: str, *parts: Iterable[tuple[int, Tensor]]) -> Tower:
    """A tower of (how many times, tensor) lists."""
    return Tower(name, tuple(pair for part in parts for pair in part))


def times(count: int, tensors: Iterable[Tensor]) -> Weights:
    """The same tensors in `count` layers."""
    return tuple((count, tensor) for tensor in tensors)


def once(*groups: Iterable[Tensor]) -> Weights:
    """Tensors that the tower has one of."""
    return tuple((1, tensor) for group in groups for tensor in group)


def attention(
    name: str,
    width: int,
    heads: int,
    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "out_proj"),
    *,
    inner: int | None = None,
    bias: bool = True,
    output_bias: bool | None = None,
) -> tuple[Tensor, ...]:
    """Attention over patches, whole heads per rank.

    names: what the checkpoint calls the projections, the output last; the others share 3 x inner rows
    inner: the heads' width together, where it is not `width`
    output_bias: where it differs from the others' bias
    """
    inner = inner or width
    *inputs, output = names
    rows = 3 * inner // len(inputs)
    projections = (linear(f"{name}.{n}", rows, width, Split.OUTPUT, bias=bias, units=heads) for n in inputs)
    out_bias = bias if output_bias is None else output_bias
    return (
        *(tensor for projection in projections for tensor in projection),
        *linear(f"{name}.{output}", width, inner, Split.INPUT, bias=out_bias, units=heads),
    )


def mlp(name: str, width: int, inner: int, names: tuple[str, ...], *, bias: bool = True) -> tuple[Tensor, ...]:
    """A feed-forward: (up, down), or (gate, up, down)."""
    gated = len(names) == 3
    gate, up, down = names if gated else ("", *names)
    return Mlp(width, inner, gated=gated, bias=bias, name=name, names=(gate, up, down)).tensors()


def projector(
    name: str, first: tuple[int, int], second: tuple[int, int], names: tuple[str, str], *, bias: bool = True
) -> tuple[Tensor, ...]:
    """Two linear layers of (rows, cols), the first divided by rows and the second by columns."""
    return (
        *linear(f"{name}.{names[0]}", *first, Split.OUTPUT, bias=bias),
        *linear(f"{name}.{names[1]}", *second, Split.INPUT, bias=bias),
    )


def conv(name: str, rows: int, cols: int, *, bias: bool) -> tuple[Tensor, ...]:
    """A patch embedding: a convolution that every rank holds whole and no method quantises."""
    weight = Tensor(name, rows, cols)
    return (weight, Tensor(f"{name}.bias", rows)) if bias else (weight,)


def whole(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Linear layers that every rank holds whole."""
    return tuple(replace(tensor, split=Split.REPLICATED, units=0) for tensor in tensors)


def unquantised(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Linear layers that the engine never quantises."""
    return tuple(replace(tensor, quantisable=False) for tensor in tensors)


def feature_layers(config: VendorConfig, depth: int, default: int) -> int:
    """Encoder layers that are built: up to the deepest whose output is used (vision_feature_layer)."""
    value = config.fields.get("vision_feature_layer", default)
    layers = [layer for layer in (value if isinstance(value, list) else [value]) if type(layer) is int]
    built = max((layer if layer >= 0 else depth + layer + 1 for layer in layers), default=0)
    config.refuse_unless(
        0 < built <= depth, "vision_feature_layer", f"layers of an encoder of {depth} are needed, not {value!r}"
    )
    return built


def _width_and_heads(
    vision: VendorConfig, width: tuple[str, ...], heads: tuple[str, ...], defaults: tuple[int | None, int | None]
) -> tuple[int, int]:
    size = vision.integer(*width, default=defaults[0], most=common.MOST_WIDTH)
    count = vision.integer(*heads, default=defaults[1], most=common.MOST_HEADS)
    if not vision.problems:
        vision.refuse_unless(size % count == 0, heads[0], f"{count} heads do not divide the width of {size}")
    return size, count


def _patches(vision: VendorConfig, image: int | None = None, patch: int | None = None) -> int:
    """Patches of one square image."""
    side = vision.integer("image_size", default=image, most=MOST_PIXELS)
    return (side // vision.integer("patch_size", default=patch, most=MOST_PIXELS)) ** 2


def _patch_inputs(vision: VendorConfig, patch: int | None, *, frames: bool = False) -> int:
    """Numbers in one patch."""
    channels = vision.integer("in_channels", "in_chans", "num_channels", default=3, most=1024)
    deep = vision.integer("temporal_patch_size", default=2, most=1024) if frames else 1
    return channels * deep * vision.integer("patch_size", default=patch, most=MOST_PIXELS) ** 2


def qwen2_5_vl(vision: VendorConfig, name: str = "model.visual") -> Tower:
    """Qwen2.5-VL: RMS norms, a gated MLP with biases, and a merger of neighbouring patches."""
    width, heads = _width_and_heads(vision, ("hidden_size",), ("num_heads",), (None, 16))
    inner = vision.integer("intermediate_size", default=3420, most=common.MOST_WIDTH)
    out = vision.integer("out_hidden_size", default=3584, most=common.MOST_WIDTH)
    merged = width * vision.integer("spatial_merge_size", default=2, most=64) ** 2
    layer = (
        *attention(f"{name}.blocks.attn", width, heads, ("qkv", "proj")),
        *mlp(f"{name}.blocks.mlp", width, inner, ("gate_proj", "up_proj", "down_proj")),
        *norm(f"{name}.blocks.norms", 2 * width),
    )
    return tower(
        "vision tower",
        once(conv(f"{name}.patch_embed.proj", width, _patch_inputs(vision, 14, frames=True), bias=False)),
        times(vision.integer("depth", default=32, most=common.MOST_LAYERS), layer),
        once(
            norm(f"{name}.merger.ln_q", width),
            projector(f"{name}.merger.mlp", (merged, merged), (out, merged), ("0", "2")),
        ),
    )


def qwen2_vl(vision: VendorConfig, name: str = "model.visual") -> Tower:
    """Qwen2-VL: layer norms and a plain MLP; hidden_size is the language model's width."""
    width, heads = _width_and_heads(vision, ("embed_dim",), ("num_heads",), (1280, 16))
    inner = width * vision.integer("mlp_ratio", default=4, most=1024)
    out = vision.integer("hidden_size", default=3584, most=common.MOST_WIDTH)
    merged = width * vision.integer("spatial_merge_size", default=2, most=64) ** 2
    layer = (
        *attention(f"{name}.blocks.attn", width, heads, ("qkv", "proj")),
        *mlp(f"{name}.blocks.mlp", width, inner, ("fc1", "fc2")),
        *norm(f"{name}.blocks.norms", 2 * width, bias=True),
    )
    return tower(
        "vision tower",
        once(conv(f"{name}.patch_embed.proj", width, _patch_inputs(vision, 14, frames=True), bias=False)),
        times(vision.integer("depth", default=32, most=common.MOST_LAYERS), layer),
        once(
            norm(f"{name}.merger.ln_q", width, bias=True),
            projector(f"{name}.merger.mlp", (merged, merged), (out, merged), ("0", "2")),
        ),
    )


def qwen3_vl(
    vision: VendorConfig, name: str = "model.visual", *, deepstack: tuple[int, ...] | None = (8, 16, 24)
) -> Tower:
    """Qwen3-VL and Qwen3.5: learned positions, a plain MLP, a merger, and further mergers (deepstack).

    deepstack: the config class's default for deepstack_visual_indexes; None: the class has no such field
    """
    width, heads = _width_and_heads(vision, ("hidden_size",), ("num_heads",), (1152, 16))
    inner = vision.integer("intermediate_size", default=4304, most=common.MOST_WIDTH)
    out = vision.integer("out_hidden_size", default=3584, most=common.MOST_WIDTH)
    places = vision.integer("num_position_embeddings", default=2304, most=common.MOST_WIDTH)
    merged = width * vision.integer("spatial_merge_size", default=2, most=64) ** 2
    given = vision.has("deepstack_visual_indexes")
    mergers = len(vision.integers("deepstack_visual_indexes") if given else deepstack or ())
    layer = (
        *attention(f"{name}.blocks.attn", width, heads, ("qkv", "proj")),
        *mlp(f"{name}.blocks.mlp", width, inner, ("linear_fc1", "linear_fc2")),
        *norm(f"{name}.blocks.norms", 2 * width, bias=True),
    )
    fcs, first, second = ("linear_fc1", "linear_fc2"), (merged, merged), (out, merged)
    deep = f"{name}.deepstack_merger_list"
    return tower(
        "vision tower",
        once(
            conv(f"{name}.patch_embed.proj", width, _patch_inputs(vision, 16, frames=True), bias=True),
            (Tensor(f"{name}.pos_embed", places, width),),
        ),
        times(vision.integer("depth", default=27, most=common.MOST_LAYERS), layer),
        once(norm(f"{name}.merger.norm", width, bias=True), projector(f"{name}.merger", first, second, fcs)),
        times(mergers, (*norm(f"{deep}.norm", merged, bias=True), *projector(deep, first, second, fcs))),
    )


def siglip(
    vision: VendorConfig, name: str = "vision_tower.vision_model", *, layers: int | None = None, post_norm: bool = True
) -> Weights:
    """SigLIP without its head (SigLIP's weights only: each family has a projector of its own).

    layers: how many encoder layers are built; None: all
    """
    width, heads = _width_and_heads(vision, ("hidden_size",), ("num_attention_heads",), (768, 12))
    inner = vision.integer("intermediate_size", default=3072, most=common.MOST_WIDTH)
    depth = vision.integer("num_hidden_layers", default=12, most=common.MOST_LAYERS)
    ffn = mlp(f"{name}.encoder.layers.mlp", width, inner, ("fc1", "fc2"))
    if width % 64 or inner % 64:  # The engine quantises the feed-forward only where both widths allow it.
        ffn = unquantised(ffn)
    layer = (
        *attention(f"{name}.encoder.layers.self_attn", width, heads),
        *ffn,
        *norm(f"{name}.encoder.layers.layer_norms", 2 * width, bias=True),
    )
    return (
        *once(
            conv(f"{name}.embeddings.patch_embedding", width, _patch_inputs(vision, 16), bias=True),
            (Tensor(f"{name}.embeddings.position_embedding", _patches(vision, 224, 16), width),),
            norm(f"{name}.post_layernorm", width, bias=True) if post_norm else (),
        ),
        *times(layers or depth, layer),
    )


def clip(
    vision: VendorConfig, name: str = "vision_tower.vision_model", *, layers: int | None = None, post_norm: bool = True
) -> Weights:
    """CLIP's vision half: a class token, learned positions, a norm before the layers."""
    width, heads = _width_and_heads(vision, ("hidden_size",), ("num_attention_heads",), (768, 12))
    inner = vision.integer("intermediate_size", default=3072, most=common.MOST_WIDTH)
    depth = vision.integer("num_hidden_layers", default=12, most=common.MOST_LAYERS)
    layer = (
        *attention(f"{name}.encoder.layers.self_attn", width, heads),
        *mlp(f"{name}.encoder.layers.mlp", width, inner, ("fc1", "fc2")),
        *norm(f"{name}.encoder.layers.layer_norms", 2 * width, bias=True),
    )
    return (
        *once(
            conv(f"{name}.embeddings.patch_embedding", width, _patch_inputs(vision, 32), bias=False),
            (
                Tensor(f"{name}.embeddings.class_embedding", width),
                Tensor(f"{name}.embeddings.position_embedding", _patches(vision, 224, 32) + 1, width),
            ),
            norm(f"{name}.pre_layrnorm", width, bias=True),
            norm(f"{name}.post_layernorm", width, bias=True) if post_norm else (),
        ),
        *times(layers or depth, layer),
    )


def pixtral(vision: VendorConfig, name: str = "model.vision_tower", *, layers: int | None = None) -> Weights:
    """Pixtral in the transformers layout: RMS norms, a gated MLP, rotary positions, no biases."""
    width, heads = _width_and_heads(vision, ("hidden_size",), ("num_attention_heads",), (1024, 16))
    inner = vision.integer("intermediate_size", default=4096, most=common.MOST_WIDTH)
    depth = vision.integer("num_hidden_layers", default=24, most=common.MOST_LAYERS)
    stem = f"{name}.transformer.layers"
    layer = (
        *attention(f"{stem}.attention", width, heads, ("q_proj", "k_proj", "v_proj", "o_proj"), bias=False),
        *mlp(f"{stem}.feed_forward", width, inner, ("gate_proj", "up_proj", "down_proj"), bias=False),
        *norm(f"{stem}.norms", 2 * width),
    )
    return (
        *once(
            conv(f"{name}.patch_conv", width, _patch_inputs(vision, 16), bias=False),
            norm(f"{name}.ln_pre", width),
        ),
        *times(layers or depth, layer),
    )


def llama4(vision: VendorConfig, name: str = "vision_model") -> Weights:
    """Llama 4's encoder and pixel-shuffle adapter, never quantised."""
    width, heads = _width_and_heads(vision, ("hidden_size",), ("num_attention_heads",), (768, 16))
    inner = vision.integer("intermediate_size", default=5632, most=common.MOST_WIDTH)
    middle = vision.integer("projector_input_dim", default=4096, most=common.MOST_WIDTH)
    out = vision.integer("projector_output_dim", default=4096, most=common.MOST_WIDTH)
    bias = vision.flag("multi_modal_projector_bias", default=False)
    stem = f"{name}.model.layers"
    layer = (
        *attention(f"{stem}.self_attn", width, heads, ("q_proj", "k_proj", "v_proj", "o_proj")),
        *mlp(f"{stem}.mlp", width, inner, ("fc1", "fc2")),
        *norm(f"{stem}.norms", 2 * width, bias=True),
    )
    adapter = projector(f"{name}.vision_adapter.mlp", (middle, inner), (out, middle), ("fc1", "fc2"), bias=bias)
    return (
        *once(
            unquantised(linear(f"{name}.patch_embedding.linear", width, _patch_inputs(vision, 14), Split.OUTPUT)),
            (
                Tensor(f"{name}.class_embedding", width),
                Tensor(f"{name}.positional_embedding_vlm", _patches(vision, 448, 14) + 1, width),
            ),
            norm(f"{name}.layernorms", 2 * width, bias=True),
            unquantised(adapter),
        ),
        *times(vision.integer("num_hidden_layers", default=34, most=common.MOST_LAYERS), unquantised(layer)),
    )


def moonvit(vision: VendorConfig, out: int, *, name: str = "vision_tower", connector: str = "mm_projector") -> Tower:
    """MoonViT of the Kimi models with its projector of patches, which every rank holds whole.

    Where TP does not divide its heads every rank holds the tower whole.
    out: the language model's width
    """
    width = vision.integer("vt_hidden_size", "hidden_size", default=1152, most=common.MOST_WIDTH)
    heads = vision.integer("vt_num_attention_heads", "num_attention_heads", default=16, most=common.MOST_HEADS)
    depth = vision.integer("vt_num_hidden_layers", "num_hidden_layers", default=27, most=common.MOST_LAYERS)
    mid = vision.integer("vt_intermediate_size", "intermediate_size", default=4304, most=common.MOST_WIDTH)
    inner = vision.integer("qkv_hidden_size", default=width, most=common.MOST_WIDTH)
    vision.refuse_unless(inner % heads == 0, "vt_num_attention_heads", f"{heads} heads do not divide {inner}")
    high = vision.integer("init_pos_emb_height", "pos_emb_height", default=64, most=MOST_PIXELS)
    wide = vision.integer("init_pos_emb_width", "pos_emb_width", default=64, most=MOST_PIXELS)
    layer_norm = vision.text("norm_type", default="layernorm", accepted=("layernorm", "rmsnorm")) == "layernorm"
    bias, stem = vision.flag("attn_bias", default=True), f"{name}.encoder.blocks"
    layer = (
        *attention(stem, width, heads, ("wqkv", "wo"), inner=inner, bias=bias),
        *mlp(f"{stem}.mlp", width, mid, ("fc0", "fc1"), bias=vision.flag("linear_bias", default=True)),
        *norm(f"{stem}.norms", 2 * width, bias=layer_norm),
    )
    embed_bias = vision.flag("patch_embed_proj_bias", default=True)
    return tower(
        "vision tower",
        once(
            conv(f"{name}.patch_embed.proj", width, _patch_inputs(vision, 14), bias=embed_bias),
            (Tensor(f"{name}.patch_embed.pos_emb", high * wide, width),),
        ),
        times(depth, (replace(tensor, split_only_by=heads) for tensor in layer)),
        once(
            norm(f"{name}.encoder.final_layernorm", width, bias=layer_norm),
            _moonvit_projector(vision, width, out, connector),
        ),
    )


def _moonvit_projector(vision: VendorConfig, width: int, out: int, name: str) -> tuple[Tensor, ...]:
    kernel = vision.integers("merge_kernel_size") or (2, 2)
    if len(kernel) != 2 or not all(0 < side <= 64 for side in kernel):
        vision.problem("merge_kernel_size", f"two sides of 1 to 64 are needed, not {list(kernel)}")
        return ()
    merged = width * kernel[0] * kernel[1]
    kind = vision.text("mm_projector_type", default="patchmerger", accepted=("patchmerger", "patchmergerv2"))
    bias = kind == "patchmerger"
    linears = projector(name, (merged, merged), (out, merged), ("linear_1", "linear_2"), bias=bias)
    norms = norm(f"{name}.pre_norm", width, bias=True) if bias else norm(f"{name}.post_norm", out)
    return (*whole(linears), *norms)
