"""Gemma 2 (transformers, models/gemma2/modeling_gemma2.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("gemma2", "vaultgemma")


def blocks(config: VendorConfig) -> Stack:
    """Gemma's shape, every other layer windowed, the first included; norms before and after each half of a layer.

    VaultGemma (models/vaultgemma/modeling_vaultgemma.py) has the norms before only.
    """
    config.refuse_unless(
        not config.flag("use_bidirectional_attention", default=False),
        "use_bidirectional_attention",
        "attention to later positions (embedding models) is not supported here",
    )
    bias = config.flag("attention_bias", default=False)
    layer = Layer(
        common.full_attention(
            config, bias=bias, output_bias=bias, default_heads=8, default_kv_heads=4, default_head_dim=256
        ),
        common.gated_mlp(config),
        common.layer_norms(config, count=2 if config.fields.get("model_type") == "vaultgemma" else 4),
    )
    layers = common.interleaved(layer, common.windowed_layers(config, 2), common.window(config, 4096))
    embedding = common.token_embedding(config, tied=True, default_vocab=256_000)
    return Stack(embedding, layers, *common.positions(config, default=8192))
