"""Step-3.5-Flash and the text model of Step-3.7-Flash (vLLM, step3p5.py; transformers, models/step3p7)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.mixers import Attention
from planner.tensors import Split, linear, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("step3p5", "step3p7")
KINDS = ("full_attention", "sliding_attention")


def blocks(config: VendorConfig) -> Stack:
    """Windowed layers may have more heads; a gate per head; the first layers dense, the rest experts.

    layer_types may go on over the layers for multi-token prediction, which are not loaded.
    """
    count = config.integer("num_hidden_layers", default=45, most=common.MOST_LAYERS)
    extra = config.integer("num_nextn_predict_layers", "num_mtp_layers", default=0, least=0, most=common.MOST_LAYERS)
    kinds = config.texts("layer_types") if config.has("layer_types") else ("full_attention",) * count
    config.refuse_unless(
        len(kinds) in (count, count + extra) and set(kinds) <= set(KINDS),
        "layer_types",
        f"{' or '.join(KINDS)} is needed for each of the {count} layers (or {count + extra} with prediction layers)",
    )
    sparse = _sparse(config, count)
    layers = {(w, s): _layer(config, windowed=w, sparse=s) for w in (False, True) for s in (False, True)}
    return Stack(
        common.token_embedding(config),
        tuple(layers[kinds[i] == "sliding_attention", i in sparse] for i in range(min(count, len(kinds)))),
        *common.positions(config, default=128_000),
    )


def _sparse(config: VendorConfig, count: int) -> frozenset[int]:
    """Numbers of the layers with experts."""
    if config.has("mlp_layer_types"):
        return frozenset(i for i, kind in enumerate(config.texts("mlp_layer_types")) if kind == "sparse")
    listed = config.fields.get("moe_layers_enum")
    if listed is None:
        first = config.integer("first_k_dense_replace", default=1, least=0, most=common.MOST_LAYERS)
        return frozenset(range(first, count))
    items = listed.split(",") if isinstance(listed, str) else listed if isinstance(listed, list) else [listed]
    numbers = [str(item).strip() for item in items]
    if not all(number.isascii() and number.isdigit() and len(number) < 6 for number in numbers):
        config.problem("moe_layers_enum", "numbers of layers are needed, with commas between them")
        return frozenset()
    return frozenset(int(number) for number in numbers)


def _layer(config: VendorConfig, *, windowed: bool, sparse: bool) -> Layer:
    hidden, heads = common.hidden_size(config), common.head_count(config)
    other = config.section("attention_other_setting")
    if windowed:
        if config.has("num_sliding_attention_heads"):
            heads = config.integer("num_sliding_attention_heads", most=common.MOST_HEADS)
        elif other.fields.get("attention_type") == "sliding_attention":
            heads = common.head_count(other)
    groups = config.integer("num_attention_groups", "num_key_value_heads", default=heads, most=common.MOST_HEADS)
    width = config.integer("head_dim", default=128, most=common.MOST_HEADS)
    gate = config.flag("use_head_wise_attn_gate", default=False)
    gates = linear("self_attn.g_proj", heads, hidden, Split.OUTPUT, units=heads) if gate else ()
    norms = (*norm("self_attn.q_norm", width), *norm("self_attn.k_norm", width), *gates)
    bias = config.flag("attention_bias", default=False)
    config.refuse_unless(
        heads % groups == 0 or bool(config.problems),
        "num_attention_groups",
        f"{groups} key/value heads do not divide the {heads} query heads",
    )
    attention = Attention(
        hidden,
        heads,
        groups,
        width,
        width,
        bias,
        norms=norms,
        window=common.window(config) if windowed else None,
    )
    ffn = _experts(config) if sparse else common.gated_mlp(config)
    return Layer(attention, ffn, common.layer_norms(config))


def _experts(config: VendorConfig) -> Moe:
    hidden = common.hidden_size(config)
    counts = ("moe_num_experts", "n_routed_experts", "num_local_experts", "num_experts")
    experts = config.integer(*counts, most=common.MOST_HEADS)
    top_k = config.integer("moe_top_k", "num_experts_per_tok", default=8, most=common.MOST_HEADS)
    config.refuse_unless(
        top_k <= experts or bool(config.problems), "moe_top_k", f"{top_k} is more than the {experts} experts"
    )
    shared = config.integer("share_expert_dim", "share_expert_dims", default=1280, most=common.MOST_WIDTH)
    return Moe(
        hidden,
        config.integer("moe_intermediate_size", default=1280, most=common.MOST_WIDTH),
        experts,
        top_k,
        shared=Mlp(hidden, shared, name="share_expert"),
        router_bias=True,
        router_dtype="float32",
        name="moe",
    )
