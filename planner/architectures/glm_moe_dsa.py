"""GLM-5, 5.1 and 5.2 (vLLM, models/deepseek_v32/attention.py; transformers, models/glm_moe_dsa)."""

from planner.architectures import _common as common
from planner.architectures import _latent as latent
from planner.blocks import Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("glm_moe_dsa",)


def blocks(config: VendorConfig) -> Stack:
    """DeepSeek-V3.2's shape; in some layers the indexer is shared, and then only the first of them has its own."""
    count = config.integer("num_hidden_layers", most=common.MOST_LAYERS)
    with_experts = latent.sparse_from(config, count, 3)
    moe = latent.experts(config, router_bias=config.fields.get("topk_method") == "noaux_tc")
    return latent.stack(config, latent.decoder(config, latent.mixers(config, count), with_experts, moe))
