"""Readings that many families share; each has one home here."""

from planner.blocks import Embedding, FullAttention, Mlp, Tensor, norm
from planner.vendor_config import VendorConfig


def hidden_size(config: VendorConfig) -> int:
    """Width of the residual stream."""
    return config.integer("hidden_size", "n_embd", "d_model")


def layer_count(config: VendorConfig) -> int:
    """Decoder layers."""
    return config.integer("num_hidden_layers", "n_layer", "num_layers", "n_layers", most=4096)


def positions(config: VendorConfig, *names: str) -> tuple[int, str]:
    """(longest context, the field that says so)."""
    names = names or ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
    field = next((name for name in names if config.has(name)), names[0])
    return config.integer(*names), field


def head_width(config: VendorConfig, hidden: int, heads: int) -> int:
    """head_dim when the config has one, hidden / heads only when it has not."""
    if not config.has("head_dim"):
        config.refuse_unless(
            hidden % heads == 0,
            "num_attention_heads",
            f"{heads} heads do not divide hidden_size {hidden} and there is no head_dim",
        )
    return config.integer("head_dim", default=max(1, hidden // heads), most=65536)


def kv_head_count(config: VendorConfig, heads: int) -> int:
    """Key/value heads; a config without them has one per query head."""
    kv_heads = config.integer("num_key_value_heads", default=heads)
    config.refuse_unless(
        heads % kv_heads == 0,
        "num_key_value_heads",
        f"{kv_heads} key/value heads do not divide num_attention_heads {heads}",
    )
    return kv_heads


def full_attention(
    config: VendorConfig,
    *,
    bias: bool = False,
    output_bias: bool = False,
    per_head_norm: bool = False,
) -> FullAttention:
    """GQA as llama-like configs write it; per_head_norm adds a query and a key norm of one head's width."""
    hidden = hidden_size(config)
    heads = config.integer("num_attention_heads", "n_head")
    width = head_width(config, hidden, heads)
    norms = (*norm("self_attn.q_norm", width), *norm("self_attn.k_norm", width)) if per_head_norm else ()
    return FullAttention(
        hidden, heads, kv_head_count(config, heads), width, width, bias, output_bias, norms
    )


def gated_mlp(config: VendorConfig, intermediate: int | None = None, *, bias: bool = False) -> Mlp:
    """The gate/up/down feed-forward of llama-like models."""
    return Mlp(hidden_size(config), intermediate or config.integer("intermediate_size"), bias=bias)


def layer_norms(config: VendorConfig, *, count: int = 2, bias: bool = False) -> tuple[Tensor, ...]:
    """`count` norms of the hidden size per layer."""
    hidden = hidden_size(config)
    return tuple(tensor for i in range(count) for tensor in norm(f"norm_{i}", hidden, bias=bias))


def token_embedding(
    config: VendorConfig, *, tied: bool = False, norm_bias: bool = False, head_bias: bool = False
) -> Embedding:
    """Embedding, final norm and output head; `tied` is the family's default for tie_word_embeddings."""
    hidden = hidden_size(config)
    return Embedding(
        config.integer("vocab_size"),
        hidden,
        config.flag("tie_word_embeddings", default=tied),
        head_bias,
        final=norm("model.norm", hidden, bias=norm_bias),
    )


def refuse_windows(config: VendorConfig, *, unless_flag: str | None = None) -> None:
    """Refuse a config whose layers see only a window, which this version does not size.

    unless_flag: a config field that switches the window off when it is false
    """
    if unless_flag and not config.flag(unless_flag, default=False):
        return
    if config.has("sliding_window"):
        config.problem(
            "sliding_window",
            f"windowed layers ({config.fields['sliding_window']}) are not supported in this version; "
            "only models whose layers are all full attention are",
        )
