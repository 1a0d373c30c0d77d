"""GLM-4.7-Flash: latent attention with GLM's experts (vLLM, model_executor/models/glm4_moe_lite.py)."""

from planner.architectures import _common as common
from planner.architectures import _latent as latent
from planner.blocks import Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("glm4_moe_lite",)


def blocks(config: VendorConfig) -> Stack:
    """The first layers dense, the rest experts with shared ones; the router and its correction in float32.

    Layers for multi-token prediction (num_nextn_predict_layers) are not loaded.
    """
    count = common.layer_count(config)
    with_experts = latent.sparse_from(config, count, None)
    moe = latent.experts(config, router_bias=True, router_dtype="float32")
    return latent.stack(config, latent.decoder(config, latent.mixers(config, count), with_experts, moe))
