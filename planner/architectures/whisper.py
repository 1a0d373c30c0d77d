"""Whisper (vLLM, model_executor/models/whisper.py)."""

from planner.architectures import _common as common
from planner.architectures import _encoder as encoder
from planner.architectures import _vision as parts
from planner.blocks import Embedding, Layer, Mlp, Stack, Tower
from planner.tensors import Split, Tensor, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("whisper",)


def blocks(config: VendorConfig) -> Stack:
    """Decoder layers of self- and cross-attention; the token table is whole on every rank and is the head too."""
    hidden, sources = common.hidden_size(config), config.integer("max_source_positions", default=1500)
    heads = encoder.heads_of(config, "decoder", hidden)
    own = encoder.attention("self_attn", hidden, heads, key_bias=False)
    cross = encoder.attention("encoder_attn", hidden, heads, key_bias=False, cross_tokens=sources)
    norms = norm("layer_norms", 3 * hidden, bias=True)
    layer = Layer(own, _mlp(config, hidden, "decoder"), norms, beside=(cross,))
    targets = config.integer("max_target_positions", default=448)
    config.refuse_unless(
        config.flag("tie_word_embeddings", default=True), "tie_word_embeddings", "the head is the token table here"
    )
    embedding = Embedding(
        config.integer("vocab_size", most=common.MOST_WIDTH),
        hidden,
        tied=True,
        positions=(Tensor("model.decoder.embed_positions", targets, hidden),),
        final=norm("model.decoder.layer_norm", hidden, bias=True),
        split=Split.REPLICATED,
    )
    layers = (layer,) * encoder.layers_of(config, "decoder")
    tower = _encoder(config, hidden, sources)
    return Stack(embedding, layers, targets, "max_target_positions", (encoder.NOTE,), (tower,))


def _encoder(config: VendorConfig, hidden: int, sources: int) -> Tower:
    """Two convolutions over the spectrogram, stored positions, and layers of attention without a cache."""
    own = encoder.attention("self_attn", hidden, encoder.heads_of(config, "encoder", hidden), key_bias=False)
    layer = Layer(own, _mlp(config, hidden, "encoder"), norm("layer_norms", 2 * hidden, bias=True))
    mels = config.integer("num_mel_bins", default=80, most=common.MOST_HEADS)
    return parts.tower(
        "encoder",
        parts.once(
            parts.conv("model.encoder.conv1", hidden, 3 * mels, bias=True),
            parts.conv("model.encoder.conv2", hidden, 3 * hidden, bias=True),
            (Tensor("model.encoder.embed_positions", sources, hidden),),
            norm("model.encoder.layer_norm", hidden, bias=True),
        ),
        parts.times(encoder.layers_of(config, "encoder"), layer.tensors()),
    )


def _mlp(config: VendorConfig, hidden: int, side: str) -> Mlp:
    width = config.integer(f"{side}_ffn_dim", most=common.MOST_WIDTH)
    return Mlp(hidden, width, gated=False, bias=True, names=("", "fc1", "fc2"))
