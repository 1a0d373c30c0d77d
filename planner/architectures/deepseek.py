"""DeepSeek-MoE, the first generation (vLLM, model_executor/models/deepseek_v2.py, DeepseekAttention)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("deepseek",)


def blocks(config: VendorConfig) -> Stack:
    """Ordinary attention, the first layers dense, then experts with shared ones every moe_layer_freq layers."""
    # vLLM builds no biases, and the published model has none.
    config.refuse_unless(
        not config.flag("attention_bias", default=False), "attention_bias", "biases are not supported here"
    )
    attention, norms = common.full_attention(config), common.layer_norms(config)
    dense, sparse = Layer(attention, common.gated_mlp(config), norms), Layer(attention, _experts(config), norms)
    first = config.integer("first_k_dense_replace", default=0, least=0, most=common.MOST_LAYERS)
    step = config.integer("moe_layer_freq", default=1)
    layers = tuple(sparse if i >= first and i % step == 0 else dense for i in range(common.layer_count(config)))
    return Stack(common.token_embedding(config), layers, *common.positions(config))


def _experts(config: VendorConfig) -> Moe:
    hidden = common.hidden_size(config)
    width = config.integer("moe_intermediate_size", most=common.MOST_WIDTH)
    shared = config.integer("n_shared_experts", default=0, least=0, most=1024)
    return Moe(
        hidden,
        width,
        *common.routing(config, ("n_routed_experts",)),
        shared=Mlp(hidden, shared * width, name="mlp.shared_experts") if shared else None,
    )
