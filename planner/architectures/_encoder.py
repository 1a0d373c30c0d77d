"""Encoder-decoder models: the parts that Whisper, BART and T5 share."""

from planner.architectures import _common as common
from planner.mixers import Attention
from planner.tensors import Split, Tensor
from planner.vendor_config import VendorConfig

NOTE = "the encoder owns no cache; its output is cached once per request by the decoder's cross-attention"


def layers_of(config: VendorConfig, side: str) -> int:
    """Layers of the encoder or of the decoder."""
    return config.integer(f"{side}_layers", "num_hidden_layers", most=common.MOST_LAYERS)


def heads_of(config: VendorConfig, side: str, hidden: int) -> int:
    """Attention heads of one side."""
    heads = config.integer(f"{side}_attention_heads", "num_attention_heads", most=common.MOST_HEADS)
    if not config.problems:
        config.refuse_unless(
            hidden % heads == 0, f"{side}_attention_heads", f"{heads} heads do not divide d_model {hidden}"
        )
    return heads


def attention(
    module: str, hidden: int, heads: int, *, key_bias: bool | None = None, cross_tokens: int | None = None
) -> Attention:
    """Multi-head attention with biases; reads the encoder's output where cross_tokens is given.

    module: the vendor's name for it within a layer
    key_bias: False where checkpoints have no bias of the keys, and the engine makes one of zeros
    """
    width = max(1, hidden // heads)
    zeros = Tensor(f"{module}.k_proj.bias", heads * width, 1, Split.KV_HEADS, heads, published=False)
    return Attention(
        hidden,
        heads,
        heads,
        width,
        width,
        bias=True,
        output_bias=True,
        norms=(zeros,) if key_bias is False else (),
        cross=cross_tokens is not None,
        cross_tokens=cross_tokens or 0,
        names=(f"{module}.q_proj", f"{module}.k_proj", f"{module}.v_proj", f"{module}.out_proj"),
        key_bias=key_bias,
    )
