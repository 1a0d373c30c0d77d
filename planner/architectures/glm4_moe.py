"""GLM-4.5 mixture of experts (vLLM, model_executor/models/glm4_moe.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("glm4_moe",)


def blocks(config: VendorConfig) -> Stack:
    """The first layers dense, the rest experts with shared ones; the router and its correction in float32.

    Layers for multi-token prediction (num_nextn_predict_layers) are not loaded.
    """
    common.refuse_windows(config)
    attention = common.full_attention(
        config,
        bias=config.flag("attention_bias", default=False),
        per_head_norm=config.flag("use_qk_norm", default=False),
        default_kv_heads=8,
    )
    norms = common.layer_norms(config)
    dense = Layer(attention, common.gated_mlp(config), norms)
    sparse = Layer(attention, _experts(config), norms)
    count = common.layer_count(config)
    first = config.integer("first_k_dense_replace", default=1, least=0, most=common.MOST_LAYERS)
    layers = (dense,) * min(first, count) + (sparse,) * max(0, count - first)
    return Stack(common.token_embedding(config), layers, *common.positions(config))


def _experts(config: VendorConfig) -> Moe:
    hidden = common.hidden_size(config)
    width = config.integer("moe_intermediate_size", most=common.MOST_WIDTH)
    shared = config.integer("n_shared_experts", default=1, least=0, most=1024)
    return Moe(
        hidden,
        width,
        *common.routing(config, ("n_routed_experts",), default=8),
        shared=Mlp(hidden, shared * width, name="mlp.shared_experts") if shared else None,
        router_bias=True,
        router_dtype="float32",
    )
