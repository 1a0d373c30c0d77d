"""InternLM 2 and 2.5 (vLLM, model_executor/models/internlm2.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("internlm2",)


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape under other names; query, key and value are one projection."""
    # vLLM builds no biases, and no published model has them.
    config.refuse_unless(not config.flag("bias", default=False), "bias", "biases are not supported here")
    qkv = "attention.wqkv"
    layer = Layer(
        common.full_attention(config, names=(qkv, qkv, qkv, "attention.wo")),
        replace(common.gated_mlp(config), name="feed_forward", names=("w1", "w3", "w2")),
        common.layer_norms(config),
    )
    layers = (layer,) * common.layer_count(config)
    embedding = replace(common.token_embedding(config), name="model.tok_embeddings")
    return Stack(embedding, layers, *common.positions(config))
