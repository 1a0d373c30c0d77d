"""K-EXAONE (transformers, models/exaone_moe/modeling_exaone_moe.py; vLLM, exaone_moe.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import exaone4
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("exaone_moe",)


def blocks(config: VendorConfig) -> Stack:
    """EXAONE 4's attention; the first layers dense, the rest experts with shared ones."""
    config.refuse_unless(
        not config.has("sliding_windows"), "sliding_windows", "a window of its own per layer is not supported here"
    )
    attention = common.full_attention(config, per_head_norm=True, default_kv_heads=32)
    dense = Layer(attention, common.gated_mlp(config), common.layer_norms(config))
    pairs = zip(
        exaone4.layers(config, dense), exaone4.layers(config, replace(dense, ffn=_experts(config))), strict=True
    )
    layers = tuple(pair[is_sparse] for pair, is_sparse in zip(pairs, _sparse(config), strict=False))
    return Stack(common.token_embedding(config), layers, *common.positions(config))


def _sparse(config: VendorConfig) -> tuple[bool, ...]:
    count = common.layer_count(config, ("full_attention", "sliding_attention"))
    if not config.has("mlp_layer_types"):
        first = config.integer("first_k_dense_replace", default=1, least=0, most=common.MOST_LAYERS)
        return tuple(i >= first for i in range(count))
    kinds = config.texts("mlp_layer_types")
    config.refuse_unless(
        len(kinds) == count and set(kinds) <= {"dense", "sparse"},
        "mlp_layer_types",
        f"dense or sparse is needed for each of the {count} layers",
    )
    return tuple(kind == "sparse" for kind in kinds)


def _experts(config: VendorConfig) -> Moe:
    hidden = common.hidden_size(config)
    width = config.integer("moe_intermediate_size", default=1024, most=common.MOST_WIDTH)
    shared = config.integer("num_shared_experts", default=1, least=0, most=1024)
    return Moe(
        hidden,
        width,
        *common.routing(config, ("num_experts", "num_local_experts", "n_routed_experts"), default=8),
        shared=Mlp(hidden, shared * width, name="mlp.shared_experts") if shared else None,
        router_bias=True,
    )
