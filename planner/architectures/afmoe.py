"""Arcee Trinity (transformers, models/afmoe; vLLM, model_executor/models/afmoe.py): gated attention, experts."""

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.tensors import Split, linear, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("afmoe",)


def blocks(config: VendorConfig) -> Stack:
    """All but every fourth layer windowed; the first num_dense_layers dense, the rest experts; four norms each."""
    hidden, heads = common.hidden_size(config), common.head_count(config, 16)
    width = common.head_width(config, hidden, heads, 128)
    attention = common.full_attention(
        config,
        default_heads=16,
        default_head_dim=128,
        norms=(
            *norm("self_attn.q_norm", width),
            *norm("self_attn.k_norm", width),
            *linear("self_attn.gate_proj", heads * width, hidden, Split.OUTPUT, units=heads),
        ),
    )
    norms = common.layer_norms(config, count=4)
    period = config.integer("global_attn_every_n_layers", default=4, most=common.MOST_LAYERS)
    windowed, window = common.windowed_layers(config, period), common.window(config, 1024)
    dense = common.interleaved(Layer(attention, common.gated_mlp(config), norms), windowed, window)
    sparse = common.interleaved(Layer(attention, _experts(config), norms), windowed, window)
    first = config.integer("num_dense_layers", default=1, least=0, most=common.MOST_LAYERS)
    return Stack(
        common.token_embedding(config),
        (*dense[:first], *sparse[first:]),
        *common.positions(config, default=16384),
    )


def _experts(config: VendorConfig) -> Moe:
    hidden = common.hidden_size(config)
    width = config.integer("moe_intermediate_size", default=1408, most=common.MOST_WIDTH)
    shared = config.integer("num_shared_experts", default=2, least=0, most=1024)
    return Moe(
        hidden,
        width,
        *common.routing(config, ("num_experts",), default=6),
        shared=Mlp(hidden, shared * width, name="mlp.shared_experts") if shared else None,
        router_bias=True,
        router_dtype="float32",
    )
