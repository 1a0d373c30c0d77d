"""gpt-oss (transformers, models/gpt_oss/modeling_gpt_oss.py; vLLM, model_executor/models/gpt_oss.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Moe, Stack
from planner.tensors import Split, Tensor
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("gpt_oss",)


def blocks(config: VendorConfig) -> Stack:
    """Attention with biases and a sink per head, every other layer windowed, the first included; experts with biases.

    The engine windows layers by their number, whatever layer_types says.
    """
    config.refuse_unless(
        config.flag("attention_bias", default=True), "attention_bias", "attention without biases is not supported here"
    )
    windowed = common.windowed_layers(config, 2)
    config.refuse_unless(
        windowed == tuple(i % 2 == 0 for i in range(len(windowed))),
        "layer_types",
        "the engine windows every other layer, the first included, and this list says otherwise",
    )
    heads = common.head_count(config, 64)
    sinks = (Tensor("self_attn.sinks", heads, split=Split.OUTPUT, units=heads),)
    attention = common.full_attention(
        config,
        bias=True,
        output_bias=True,
        default_heads=64,
        default_kv_heads=8,
        default_head_dim=64,
        norms=sinks,
    )
    moe = _experts(config)
    layer = Layer(attention, moe, (*common.layer_norms(config), *_biases(moe)))
    layers = common.interleaved(layer, windowed, common.window(config, 128))
    return Stack(common.token_embedding(config), layers, *common.positions(config, default=131_072))


def _experts(config: VendorConfig) -> Moe:
    intermediate = config.integer("intermediate_size", default=2880, most=common.MOST_WIDTH)
    experts, top_k = common.routing(config, ("num_local_experts", "num_experts"), default=4)
    return Moe(common.hidden_size(config), intermediate, experts, top_k)


def _biases(moe: Moe) -> tuple[Tensor, ...]:
    """Of the router and of each expert's projections; the last is whole on every rank."""
    name, experts, top_k = f"{moe.name}.experts", moe.experts, moe.top_k
    width = moe.intermediate
    return (
        Tensor(f"{moe.name}.router.bias", experts),
        Tensor(f"{name}.gate_proj.bias", width, 1, Split.EXPERT_OUTPUT, copies=experts, active_copies=top_k),
        Tensor(f"{name}.up_proj.bias", width, 1, Split.EXPERT_OUTPUT, copies=experts, active_copies=top_k),
        Tensor(f"{name}.down_proj.bias", moe.hidden, 1, Split.EXPERT_WHOLE, copies=experts, active_copies=top_k),
    )
