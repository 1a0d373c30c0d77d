"""Readings that many families share; each has one home here."""

from collections.abc import Sequence
from dataclasses import replace

from planner.blocks import Embedding, Layer, Mlp
from planner.mixers import PROJECTIONS, Attention
from planner.tensors import Tensor, norm
from planner.vendor_config import VendorConfig

MOST_LAYERS = 4096
MOST_HEADS = 2**16
MOST_WIDTH = 2**24
"""Far above any real model's: beyond these a config is broken, and products of them mean nothing."""


def text_section(config: VendorConfig, name: str = "text_config") -> VendorConfig:
    """The language model's own section; a flat config is that section itself.

    The output head is tied where either level says so. source: vLLM 0.33, config/vllm.py with_hf_config
    """
    if not config.has(name):
        return config
    text = config.section(name)
    if config.has("tie_word_embeddings"):
        tied = config.flag("tie_word_embeddings", default=False) or text.fields.get("tie_word_embeddings") or False
        text.fields = {**text.fields, "tie_word_embeddings": tied}
    return text


def hidden_size(config: VendorConfig) -> int:
    """Width of the residual stream."""
    return config.integer("hidden_size", "n_embd", "n_embed", "d_model", most=MOST_WIDTH)


def head_count(config: VendorConfig, default: int | None = None) -> int:
    """Query heads."""
    return config.integer("num_attention_heads", "n_head", default=default, most=MOST_HEADS)


def layer_count(config: VendorConfig, accepted: tuple[str, ...] = ("full_attention",)) -> int:
    """Decoder layers; where the config lists `layer_types`, each of them must be one of `accepted`."""
    count = config.integer("num_hidden_layers", "n_layer", "num_layers", "n_layers", most=MOST_LAYERS)
    kinds = config.texts("layer_types")
    others = sorted(set(kinds) - set(accepted))
    config.refuse_unless(
        not others,
        "layer_types",
        f"layers of {', '.join(others)} are not supported in this family; accepted: {', '.join(accepted)}",
    )
    config.refuse_unless(
        not config.has("layer_types") or len(kinds) == count,
        "layer_types",
        f"lists {len(kinds)} layers, and the model has {count}",
    )
    return count


def window(config: VendorConfig, default: int | None = None) -> int | None:
    """Positions that a windowed layer sees; None where the config has no window.

    default: the config class's own, for a config without the field; null and 0 are no window, as the engine reads them
    """
    if "sliding_window" not in config.fields:
        return default
    if config.fields["sliding_window"] in (None, 0):
        return None
    return config.integer("sliding_window")


def switched_window(config: VendorConfig) -> int | None:
    """The window of Qwen's configs, which use_sliding_window switches on."""
    return window(config, 4096) if config.flag("use_sliding_window", default=False) else None


def windowed_layers(config: VendorConfig, period: int | None = None) -> tuple[bool, ...]:
    """Whether each layer is windowed: as layer_types says, else all but every `period`-th (None: all)."""
    count = layer_count(config, ("full_attention", "sliding_attention"))
    if config.has("layer_types"):
        return tuple(kind == "sliding_attention" for kind in config.texts("layer_types"))
    return tuple(period is None or bool((i + 1) % period) for i in range(count))


def interleaved(layer: Layer, windowed: Sequence[bool], window: int | None) -> tuple[Layer, ...]:
    """The layer as often as `windowed` is long, its attention limited to the window where that is true."""
    if window is None or not isinstance(layer.mixer, Attention):
        return (layer,) * len(windowed)
    local = replace(layer, mixer=replace(layer.mixer, window=window))
    return tuple(local if is_windowed else layer for is_windowed in windowed)


def positions(config: VendorConfig, *names: str, default: int | None = None) -> tuple[int, str]:
    """(longest context, the field that says so), rope scaling counted."""
    names = names or ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
    field = next((name for name in names if config.has(name)), names[0])
    positions, field = _scaled_positions(config, config.integer(*names, default=default), field)
    return positions, ".".join((*config.nesting, field))


def unscaled_positions(config: VendorConfig, default: int | None = None) -> tuple[int, str]:
    """(max_position_embeddings, its name), in families whose rope scaling is already counted in it."""
    name = "max_position_embeddings"
    return config.integer(name, default=default), ".".join((*config.nesting, name))


def _scaled_positions(config: VendorConfig, given: int, field: str) -> tuple[int, str]:
    """Positions under rope scaling: the factor times the given ones; for yarn, times the original ones if that is more.

    llama3, longrope and su scaling are already in the given positions, and vendors' own yarn configs have them there
    too; a yarn scaling that a user adds to a config says by its factor what it allows.
    source: vLLM 0.33, config/model.py _get_and_verify_max_len; transformers, modeling_rope_utils.py
    """
    name = next((n for n in ("rope_scaling", "rope_parameters") if config.has(n)), None)
    if name is None:
        return given, field
    scaling = config.section(name)
    kind = scaling.text("rope_type", "type", default="default")
    if kind in ("default", "mrope", "llama3", "longrope", "su"):
        return given, field
    factor = scaling.number("factor")
    if kind not in ("yarn", "deepseek_yarn"):
        return int(given * factor), f"{name}.factor"
    allowed = int(scaling.integer("original_max_position_embeddings", default=given) * factor)
    return (allowed, f"{name}.factor") if allowed > given else (given, field)


def head_width(config: VendorConfig, hidden: int, heads: int, default: int | None = None) -> int:
    """head_dim when the config has one, else the class default, hidden / heads only without either."""
    if default is None and not config.has("head_dim"):
        _refuse_unless(
            config,
            hidden % heads == 0,
            "num_attention_heads",
            f"{heads} heads do not divide hidden_size {hidden} and there is no head_dim",
        )
    return config.integer("head_dim", default=default or max(1, hidden // heads), most=MOST_HEADS)


def kv_head_count(config: VendorConfig, heads: int, default: int | None = None) -> int:
    """Key/value heads: one per query head where the field is null, the class's `default` where absent."""
    absent = "num_key_value_heads" not in config.fields
    kv_heads = config.integer("num_key_value_heads", default=default if default and absent else heads)
    _refuse_unless(
        config,
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
    kv_heads: int | None = None,
    default_heads: int | None = None,
    default_kv_heads: int | None = None,
    default_head_dim: int | None = None,
    norms: tuple[Tensor, ...] = (),
    names: tuple[str, str, str, str] = PROJECTIONS,
) -> Attention:
    """GQA as llama-like configs write it.

    per_head_norm: adds a query and a key norm of one head's width
    kv_heads: where the family's config says it in another way than num_key_value_heads
    default_heads, default_kv_heads, default_head_dim: the config class's own, for configs that omit the field
    norms: query and key norms of another shape
    """
    hidden, heads = hidden_size(config), head_count(config, default_heads)
    width = head_width(config, hidden, heads, default_head_dim)
    if per_head_norm:
        norms = (*norm("self_attn.q_norm", width), *norm("self_attn.k_norm", width))
    return Attention(
        hidden,
        heads,
        kv_heads or kv_head_count(config, heads, default_kv_heads),
        width,
        width,
        bias,
        output_bias,
        norms,
        names=names,
    )


def gated_mlp(config: VendorConfig, intermediate: int | None = None, *, bias: bool = False) -> Mlp:
    """The gate/up/down feed-forward of llama-like models."""
    width = intermediate or config.integer("intermediate_size", most=MOST_WIDTH)
    return Mlp(hidden_size(config), width, bias=bias)


def plain_mlp(config: VendorConfig, intermediate: int, up: str, down: str, *, bias: bool = True) -> Mlp:
    """The feed-forward without a gate of GPT-like models; up and down are the vendor's names."""
    return Mlp(hidden_size(config), intermediate, gated=False, bias=bias, names=("", up, down))


def routing(config: VendorConfig, experts: tuple[str, ...], default: int | None = None) -> tuple[int, int]:
    """(experts, how many of them one token uses). experts: the field names that count them."""
    total = config.integer(*experts, most=MOST_HEADS)
    top_k = config.integer("num_experts_per_tok", default=default, most=MOST_HEADS)
    _refuse_unless(
        config,
        top_k <= total,
        "num_experts_per_tok",
        f"{top_k} experts per token are more than the model's {total}",
    )
    return total, top_k


def layer_norms(config: VendorConfig, *, count: int = 2, bias: bool = False) -> tuple[Tensor, ...]:
    """`count` norms of the hidden size per layer."""
    hidden = hidden_size(config)
    return tuple(tensor for i in range(count) for tensor in norm(f"norm_{i}", hidden, bias=bias))


def token_embedding(
    config: VendorConfig,
    *,
    tied: bool = False,
    norm_bias: bool = False,
    head_bias: bool = False,
    positions: tuple[Tensor, ...] = (),
    default_vocab: int | None = None,
) -> Embedding:
    """Embedding, final norm and output head; `tied` is the family's default for tie_word_embeddings."""
    hidden = hidden_size(config)
    return Embedding(
        config.integer("vocab_size", default=default_vocab, most=MOST_WIDTH),
        hidden,
        config.flag("tie_word_embeddings", default=tied),
        head_bias,
        positions,
        norm("model.norm", hidden, bias=norm_bias),
    )


def refuse_windows(config: VendorConfig, *, unless_flag: str | None = None, default: int | None = None) -> None:
    """Refuse a window in a family whose own code has none.

    unless_flag: a config field without which, or with false in it, no window counts
    default: the config class's own sliding_window, for a config without the field (null is none)
    """
    switch = unless_flag or "use_sliding_window"
    if not config.flag(switch, default=unless_flag is None):
        return
    window = config.fields.get("sliding_window", default)
    config.refuse_unless(
        window is None,
        "sliding_window",
        f"a window ({window}) is not read in this family, whose layers are all full attention",
    )


def _refuse_unless(config: VendorConfig, condition: bool, field: str, message: str) -> None:
    """Compare fields only while all of them could be read: else the complaint would mislead."""
    config.refuse_unless(condition or bool(config.problems), field, message)
