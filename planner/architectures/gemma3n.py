"""Gemma 3n, text only or with its towers (vLLM, gemma3n.py and gemma3n_mm.py; transformers, models/gemma3n)."""

from collections.abc import Iterator
from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _conformer as conformer
from planner.architectures import _vision as vision
from planner.blocks import Layer, Stack, Tower
from planner.tensors import Split, Tensor, linear, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("gemma3n", "gemma3n_text")
SECTIONS = ("text_config", "vision_config", "audio_config")
MOBILENET = 294_126_912
"""Parameters of mobilenetv5_300m_enc, the one vision encoder of the family (timm, models/mobilenetv5.py)."""


def blocks(config: VendorConfig) -> Stack:
    """The text model and, for gemma3n, a MobileNet for images and a Conformer for sound, whole on every rank."""
    if config.fields.get("model_type") != "gemma3n":
        return _text(config)
    text = _text(common.text_section(config))
    hidden = text.embedding.hidden
    image, audio = config.section("vision_config"), config.section("audio_config")
    image.text("architecture", default="mobilenetv5_300m_enc", accepted=("mobilenetv5_300m_enc",))
    encoder = Tensor("model.vision_tower", MOBILENET)
    sound = conformer.encoder(
        audio, "model.audio_tower", default_hidden=1536, prefix="conf_", channels="sscp_conv_channel_size"
    )
    towers = (
        vision.tower("vision tower", vision.once((encoder,), _embedder(image, "model.embed_vision", 2048, hidden))),
        Tower(sound.name, (*sound.weights, *vision.once(_embedder(audio, "model.embed_audio", 1536, hidden)))),
    )
    return replace(text, towers=towers, notes=("the vision and audio towers own no cache",))


def _embedder(config: VendorConfig, name: str, default: int, hidden: int) -> tuple[Tensor, ...]:
    """A tower's own vocabulary, its norms, and the projection to the text model's width; never quantised."""
    width = config.integer("hidden_size", default=default, most=common.MOST_WIDTH)
    vocab = config.integer("vocab_size", default=128, most=common.MOST_WIDTH)
    return (
        Tensor(f"{name}.embedding", vocab, width, Split.VOCAB),
        *norm(f"{name}.norms", 2 * width),
        *vision.unquantised(linear(f"{name}.embedding_projection", hidden, width, Split.INPUT)),
    )


def _text(config: VendorConfig) -> Stack:
    """All but every fifth layer windowed; the last num_kv_shared_layers read the cache of earlier ones."""
    windowed = common.windowed_layers(config, 5)
    count = len(windowed)
    shared = config.integer("num_kv_shared_layers", default=15, least=0, most=common.MOST_LAYERS)
    config.refuse_unless(
        shared <= count - 2, "num_kv_shared_layers", f"{shared} of {count} layers leave none to share the cache of"
    )
    window = common.window(config, 512)
    keys = tuple(zip(_widths(config, count), windowed, (i >= count - shared for i in range(count)), strict=False))
    layers = {key: _layer(config, key[0], window if key[1] else None, shares=key[2]) for key in dict.fromkeys(keys)}
    inputs = config.integer("altup_num_inputs", default=4, most=64)
    hidden = common.hidden_size(config)
    embedding = common.token_embedding(
        config, tied=True, default_vocab=262_400, positions=tuple(_inputs(config, count, inputs))
    )
    unembed = _projections("altup_unembed_projections", hidden, inputs)
    return Stack(
        replace(embedding, final=(*embedding.final, *unembed)),
        tuple(layers[key] for key in keys),
        *common.unscaled_positions(config, 32_768),
    )


def _widths(config: VendorConfig, count: int) -> tuple[int, ...]:
    """The width of each layer's MLP: one for all, or a list."""
    if not isinstance(config.fields.get("intermediate_size"), list):
        return (config.integer("intermediate_size", default=16_384, most=common.MOST_WIDTH),) * count
    widths = config.integers("intermediate_size")
    config.refuse_unless(
        len(widths) == count and all(0 < width <= common.MOST_WIDTH for width in widths),
        "intermediate_size",
        f"a width for each of the {count} layers is needed",
    )
    return widths


def _inputs(config: VendorConfig, count: int, inputs: int) -> Iterator[Tensor]:
    """Embeddings per layer, the projection beside them, and those that make the further streams."""
    hidden = common.hidden_size(config)
    width = config.integer("hidden_size_per_layer_input", default=256, most=common.MOST_WIDTH)
    vocab = config.integer("vocab_size_per_layer_input", default=262_144, most=common.MOST_WIDTH)
    yield Tensor("embed_tokens_per_layer", vocab, count * width, Split.VOCAB)
    yield from linear("per_layer_model_projection", count * width, hidden, Split.OUTPUT)
    yield from norm("per_layer_projection_norm", width)
    yield from _projections("altup_projections", hidden, inputs)


def _projections(name: str, hidden: int, inputs: int) -> tuple[Tensor, ...]:
    return (Tensor(name, hidden, hidden, Split.OUTPUT, copies=inputs - 1, quantisable=True),)


def _layer(config: VendorConfig, intermediate: int, window: int | None, *, shares: bool) -> Layer:
    """Attention, MLP, the alternating-updates router over the streams, a low-rank residual, and a gated input."""
    bias = config.flag("attention_bias", default=False)
    attention = common.full_attention(
        config,
        bias=bias,
        output_bias=bias,
        per_head_norm=True,
        default_heads=8,
        default_kv_heads=2,
        default_head_dim=256,
    )
    attention = replace(attention, window=window)
    if shares:
        attention = replace(attention, owns_cache=False, projects_kv=False, norms=attention.norms[:1])
    return Layer(attention, common.gated_mlp(config, intermediate), tuple(_beside(config)))


def _beside(config: VendorConfig) -> Iterator[Tensor]:
    hidden = common.hidden_size(config)
    inputs = config.integer("altup_num_inputs", default=4, most=64)
    rank = config.integer("laurel_rank", default=64, most=common.MOST_WIDTH)
    width = config.integer("hidden_size_per_layer_input", default=256, most=common.MOST_WIDTH)
    yield from linear("altup.correction_coefs", inputs, inputs, Split.REPLICATED)
    yield from linear("altup.prediction_coefs", inputs**2, inputs, Split.REPLICATED)
    yield from linear("altup.modality_router", inputs, hidden, Split.REPLICATED)
    yield from norm("altup.router_norm", hidden)
    yield Tensor("altup.correct_output_scale", hidden, dtype="float32")
    yield from linear("laurel.linear_left", rank, hidden, Split.OUTPUT)
    yield from linear("laurel.linear_right", hidden, rank, Split.INPUT)
    yield from norm("laurel.post_laurel_norm", hidden)
    yield from linear("per_layer_input_gate", width, hidden, Split.REPLICATED)
    yield from linear("per_layer_projection", hidden, width, Split.REPLICATED)
    yield from common.layer_norms(config, count=5)
