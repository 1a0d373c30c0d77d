"""T5 and its kin: Flan-T5, mT5 (transformers, models/t5/modeling_t5.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _encoder as encoder
from planner.architectures import _vision as parts
from planner.blocks import Embedding, Layer, Mlp, Stack
from planner.mixers import Attention
from planner.tensors import Tensor, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("t5", "mt5")


def blocks(config: VendorConfig) -> Stack:
    """Heads whose width does not follow from d_model, no biases, relative positions in each side's first layer."""
    newer = config.fields.get("model_type") == "mt5"
    hidden = common.hidden_size(config)
    heads = config.integer("num_heads", "num_attention_heads", most=common.MOST_HEADS)
    width = config.integer("d_kv", default=64, most=common.MOST_HEADS)
    # Positions are relative: the longest context is what the model was trained on.
    positions = config.integer("n_positions", default=512)
    own = Attention(hidden, heads, heads, width, width, names=_names("SelfAttention"))
    cross = replace(own, cross=True, cross_tokens=positions, names=_names("EncDecAttention"))
    mlp = _mlp(config, hidden, "gated-gelu" if newer else "relu")
    buckets = config.integer("relative_attention_num_buckets", default=32, most=common.MOST_HEADS)
    bias = Tensor("SelfAttention.relative_attention_bias", buckets, heads)
    encoder_layers = config.integer("num_layers", "num_hidden_layers", most=common.MOST_LAYERS)
    layers = config.integer("num_decoder_layers", default=encoder_layers, most=common.MOST_LAYERS)
    tower = parts.tower(
        "encoder",
        parts.once((bias,), norm("encoder.final_layer_norm", hidden)),
        parts.times(encoder_layers, Layer(own, mlp, norm("layer_norms", 2 * hidden)).tensors()),
    )
    embedding = Embedding(
        config.integer("vocab_size", most=common.MOST_WIDTH),
        hidden,
        config.flag("tie_word_embeddings", default=not newer),
        positions=(bias,),
        final=norm("decoder.final_layer_norm", hidden),
        name="shared",
    )
    layer = Layer(own, mlp, norm("layer_norms", 3 * hidden), beside=(cross,))
    return Stack(embedding, (layer,) * layers, positions, "n_positions", (encoder.NOTE,), (tower,))


def _mlp(config: VendorConfig, hidden: int, default: str) -> Mlp:
    """Gated where feed_forward_proj says so (T5 v1.1 and later)."""
    gated = config.text("feed_forward_proj", default=default).startswith("gated-")
    width = config.integer("d_ff", default=2048, most=common.MOST_WIDTH)
    names = ("wi_0", "wi_1", "wo") if gated else ("", "wi", "wo")
    return Mlp(hidden, width, gated=gated, name="DenseReluDense", names=names)


def _names(module: str) -> tuple[str, str, str, str]:
    return (f"{module}.q", f"{module}.k", f"{module}.v", f"{module}.o")
