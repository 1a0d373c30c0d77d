"""Qwen3-Next: gated delta nets, every fourth layer gated attention (vLLM, model_executor/models/qwen3_next.py)."""

from planner.architectures import _common as common
from planner.architectures import _states as states
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.mixers import Attention, Mixer, State
from planner.tensors import norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("qwen3_next",)


def blocks(config: VendorConfig) -> Stack:
    """Experts in every decoder_sparse_step-th layer but those of mlp_only_layers, in both kinds of layer."""
    mixers: dict[str, Mixer] = {
        "full_attention": gated_attention(config),
        "linear_attention": delta_net(config, joined=True),
    }
    experts = moe(config, experts=512, top_k=10)
    step = config.integer("decoder_sparse_step", default=1, most=common.MOST_LAYERS)
    only_dense = frozenset(config.integers("mlp_only_layers"))
    dense = common.gated_mlp(config, config.integer("intermediate_size", default=5632, most=common.MOST_WIDTH))
    norms = common.layer_norms(config)
    layer_of = {
        (kind, has_experts): Layer(mixer, experts if has_experts else dense, norms)
        for kind, mixer in mixers.items()
        for has_experts in (True, False)
    }
    layers = tuple(
        layer_of[kind, i not in only_dense and (i + 1) % step == 0] for i, kind in enumerate(layer_kinds(config))
    )
    return Stack(common.token_embedding(config), layers, *common.positions(config, default=32768))


def layer_kinds(config: VendorConfig) -> tuple[str, ...]:
    """linear_attention or full_attention for each layer: listed, else every full_attention_interval-th is full."""
    count = config.integer("num_hidden_layers", most=common.MOST_LAYERS)
    if config.has("layer_types"):
        kinds = config.texts("layer_types")
    else:
        interval = config.integer("full_attention_interval", default=4, most=common.MOST_LAYERS)
        kinds = tuple("linear_attention" if (i + 1) % interval else "full_attention" for i in range(count))
    known = len(kinds) == count and set(kinds) <= {"linear_attention", "full_attention"}
    config.refuse_unless(
        known, "layer_types", f"each of the {count} layers must be listed as linear_attention or full_attention"
    )
    return kinds if known else ()


def gated_attention(config: VendorConfig) -> Attention:
    """Grouped-query attention whose query projection also gives an output gate; norms per head, heads 256 wide."""
    hidden, heads = common.hidden_size(config), common.head_count(config)
    width = common.head_width(config, hidden, heads, 256)
    kv_heads = common.kv_head_count(config, heads, 2)
    norms = (*norm("self_attn.q_norm", width), *norm("self_attn.k_norm", width))
    # The engine reads qkv_bias, and has no output bias.
    config.refuse_unless(
        not config.flag("attention_bias", default=False), "attention_bias", "biases are not supported here"
    )
    bias, gate = config.flag("qkv_bias", default=False), config.flag("attn_output_gate", default=True)
    return Attention(hidden, heads, kv_heads, width, width, bias, norms=norms, query_gate=gate)


def delta_net(config: VendorConfig, *, joined: bool, dtype: str | None = None) -> State:
    """The gated delta net of the layers without attention."""
    value_heads = config.integer("linear_num_value_heads", default=32, most=common.MOST_HEADS)
    key_heads = config.integer("linear_num_key_heads", default=16, most=common.MOST_HEADS)
    config.refuse_unless(
        value_heads % key_heads == 0 or bool(config.problems),
        "linear_num_value_heads",
        f"{value_heads} value heads are not a multiple of the {key_heads} key heads",
    )
    return states.gated_delta_net(
        common.hidden_size(config),
        key_heads,
        value_heads,
        config.integer("linear_key_head_dim", default=128, most=common.MOST_HEADS),
        config.integer("linear_value_head_dim", default=128, most=common.MOST_HEADS),
        states.state_taps(config, "linear_conv_kernel_dim", default=4),
        joined=joined,
        dtype=dtype,
    )


def moe(config: VendorConfig, *, experts: int, top_k: int) -> Moe:
    """Experts and one shared expert with a gate of its own; the class's numbers for a config that omits them."""
    hidden = common.hidden_size(config)
    shared = config.integer("shared_expert_intermediate_size", default=512, least=0, most=common.MOST_WIDTH)
    total = config.integer("num_experts", default=experts, most=common.MOST_HEADS)
    active = config.integer("num_experts_per_tok", default=top_k, most=common.MOST_HEADS)
    config.refuse_unless(
        active <= total or bool(config.problems),
        "num_experts_per_tok",
        f"{active} experts per token are more than the model's {total}",
    )
    return Moe(
        hidden,
        config.integer("moe_intermediate_size", default=512, most=common.MOST_WIDTH),
        total,
        active,
        shared=Mlp(hidden, shared, name="mlp.shared_expert") if shared else None,
        shared_gate=True,
    )
