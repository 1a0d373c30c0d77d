"""OPT (transformers, models/opt/modeling_opt.py)."""

from planner.architectures import _common as common
from planner.blocks import Embedding, Layer, Stack
from planner.tensors import Tensor, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("opt",)

OFFSET = 2
"""Rows of the position table before the first position."""


def blocks(config: VendorConfig) -> Stack:
    """Multi-head attention and an MLP without a gate, learned positions; OPT-350m embeds in another width."""
    bias = config.flag("enable_bias", default=True)
    affine = config.flag("layer_norm_elementwise_affine", default=True)
    config.refuse_unless(affine, "layer_norm_elementwise_affine", "norms without weights are not supported")
    attention = common.full_attention(
        config,
        bias=bias,
        output_bias=bias,
        kv_heads=common.head_count(config),
        names=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"),
    )
    hidden = attention.hidden
    inner = config.integer("ffn_dim", most=common.MOST_WIDTH)
    mlp = common.plain_mlp(config, inner, "fc1", "fc2", bias=bias)
    layer = Layer(attention, mlp, common.layer_norms(config, bias=True))
    longest, field = common.positions(config, "max_position_embeddings", default=2048)
    layers = (layer,) * common.layer_count(config)
    return Stack(_embedding(config, hidden, longest), layers, longest, field)


def _embedding(config: VendorConfig, hidden: int, longest: int) -> Embedding:
    width = config.integer("word_embed_proj_dim", default=hidden, most=common.MOST_WIDTH)
    positions = [Tensor("model.decoder.embed_positions", longest + OFFSET, hidden)]
    final: list[Tensor] = []
    removed = config.flag("_remove_final_layer_norm", default=False)
    if config.flag("do_layer_norm_before", default=True) and not removed:
        final.extend(norm("model.decoder.final_layer_norm", hidden, bias=True))
    if width != hidden:
        positions.append(Tensor("model.decoder.project_in", hidden, width))
        final.append(Tensor("model.decoder.project_out", width, hidden))
    return Embedding(
        config.integer("vocab_size", most=common.MOST_WIDTH),
        width,
        config.flag("tie_word_embeddings", default=True),
        positions=tuple(positions),
        final=tuple(final),
    )
