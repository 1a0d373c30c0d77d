"""Ling and Ring of the first two generations (vLLM, model_executor/models/bailing_moe.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("bailing_moe", "bailing_moe_v2")
SECOND = {
    "num_key_value_heads": 4,
    "head_dim": 128,
    "use_qk_norm": True,
    "num_experts": 256,
    "num_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "moe_router_enable_expert_bias": True,
    "first_k_dense_replace": 1,
}
"""Defaults of the second generation's config class, which is published with its checkpoints."""


def blocks(config: VendorConfig) -> Stack:
    """Grouped-query attention with one fused projection; the first layers dense, then shared experts and others."""
    if config.fields["model_type"] == "bailing_moe_v2":
        config.fields = {**SECOND, **config.fields}
    bias = config.flag("use_bias", default=False)
    qkv = "attention.query_key_value"
    attention = common.full_attention(
        config,
        bias=bias or config.flag("use_qkv_bias", default=False),
        output_bias=bias,
        per_head_norm=config.flag("use_qk_norm", default=False),
        names=(qkv, qkv, qkv, "attention.dense"),
    )
    norms = common.layer_norms(config)
    dense = Layer(attention, common.gated_mlp(config, bias=bias), norms)
    sparse = Layer(attention, _experts(config, bias), norms)
    count = common.layer_count(config)
    first = config.integer("first_k_dense_replace", default=0, least=0, most=common.MOST_LAYERS)
    layers = (dense,) * min(first, count) + (sparse,) * max(0, count - first)
    embedding = replace(common.token_embedding(config), name="model.word_embeddings")
    return Stack(embedding, layers, *common.positions(config))


def _experts(config: VendorConfig, bias: bool) -> Moe:
    hidden = common.hidden_size(config)
    width = config.integer("moe_intermediate_size", most=common.MOST_WIDTH)
    shared = config.integer("num_shared_experts", default=0, least=0, most=1024)
    shared_width = config.integer("moe_shared_expert_intermediate_size", default=width, most=common.MOST_WIDTH)
    router = config.text("router_dtype", default="", accepted=("fp32",))
    return Moe(
        hidden,
        width,
        *common.routing(config, ("num_experts",)),
        shared=Mlp(hidden, shared * shared_width, bias=bias, name="mlp.shared_experts") if shared else None,
        router_bias=config.flag("moe_router_enable_expert_bias", default=False),
        router_dtype="float32" if router else None,
    )
