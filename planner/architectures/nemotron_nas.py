"""Llama-Nemotron from architecture search: layers of unequal sizes (vLLM, model_executor/models/nemotron_nas.py)."""

from collections.abc import Mapping
from functools import cache

from planner.architectures import _common as common
from planner.blocks import Layer, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("nemotron-nas",)
WIDTH_STEP = 256


def blocks(config: VendorConfig) -> Stack:
    """Llama's shape; block_configs gives each layer its key/value heads and its width, or leaves either part out."""
    count = common.layer_count(config)
    listed = config.fields.get("block_configs")
    rows = listed if isinstance(listed, list) and all(isinstance(row, Mapping) for row in listed) else []
    config.refuse_unless(len(rows) == count, "block_configs", f"a mapping for each of the {count} layers is needed")

    @cache
    def layer(kv_heads: int | None, width: int | None) -> Layer:
        bias = config.flag("attention_bias", default=False)
        return Layer(
            common.full_attention(config, bias=bias, output_bias=bias, kv_heads=kv_heads) if kv_heads else None,
            common.gated_mlp(config, width, bias=config.flag("mlp_bias", default=False)) if width else None,
            common.layer_norms(config, count=bool(kv_heads) + bool(width)),
        )

    layers = tuple(layer(*_sizes(config, i, row)) for i, row in enumerate(rows[:count]))
    return Stack(common.token_embedding(config), layers, *common.positions(config))


def _sizes(config: VendorConfig, index: int, row: Mapping[str, object]) -> tuple[int | None, int | None]:
    """(key/value heads, width) of one layer; None for a part that it does not have."""
    block = VendorConfig(row, config.origin.within("block_configs", str(index)), config.nesting)
    block.problems = config.problems
    attention, ffn = block.section("attention"), block.section("ffn")
    for part in (attention, ffn):
        linear = part.flag("replace_with_linear", default=False)
        part.refuse_unless(not linear, "replace_with_linear", "a linear layer in this place is not known")
    kv_heads = None if attention.flag("no_op", default=False) else _kv_heads(config, attention)
    return kv_heads, None if ffn.flag("no_op", default=False) else _width(config, ffn)


def _kv_heads(config: VendorConfig, attention: VendorConfig) -> int:
    heads, group = common.head_count(config), attention.integer("n_heads_in_group", most=common.MOST_HEADS)
    attention.refuse_unless(
        heads % group == 0 or bool(config.problems),
        "n_heads_in_group",
        f"{group} does not divide num_attention_heads {heads}",
    )
    return max(1, heads // group)


def _width(config: VendorConfig, ffn: VendorConfig) -> int:
    """Two thirds of ffn_mult times the hidden size, up to a whole step; else intermediate_size."""
    if not ffn.has("ffn_mult"):
        return ffn.integer("intermediate_size", most=common.MOST_WIDTH)
    width = int(2 * ffn.number("ffn_mult", most=1024) * common.hidden_size(config) / 3)
    return max(1, -(-width // WIDTH_STEP)) * WIDTH_STEP
