"""BART (transformers, models/bart/modeling_bart.py)."""

from planner.architectures import _common as common
from planner.architectures import _encoder as encoder
from planner.architectures import _vision as parts
from planner.blocks import Embedding, Layer, Mlp, Stack, Tower
from planner.tensors import Tensor, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("bart",)
OFFSET = 2
"""Rows before the first position in BART's position tables."""


def blocks(config: VendorConfig) -> Stack:
    """One token table for encoder, decoder and head; norms after each part and after the embeddings."""
    hidden, (positions, field) = common.hidden_size(config), common.positions(config, default=1024)
    heads = encoder.heads_of(config, "decoder", hidden)
    own = encoder.attention("self_attn", hidden, heads)
    cross = encoder.attention("encoder_attn", hidden, heads, cross_tokens=positions)
    layer = Layer(own, _mlp(config, hidden, "decoder"), norm("layer_norms", 3 * hidden, bias=True), beside=(cross,))
    embedding = Embedding(
        config.integer("vocab_size", most=common.MOST_WIDTH),
        hidden,
        config.flag("tie_word_embeddings", default=True),
        positions=(
            Tensor("model.decoder.embed_positions", positions + OFFSET, hidden),
            *norm("model.decoder.layernorm_embedding", hidden, bias=True),
        ),
    )
    layers = (layer,) * encoder.layers_of(config, "decoder")
    return Stack(embedding, layers, positions, field, (encoder.NOTE,), (_encoder(config, hidden, positions),))


def _encoder(config: VendorConfig, hidden: int, positions: int) -> Tower:
    own = encoder.attention("self_attn", hidden, encoder.heads_of(config, "encoder", hidden))
    layer = Layer(own, _mlp(config, hidden, "encoder"), norm("layer_norms", 2 * hidden, bias=True))
    return parts.tower(
        "encoder",
        parts.once(
            (Tensor("model.encoder.embed_positions", positions + OFFSET, hidden),),
            norm("model.encoder.layernorm_embedding", hidden, bias=True),
        ),
        parts.times(encoder.layers_of(config, "encoder"), layer.tensors()),
    )


def _mlp(config: VendorConfig, hidden: int, side: str) -> Mlp:
    width = config.integer(f"{side}_ffn_dim", default=4096, most=common.MOST_WIDTH)
    return Mlp(hidden, width, gated=False, bias=True, names=("", "fc1", "fc2"))
