"""LFM2: short convolutions with attention in between (vLLM, model_executor/models/lfm2.py)."""

from planner.architectures import _common as common
from planner.architectures import _states as states
from planner.blocks import Embedding, Layer, Mlp, Stack
from planner.mixers import Attention, State
from planner.tensors import norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("lfm2",)


def blocks(config: VendorConfig) -> Stack:
    """Attention in the layers that layer_types or full_attn_idxs name, a short convolution in the others."""
    mlp, norms = _feed_forward(config), common.layer_norms(config)
    attention, conv = Layer(full_attention(config), mlp, norms), Layer(short_conv(config), mlp, norms)
    layers = tuple(attention if kind == "full_attention" else conv for kind in layer_kinds(config))
    return Stack(token_embedding(config), layers, *common.positions(config, default=128_000))


def layer_kinds(config: VendorConfig) -> tuple[str, ...]:
    """full_attention or conv for each layer; all are attention in a config that does not say."""
    count = config.integer("num_hidden_layers", default=32, most=common.MOST_LAYERS)
    if config.has("layer_types"):
        kinds = config.texts("layer_types")
    else:
        listed = frozenset(config.integers("full_attn_idxs") if config.has("full_attn_idxs") else range(count))
        kinds = tuple("full_attention" if i in listed else "conv" for i in range(count))
    config.refuse_unless(
        len(kinds) == count and set(kinds) <= {"full_attention", "conv"},
        "layer_types",
        f"each of the {count} layers must be listed as full_attention or conv",
    )
    return kinds


def full_attention(config: VendorConfig) -> Attention:
    """Grouped-query attention with a query and a key norm per head."""
    hidden, heads = common.hidden_size(config), common.head_count(config)
    width = common.head_width(config, hidden, heads)
    norms = (*norm("self_attn.q_layernorm", width), *norm("self_attn.k_layernorm", width))
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")
    return common.full_attention(config, default_kv_heads=8, norms=norms, names=names)


def short_conv(config: VendorConfig) -> State:
    """The convolution of a layer without attention."""
    width = config.integer("conv_dim", default=common.hidden_size(config), most=common.MOST_WIDTH)
    config.refuse_unless(
        width == common.hidden_size(config) or bool(config.problems), "conv_dim", "differs from hidden_size"
    )
    taps = states.state_taps(config, "conv_L_cache", default=3)
    return states.short_conv(width, taps, bias=config.flag("conv_bias", default=False))


def token_embedding(config: VendorConfig) -> Embedding:
    """Embedding and norm; an output head of its own only where the config unties it, by the newer name or the older."""
    tied = config.flag("tie_embedding", "tie_word_embeddings", default=True)
    hidden = common.hidden_size(config)
    vocab = config.integer("vocab_size", most=common.MOST_WIDTH)
    return Embedding(vocab, hidden, tied, final=norm("model.embedding_norm", hidden))


def _feed_forward(config: VendorConfig) -> Mlp:
    """A gated MLP whose width is two thirds of the config's, times a factor, in whole steps of block_multiple_of."""
    width = config.integer("block_ff_dim", "intermediate_size", most=common.MOST_WIDTH)
    if config.flag("block_auto_adjust_ff_dim", default=True):
        width = int(2 * width / 3)
        if config.has("block_ffn_dim_multiplier"):
            width = int(width * config.number("block_ffn_dim_multiplier", most=1024))
        step = config.integer("block_multiple_of", default=256, most=common.MOST_WIDTH)
        width = -(-width // step) * step
    return Mlp(common.hidden_size(config), max(1, width), name="feed_forward", names=("w1", "w3", "w2"))
