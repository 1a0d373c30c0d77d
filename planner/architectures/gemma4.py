"""Gemma 4, text only or with its towers (vLLM, gemma4.py and gemma4_mm.py; transformers, models/gemma4)."""

from collections.abc import Iterator
from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _conformer as conformer
from planner.architectures import _vision as vision
from planner.blocks import Layer, Moe, Stack, Tower
from planner.mixers import Attention
from planner.tensors import Split, Tensor, linear, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("gemma4", "gemma4_text")
SECTIONS = ("text_config", "vision_config", "audio_config")
VIDEO_TOKENS = 2496
"""32 frames of a video, 70 tokens and what separates them each: one item must fit in an engine step."""


def blocks(config: VendorConfig) -> Stack:
    """The text model and, for gemma4, an encoder of images and one of sound, whole on every rank."""
    if config.fields.get("model_type") != "gemma4":
        return _text(config)
    section = common.text_section(config)
    text = _text(section)
    towers = [_vision(config.section("vision_config"), text.embedding.hidden)]
    if config.has("audio_config"):
        towers.append(_audio(config.section("audio_config"), text.embedding.hidden))
    prefix_lm = section.fields.get("use_bidirectional_attention") == "vision"
    return replace(
        text,
        towers=tuple(towers),
        notes=(vision.NOTE if len(towers) == 1 else "the vision and audio towers own no cache",),
        least_batched_tokens=VIDEO_TOKENS if prefix_lm else 0,
    )


def _text(config: VendorConfig) -> Stack:
    """All but every sixth layer windowed, the last never; full layers have heads of their own.

    The last num_kv_shared_layers read the cache of earlier ones, and their MLP may be twice as wide.
    """
    config.text("use_bidirectional_attention", default="vision", accepted=("vision",))
    config.refuse_unless(
        not config.has("per_layer_config"), "per_layer_config", "a shape of its own per layer is not supported here"
    )
    windowed = (*common.windowed_layers(config, 6)[:-1], False)
    count = len(windowed)
    shared = config.integer("num_kv_shared_layers", default=0, least=0, most=common.MOST_LAYERS)
    owners = windowed[: max(0, count - shared)]
    config.refuse_unless(
        set(owners) == set(windowed),
        "num_kv_shared_layers",
        f"{shared} of {count} layers leave none of each kind to share the cache of",
    )
    keys = tuple((is_windowed, i >= count - shared) for i, is_windowed in enumerate(windowed))
    layers = {key: _layer(config, windowed=key[0], shares=key[1]) for key in dict.fromkeys(keys)}
    width = _input_width(config)
    embedding = common.token_embedding(
        config, tied=True, default_vocab=262_144, positions=tuple(_inputs(config, count, width)) if width else ()
    )
    return Stack(embedding, tuple(layers[key] for key in keys), *common.unscaled_positions(config, 131_072))


def _input_width(config: VendorConfig) -> int:
    """Width of the embedding that each layer has of its own; 0 in models without."""
    if config.fields.get("hidden_size_per_layer_input", 256) is None:
        return 0
    return config.integer("hidden_size_per_layer_input", default=256, least=0, most=common.MOST_WIDTH)


def _inputs(config: VendorConfig, count: int, width: int) -> Iterator[Tensor]:
    vocab = config.integer("vocab_size_per_layer_input", default=262_144, most=common.MOST_WIDTH)
    yield Tensor("embed_tokens_per_layer", vocab, count * width, Split.VOCAB)
    yield from linear("per_layer_model_projection", count * width, common.hidden_size(config), Split.OUTPUT)
    yield from norm("per_layer_projection_norm", width)


def _layer(config: VendorConfig, *, windowed: bool, shares: bool) -> Layer:
    """Attention and an MLP, with experts beside it where the config has any, and the gated input of its own."""
    wide = shares and config.flag("use_double_wide_mlp", default=False)
    intermediate = config.integer("intermediate_size", default=9216, most=common.MOST_WIDTH)
    mlp = common.gated_mlp(config, intermediate * (2 if wide else 1))
    attention = _attention(config, windowed=windowed, shares=shares)
    beside = tuple(_beside(config))
    if not config.has("num_experts"):
        return Layer(attention, mlp, (*common.layer_norms(config, count=4), *beside))
    experts, top_k = config.integer("num_experts", most=common.MOST_HEADS), config.integer("top_k_experts")
    config.refuse_unless(
        top_k <= experts or bool(config.problems), "top_k_experts", f"{top_k} is more than the {experts} experts"
    )
    width = config.integer("moe_intermediate_size", "expert_intermediate_size", most=common.MOST_WIDTH)
    moe = Moe(common.hidden_size(config), width, experts, top_k, name="moe")
    scales = (Tensor("router.scale", moe.hidden), Tensor("router.per_expert_scale", experts))
    return Layer(attention, moe, (*common.layer_norms(config, count=7), *scales, *beside), dense=mlp)


def _attention(config: VendorConfig, *, windowed: bool, shares: bool) -> Attention:
    """Keys and values are both cached and projected, even where attention_k_eq_v says that they are equal."""
    heads = common.head_count(config, 8)
    kv_heads = common.kv_head_count(config, heads, 4)
    width = config.integer("head_dim", default=256, most=common.MOST_HEADS)
    if not windowed:
        width = config.integer("global_head_dim", default=512, most=common.MOST_HEADS)
        if config.flag("attention_k_eq_v", default=False):
            kv_heads = config.integer("num_global_key_value_heads", default=kv_heads, most=common.MOST_HEADS)
            config.refuse_unless(
                heads % kv_heads == 0 or bool(config.problems),
                "num_global_key_value_heads",
                f"{kv_heads} key/value heads do not divide num_attention_heads {heads}",
            )
    bias = config.flag("attention_bias", default=False)
    return Attention(
        common.hidden_size(config),
        heads,
        kv_heads,
        width,
        width,
        bias,
        bias,
        norms=(*norm("self_attn.q_norm", width), *(() if shares else norm("self_attn.k_norm", width))),
        window=common.window(config, 512) if windowed else None,
        owns_cache=not shares,
        projects_kv=not shares,
    )


def _beside(config: VendorConfig) -> Iterator[Tensor]:
    hidden, width = common.hidden_size(config), _input_width(config)
    if width:
        yield from linear("per_layer_input_gate", width, hidden, Split.REPLICATED)
        yield from linear("per_layer_projection", hidden, width, Split.REPLICATED)
        yield from norm("post_per_layer_input_norm", hidden)


def _vision(config: VendorConfig, hidden: int) -> Tower:
    """Gated MLPs and normed heads; two tables of positions; quantised only where its widths are multiples of 64."""
    width = config.integer("hidden_size", default=768, most=common.MOST_WIDTH)
    inner = config.integer("intermediate_size", default=3072, most=common.MOST_WIDTH)
    heads = config.integer("num_attention_heads", default=12, most=common.MOST_HEADS)
    kv_heads = config.integer("num_key_value_heads", default=12, most=common.MOST_HEADS)
    head_dim = config.integer("head_dim", default=64, most=common.MOST_HEADS)
    places = config.integer("position_embedding_size", default=10_240, most=common.MOST_WIDTH)
    patch = 3 * config.integer("patch_size", default=16, most=vision.MOST_PIXELS) ** 2
    count = config.integer("num_hidden_layers", default=16, most=common.MOST_LAYERS)
    name = "model.vision_tower"
    stem = f"{name}.encoder.layers"
    projections = Attention(
        width,
        heads,
        kv_heads,
        head_dim,
        head_dim,
        norms=norm(f"{stem}.self_attn.norms", 2 * head_dim),
        names=tuple(f"{stem}.self_attn.{side}_proj" for side in "qkvo"),  # type: ignore[arg-type]
    )
    gates = vision.mlp(f"{stem}.mlp", width, inner, ("gate_proj", "up_proj", "down_proj"), bias=False)
    layer = (*projections.tensors(), *gates, *norm(f"{stem}.norms", 4 * width))
    patches = linear(f"{name}.patch_embedder.input_proj", width, patch, Split.REPLICATED)
    connector = linear("model.embed_vision.embedding_projection", hidden, width, Split.REPLICATED)
    table = Tensor(f"{name}.patch_embedder.position_embedding_table", 2 * places, width)
    weights = (*vision.once(patches, (table,), connector), *vision.times(count, layer))
    return Tower("vision tower", _whole(weights, quantisable=not (width % 64 or inner % 64)))


def _audio(config: VendorConfig, hidden: int) -> Tower:
    width = config.integer("hidden_size", default=1024, most=common.MOST_WIDTH)
    out = config.integer("output_proj_dims", default=1536, most=common.MOST_WIDTH)
    output = (
        *linear("model.audio_tower.output_proj", out, width, Split.REPLICATED, bias=True),
        *linear("model.embed_audio.embedding_projection", hidden, out, Split.REPLICATED),
    )
    tower = conformer.encoder(
        config,
        "model.audio_tower",
        default_hidden=1024,
        prefix="",
        channels="subsampling_conv_channels",
        output=output,
    )
    return Tower(tower.name, _whole(tower.weights, quantisable=width % 64 == 0))


def _whole(weights: vision.Weights, *, quantisable: bool) -> vision.Weights:
    """On every rank, and in the model's dtype where the engine does not quantise the tower."""
    return tuple(
        (count, replace(t, split=Split.REPLICATED, units=0, quantisable=t.quantisable and quantisable))
        for count, t in weights
    )
