"""DeepSeek V2, V3, R1 and V3.2, and Kimi-K2 (vLLM, model_executor/models/deepseek_v2.py)."""

from planner.architectures import _common as common
from planner.architectures import _latent as latent
from planner.blocks import Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2")
CLASS_DEFAULTS = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def blocks(config: VendorConfig) -> Stack:
    """Latent attention, sparse where the config has an indexer; the first layers dense, the rest experts.

    Layers for multi-token prediction (num_nextn_predict_layers) are not loaded.
    """
    config.fields = {**CLASS_DEFAULTS, **config.fields}
    count, v2 = common.layer_count(config), config.fields.get("model_type") == "deepseek_v2"
    with_experts = latent.sparse_from(config, count, 0 if v2 else 3)
    if config.fields.get("n_routed_experts", 1) is None:
        with_experts = (False,) * count
    router_bias = config.fields.get("topk_method") == "noaux_tc"
    moe = latent.experts(config, router_bias=router_bias, shared=2 if v2 else 1) if any(with_experts) else None
    return latent.stack(config, latent.decoder(config, latent.mixers(config, count), with_experts, moe))
