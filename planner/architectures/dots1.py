"""dots.llm1 (transformers, models/dots1/modeling_dots1.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("dots1",)


def blocks(config: VendorConfig) -> Stack:
    """The first layers dense, the rest experts with shared ones; query and key norms of one head's width."""
    count = common.layer_count(config)
    # Windows begin at layer max_window_layers, unless layer_types says otherwise.
    if not config.has("layer_types"):
        begin = config.integer("max_window_layers", default=62, least=0)
        if begin < count:
            common.refuse_windows(config, default=4096)
    bias = config.flag("attention_bias", default=False)
    attention = common.full_attention(config, bias=bias, output_bias=bias, per_head_norm=True, default_kv_heads=32)
    norms = common.layer_norms(config)
    dense, sparse = Layer(attention, common.gated_mlp(config), norms), Layer(attention, _experts(config), norms)
    first = config.integer("first_k_dense_replace", default=0, least=0, most=common.MOST_LAYERS)
    layers = (dense,) * min(first, count) + (sparse,) * max(0, count - first)
    return Stack(common.token_embedding(config), layers, *common.positions(config))


def _experts(config: VendorConfig) -> Moe:
    hidden = common.hidden_size(config)
    width = config.integer("moe_intermediate_size", default=1408, most=common.MOST_WIDTH)
    shared = config.integer("n_shared_experts", default=0, least=0, most=1024)
    return Moe(
        hidden,
        width,
        *common.routing(config, ("n_routed_experts", "num_local_experts")),
        shared=Mlp(hidden, shared * width, name="mlp.shared_experts") if shared else None,
        router_bias=True,
        router_dtype="float32",
    )
