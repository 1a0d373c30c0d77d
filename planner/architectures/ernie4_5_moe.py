"""ERNIE 4.5 MoE (transformers, models/ernie4_5_moe; vLLM, model_executor/models/ernie45_moe.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("ernie4_5_moe",)


def blocks(config: VendorConfig) -> Stack:
    """Experts between two layers, at an interval; dense outside; the router and its correction in float32.

    Layers for multi-token prediction (num_nextn_predict_layers) are not loaded.
    """
    bias = config.flag("use_bias", default=False)
    config.refuse_unless(not bias, "use_bias", "biases are not supported in this family")
    attention, norms = common.full_attention(config, default_kv_heads=4), common.layer_norms(config)
    dense, sparse = Layer(attention, common.gated_mlp(config), norms), Layer(attention, _experts(config), norms)
    count = common.layer_count(config)
    first = config.integer("moe_layer_start_index", default=1, least=0, most=common.MOST_LAYERS)
    last = config.integer("moe_layer_end_index", default=-1, least=-1, most=common.MOST_LAYERS)
    step = config.integer("moe_layer_interval", default=1)
    last = count - 1 if last == -1 else last
    layers = tuple(sparse if first <= i <= last and (i + 1) % step == 0 else dense for i in range(count))
    return Stack(common.token_embedding(config, tied=True), layers, *common.positions(config))


def _experts(config: VendorConfig) -> Moe:
    hidden = common.hidden_size(config)
    width = config.integer("moe_intermediate_size", default=1536, most=common.MOST_WIDTH)
    experts = config.integer("moe_num_experts", "num_experts", default=64, most=common.MOST_HEADS)
    top_k = config.integer("moe_k", "num_experts_per_tok", default=6, most=common.MOST_HEADS)
    config.refuse_unless(top_k <= experts, "moe_k", f"{top_k} is more than the model's {experts} experts")
    shared = config.integer("moe_num_shared_experts", default=2, least=0, most=1024)
    return Moe(
        hidden,
        width,
        experts,
        top_k,
        shared=Mlp(hidden, shared * width, name="mlp.shared_experts") if shared else None,
        router_bias=True,
        router_dtype="float32",
    )
