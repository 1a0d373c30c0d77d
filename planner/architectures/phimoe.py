"""Phi-3.5-MoE (transformers, models/phimoe/modeling_phimoe.py; vLLM, model_executor/models/phimoe.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("phimoe",)


def blocks(config: VendorConfig) -> Stack:
    """Experts in every layer, LayerNorms with a shift, biases on attention and head where the config says so.

    A window limits every layer, also one as long as the context, as the published configs have.
    """
    bias = config.flag("attention_bias", default=False)
    experts, top_k = common.routing(config, ("num_local_experts", "num_experts"), default=2)
    intermediate = config.integer("intermediate_size", most=common.MOST_WIDTH)
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias, default_kv_heads=8),
        Moe(common.hidden_size(config), intermediate, experts, top_k, name="block_sparse_moe"),
        common.layer_norms(config, bias=True),
    )
    embedding = common.token_embedding(config, norm_bias=True, head_bias=config.flag("lm_head_bias", default=False))
    layers = common.interleaved(layer, common.windowed_layers(config), common.window(config))
    return Stack(embedding, layers, *common.positions(config))
