"""MiniMax-Text-01 and M1: lightning and softmax attention (transformers, models/minimax/modeling_minimax.py)."""

from planner.architectures import _common as common
from planner.architectures import _states as states
from planner.blocks import Layer, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("minimax", "minimax_m1", "minimax_text_01")
KINDS = {0: "linear_attention", 1: "full_attention"}


def blocks(config: VendorConfig) -> Stack:
    """Experts in every layer; which layers keep a state, the config lists."""
    hidden, heads = common.hidden_size(config), common.head_count(config)
    experts = Moe(
        hidden,
        config.integer("intermediate_size", most=common.MOST_WIDTH),
        *common.routing(config, ("num_local_experts", "num_experts"), default=2),
        name="block_sparse_moe",
    )
    norms, width = common.layer_norms(config), common.head_width(config, hidden, heads)
    layer_of = {
        "full_attention": Layer(common.full_attention(config, default_kv_heads=8), experts, norms),
        "linear_attention": Layer(states.lightning(hidden, heads, width), experts, norms),
    }
    common.refuse_windows(config)
    layers = tuple(layer_of[kind] for kind in _layer_kinds(config))
    return Stack(common.token_embedding(config), layers, *common.positions(config, default=131072))


def _layer_kinds(config: VendorConfig) -> tuple[str, ...]:
    """By layer_types, or by attn_type_list (0 for lightning); else softmax attention first and every other layer."""
    count = config.integer("num_hidden_layers", default=32, most=common.MOST_LAYERS)
    kinds: tuple[str, ...]
    field = "attn_type_list" if config.has("attn_type_list") else "layer_types"
    if field == "attn_type_list":
        kinds = tuple(KINDS.get(number, str(number)) for number in config.integers(field))
    elif config.has(field):
        kinds = config.texts(field)
    else:
        kinds = tuple("linear_attention" if i % 2 else "full_attention" for i in range(count))
    known = len(kinds) == count and set(kinds) <= set(KINDS.values())
    config.refuse_unless(
        known, field, f"each of the {count} layers must be listed as lightning (0) or softmax (1) attention"
    )
    return kinds if known else ()
