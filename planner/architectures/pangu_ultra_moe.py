"""openPangu-Ultra-MoE and A.X-K1: latent attention with further norms (vLLM, openpangu.py and AXK1.py)."""

from planner.architectures import _common as common
from planner.architectures import _latent as latent
from planner.blocks import Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("pangu_ultra_moe", "axk1")


def blocks(config: VendorConfig) -> Stack:
    """DeepSeek's shape; norms around both halves of a layer (sandwich_norm), or one more after the feed-forward.

    Layers for multi-token prediction are not loaded.
    """
    pangu = config.fields.get("model_type") == "pangu_ultra_moe"
    count = common.layer_count(config)
    with_experts = latent.sparse_from(config, count, None)
    if pangu:
        norms = 4 if config.flag("sandwich_norm", default=False) else 2
        router_bias = config.flag("router_enable_expert_bias", default=False)
    else:
        norms, router_bias = 3, config.fields.get("topk_method", "noaux_tc") == "noaux_tc"
    moe = latent.experts(config, router_bias=router_bias, shared=0)
    layers = latent.decoder(config, (latent.attention(config),) * count, with_experts, moe, norms=norms)
    return latent.stack(config, layers)
