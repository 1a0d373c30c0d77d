"""MiniCPM, dense (vLLM, model_executor/models/minicpm.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("minicpm",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape with tied embeddings; the scales that MiniCPM adds have no weights."""
    experts = config.integer("num_experts", default=0, least=0)
    config.refuse_unless(experts == 0, "num_experts", "MiniCPM-MoE is not supported, only dense MiniCPM")
    config.refuse_unless(
        not config.has("sparse_config"), "sparse_config", "sparse attention is not supported in this version"
    )
    layer = Layer(common.full_attention(config), common.gated_mlp(config), common.layer_norms(config))
    layers = (layer,) * common.layer_count(config)
    return Stack(common.token_embedding(config, tied=True), layers, *common.positions(config))
