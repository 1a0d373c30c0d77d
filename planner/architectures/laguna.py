"""Laguna: windowed layers with more heads, gated attention, experts (vLLM, model_executor/models/laguna.py)."""

from dataclasses import replace
from functools import cache

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.mixers import Attention
from planner.tensors import Split, linear, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("laguna",)


def blocks(config: VendorConfig) -> Stack:
    """Each layer has a kind of attention, a number of query heads and a kind of feed-forward of its own."""
    count = common.layer_count(config, ("full_attention", "sliding_attention"))
    kinds = config.texts("layer_types") or ("full_attention",) * count
    feeds = config.texts("mlp_layer_types") or ("dense",) + ("sparse",) * (count - 1)
    heads = config.integers("num_attention_heads_per_layer") or (common.head_count(config, 48),) * count
    config.refuse_unless(
        len(feeds) == count and set(feeds) <= {"dense", "sparse"},
        "mlp_layer_types",
        f"dense or sparse is needed for each of the {count} layers",
    )
    config.refuse_unless(
        len(heads) == count and all(0 < n <= common.MOST_HEADS for n in heads),
        "num_attention_heads_per_layer",
        f"a number of heads is needed for each of the {count} layers",
    )
    sinks = config.flag("swa_attention_sink_enabled", default=False)
    config.refuse_unless(not sinks, "swa_attention_sink_enabled", "attention sinks are not known in this family")
    window, norms = common.window(config, 512), common.layer_norms(config)

    @cache
    def layer(kind: str, query_heads: int, feed: str) -> Layer:
        attention = _attention(config, query_heads)
        if kind == "sliding_attention":
            attention = replace(attention, window=window)
        return Layer(attention, _experts(config) if feed == "sparse" else common.gated_mlp(config), norms)

    layers = tuple(layer(*row) for row in zip(kinds, heads, feeds, strict=False))
    return Stack(common.token_embedding(config), layers, *common.unscaled_positions(config, 131072))


def _attention(config: VendorConfig, heads: int) -> Attention:
    """Norms per head, and a gate on the output: one number per head, or one for each of its channels."""
    hidden, width = common.hidden_size(config), config.integer("head_dim", default=128, most=common.MOST_HEADS)
    kv_heads = config.integer("num_key_value_heads", default=8, most=common.MOST_HEADS)
    config.refuse_unless(
        heads % kv_heads == 0 or bool(config.problems),
        "num_key_value_heads",
        f"{kv_heads} key/value heads do not divide a layer's {heads} heads",
    )
    gating = config.fields.get("gating", True)
    config.refuse_unless(
        gating in (True, False, "per-head", "per-element"), "gating", "per-head, per-element, true or false is needed"
    )
    rows = heads * width if gating == "per-element" else heads
    gate = linear("self_attn.g_proj", rows, hidden, Split.OUTPUT, units=heads) if gating else ()
    bias = config.flag("attention_bias", default=False)
    norms = (*norm("self_attn.q_norm", width), *norm("self_attn.k_norm", width), *gate)
    return Attention(hidden, heads, kv_heads, width, width, bias, bias, norms)


def _experts(config: VendorConfig) -> Moe:
    hidden = common.hidden_size(config)
    shared = config.integer("shared_expert_intermediate_size", default=512, least=0, most=common.MOST_WIDTH)
    return Moe(
        hidden,
        config.integer("moe_intermediate_size", default=512, most=common.MOST_WIDTH),
        *common.routing(config, ("num_experts",), default=8),
        shared=Mlp(hidden, shared, name="mlp.shared_expert") if shared else None,
        router_bias=True,
    )
