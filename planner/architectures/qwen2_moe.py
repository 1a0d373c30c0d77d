"""Qwen1.5-MoE and Qwen2-57B-A14B (transformers, models/qwen2_moe/modeling_qwen2_moe.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("qwen2_moe",)
NO_WINDOWS = "use_sliding_window is read as vLLM does: no layer of this family is windowed"


def blocks(config: VendorConfig) -> Stack:
    """Experts with one gated shared expert in every decoder_sparse_step-th layer, else a dense MLP."""
    attention = common.full_attention(config, bias=config.flag("qkv_bias", default=True), default_kv_heads=16)
    norms = common.layer_norms(config)
    sparse = Layer(attention, _experts(config), norms)
    dense = Layer(attention, common.gated_mlp(config), norms)
    step = config.integer("decoder_sparse_step", default=1)
    only_dense = frozenset(config.integers("mlp_only_layers"))
    # The engine windows no layer, whatever the config says; transformers would window some.
    count = common.layer_count(config, ("full_attention", "sliding_attention"))
    layers = tuple(sparse if i not in only_dense and (i + 1) % step == 0 else dense for i in range(count))
    notes = (NO_WINDOWS,) if config.flag("use_sliding_window", default=False) else ()
    return Stack(common.token_embedding(config), layers, *common.positions(config), notes)


def _experts(config: VendorConfig) -> Moe:
    hidden = common.hidden_size(config)
    shared = config.integer("shared_expert_intermediate_size", default=5632, most=common.MOST_WIDTH)
    return Moe(
        hidden,
        config.integer("moe_intermediate_size", most=common.MOST_WIDTH),
        *common.routing(config, ("num_experts", "num_local_experts"), default=4),
        shared=Mlp(hidden, shared, name="mlp.shared_expert"),
        shared_gate=True,
    )
