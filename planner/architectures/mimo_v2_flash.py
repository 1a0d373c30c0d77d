"""MiMo-V2-Flash (vLLM, model_executor/models/mimo_v2.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Moe, Stack
from planner.mixers import Attention
from planner.tensors import Split, Tensor
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("mimo_v2_flash",)


def blocks(config: VendorConfig) -> Stack:
    """Full and windowed layers with heads of their own, values narrower than keys; experts but in dense layers."""
    config.refuse_unless(
        not config.has("attention_projection_layout"),
        "attention_projection_layout",
        "query, key and value in one matrix of a layout of its own are not supported here",
    )
    count = config.integer("num_hidden_layers", most=common.MOST_LAYERS)
    windowed, sparse = _flags(config, "hybrid_layer_pattern", count), _flags(config, "moe_layer_freq", count)
    full, local = _attention(config), _windowed(config)
    mlp, moe, norms = common.gated_mlp(config), _experts(config), common.layer_norms(config)
    kinds = {
        (window, routed): Layer(local if window else full, moe if routed else mlp, norms)
        for window in (False, True)
        for routed in (False, True)
    }
    layers = tuple(kinds[pair] for pair in zip(windowed, sparse, strict=False))
    return Stack(common.token_embedding(config), layers, *common.positions(config))


def _flags(config: VendorConfig, field: str, count: int) -> tuple[bool, ...]:
    """A list of 0 and 1, one per layer."""
    flags = config.integers(field)
    config.refuse_unless(
        len(flags) == count and set(flags) <= {0, 1}, field, f"0 or 1 is needed for each of the {count} layers"
    )
    return tuple(flag == 1 for flag in flags)


def _attention(config: VendorConfig, *, sinks: bool = False, prefix: str = "", window: int | None = None) -> Attention:
    """Attention by the fields that start with `prefix`; without such a field, by those that do not."""

    def number(name: str) -> int:
        return config.integer(prefix + name, name, most=common.MOST_HEADS)

    heads, kv_heads, key_dim = number("num_attention_heads"), number("num_key_value_heads"), number("head_dim")
    value_dim = config.integer(f"{prefix}v_head_dim", default=key_dim, most=common.MOST_HEADS)
    config.refuse_unless(
        heads % kv_heads == 0 or bool(config.problems),
        f"{prefix}num_key_value_heads",
        f"{kv_heads} key/value heads do not divide {prefix}num_attention_heads {heads}",
    )
    return Attention(
        common.hidden_size(config),
        heads,
        kv_heads,
        key_dim,
        value_dim,
        bias=config.flag("attention_bias", default=False),
        norms=(Tensor("self_attn.attention_sink_bias", heads, split=Split.OUTPUT, units=heads),) if sinks else (),
        window=window,
    )


def _windowed(config: VendorConfig) -> Attention:
    sinks = config.flag("add_swa_attention_sink_bias", default=False)
    window = config.integer("sliding_window_size", "sliding_window")
    return _attention(config, sinks=sinks, prefix="swa_", window=window)


def _experts(config: VendorConfig) -> Moe:
    shared = config.integer("n_shared_experts", default=0, least=0)
    config.refuse_unless(shared == 0, "n_shared_experts", f"{shared} shared experts are not supported in this family")
    return Moe(
        common.hidden_size(config),
        config.integer("moe_intermediate_size", most=common.MOST_WIDTH),
        *common.routing(config, ("n_routed_experts",), default=8),
        router_bias=True,
        router_dtype=config.text("moe_router_dtype", default="float32", accepted=("float32", "bfloat16")),
    )
