"""CodeGen (transformers, models/codegen/modeling_codegen.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("codegen",)


def blocks(config: VendorConfig) -> Stack:
    """Attention without biases and an MLP with them, side by side after one norm; the head has a bias."""
    inner = config.integer("n_inner", default=4 * common.hidden_size(config), most=common.MOST_WIDTH)
    qkv = "attn.qkv_proj"
    layer = Layer(
        common.full_attention(config, kv_heads=common.head_count(config), names=(qkv, qkv, qkv, "attn.out_proj")),
        common.plain_mlp(config, inner, "fc_in", "fc_out"),
        common.layer_norms(config, count=1, bias=True),
    )
    embedding = common.token_embedding(config, norm_bias=True, head_bias=True)
    layers = (layer,) * common.layer_count(config)
    return Stack(embedding, layers, *common.positions(config, "n_positions", default=2048))
