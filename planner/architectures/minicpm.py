"""MiniCPM, dense and with experts (vLLM, model_executor/models/minicpm.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("minicpm",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with tied embeddings; the scales that MiniCPM adds have no weights."""
    config.refuse_unless(
        not config.has("sparse_config"), "sparse_config", "sparse attention is not supported in this version"
    )
    ffn = _experts(config) if config.fields.get("num_experts") else common.gated_mlp(config)
    layer = Layer(common.full_attention(config), ffn, common.layer_norms(config))
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config, tied=True), layers, *common.positions(config))


def _experts(config: VendorConfig) -> Moe:
    width = config.integer("intermediate_size", most=common.MOST_WIDTH)
    return Moe(common.hidden_size(config), width, *common.routing(config, ("num_experts",)))
