"""MiniMax M2 (vLLM, model_executor/models/minimax_m2.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Moe, Stack
from planner.tensors import Split, Tensor
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("minimax_m2",)


def blocks(config: VendorConfig) -> Stack:
    """Experts in every layer behind a float32 router; query and key norms over all heads, divided by TP."""
    common.refuse_windows(config)
    config.refuse_unless(
        set(config.integers("attn_type_list")) <= {1},
        "attn_type_list",
        "linear attention layers are not supported in this version; only full attention (1) is",
    )
    config.refuse_unless(
        config.integer("shared_intermediate_size", default=0, least=0) == 0,
        "shared_intermediate_size",
        "a shared expert is not known for this family; accepted: 0",
    )
    moe = Moe(
        common.hidden_size(config),
        config.integer("intermediate_size", most=common.MOST_WIDTH),
        *common.routing(config, ("num_local_experts",)),
        router_bias=config.flag("use_routing_bias", default=False),
        router_dtype="float32",
        name="block_sparse_moe",
    )
    bias = config.flag("attention_bias", default=False)
    attention = common.full_attention(config, bias=bias, norms=_query_key_norms(config))
    layer = Layer(attention, moe, common.layer_norms(config))
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config), layers, *common.positions(config))


def _query_key_norms(config: VendorConfig) -> tuple[Tensor, ...]:
    config.text("qk_norm_type", default="per_layer", accepted=("per_layer",))
    heads = common.head_count(config)
    width = common.head_width(config, common.hidden_size(config), heads)
    kv_heads = common.kv_head_count(config, heads)
    return (
        Tensor("self_attn.q_norm", heads * width, split=Split.OUTPUT, units=heads),
        Tensor("self_attn.k_norm", kv_heads * width, split=Split.KV_HEADS, units=kv_heads),
    )
