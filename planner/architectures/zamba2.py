"""Zamba2: Mamba-2 layers, some with a transformer block before them (vLLM, model_executor/models/zamba2.py)."""

from planner.architectures import _common as common
from planner.architectures import _states as states
from planner.blocks import Layer, Mlp, Stack
from planner.mixers import Attention, State
from planner.tensors import Split, Tensor, linear, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("zamba2",)
KINDS = {"mamba": "linear_attention", "linear_attention": "linear_attention", "hybrid": "hybrid"}


def blocks(config: VendorConfig) -> Stack:
    """Hybrid layers take num_mem_blocks blocks in turn, which share weights but for adapters; each has its cache."""
    kinds = _layer_kinds(config)
    state, norms = _state(config), common.layer_norms(config, count=1)
    owned = config.integer("num_mem_blocks", default=1, most=common.MOST_LAYERS)
    # The first use of a block counts its weights.
    owner, user = (Layer(_attention(config, owns=owns), None, norms, beside=(state,)) for owns in (True, False))
    plain = Layer(state, None, norms)
    uses = [sum(kind == "hybrid" for kind in kinds[:i]) for i in range(len(kinds))]
    layers = tuple(
        plain if kind != "hybrid" else owner if used < owned else user for kind, used in zip(kinds, uses, strict=True)
    )
    positions, field = common.positions(config, default=4096)
    if config.flag("use_long_context", default=False):
        positions, field = 16384, "use_long_context"
    return Stack(common.token_embedding(config, tied=True), layers, positions, field)


def _layer_kinds(config: VendorConfig) -> tuple[str, ...]:
    field = "layers_block_type" if config.has("layers_block_type") else "layer_types"
    named = config.texts(field)
    known = 0 < len(named) <= common.MOST_LAYERS and set(named) <= set(KINDS)
    config.refuse_unless(known, field, f"a list of layers is needed, each of them one of {', '.join(KINDS)}")
    return tuple(KINDS[name] for name in named) if known else ()


def _state(config: VendorConfig) -> State:
    heads = config.integer("n_mamba_heads", default=8, most=common.MOST_HEADS)
    inner = states.expanded(config, "mamba_expand")
    config.refuse_unless(
        inner % heads == 0 or bool(config.problems), "n_mamba_heads", f"{heads} heads do not divide {inner} channels"
    )
    return states.mamba2(
        common.hidden_size(config),
        heads,
        max(1, inner // heads),
        config.integer("mamba_ngroups", default=1, most=common.MOST_HEADS),
        config.integer("mamba_d_state", default=64, most=common.MOST_HEADS),
        states.state_taps(config, "mamba_d_conv", default=4),
        conv_bias=config.flag("use_conv_bias", default=True),
        bias=config.flag("add_bias_linear", default=False),
        name="mamba",
    )


def _attention(config: VendorConfig, *, owns: bool) -> Attention:
    """Attention over the layer's input beside the model's (twice the hidden width), an MLP and a projection after it.

    owns: whether the block's own weights count here; adapters and the projection are each layer's own
    """
    hidden, heads = common.hidden_size(config), common.head_count(config)
    wide = 2 * hidden
    config.refuse_unless(
        wide % heads == 0 or bool(config.problems), "num_attention_heads", f"{heads} heads do not divide {wide}"
    )
    weights = (
        *(_block(config, hidden, heads) if owns else ()),
        *_adapters(config, hidden),
        *linear("linear", hidden, hidden, Split.REPLICATED),
    )
    width = max(1, wide // heads)
    return Attention(wide, heads, heads, width, width, norms=weights, projections=False)


def _block(config: VendorConfig, hidden: int, heads: int) -> tuple[Tensor, ...]:
    name, wide = "shared_transformer", 2 * hidden
    mlp = Mlp(hidden, _inner(config), bias=config.flag("add_bias_linear", default=False), name=f"{name}.feed_forward")
    inputs = (linear(f"{name}.self_attn.{part}_proj", wide, wide, Split.OUTPUT, units=heads) for part in "qkv")
    return (
        *(tensor for tensors in inputs for tensor in tensors),
        *linear(f"{name}.self_attn.o_proj", hidden, wide, Split.INPUT, units=heads),
        *mlp.tensors(),
        *norm(f"{name}.input_layernorm", wide),
        *norm(f"{name}.pre_ff_layernorm", hidden),
    )


def _adapters(config: VendorConfig, hidden: int) -> tuple[Tensor, ...]:
    """Low-rank additions to a shared block: always to the MLP, and to the projections where the config says so."""
    rank, wide, inner = config.integer("adapter_rank", default=128, most=common.MOST_WIDTH), 2 * hidden, _inner(config)
    name = "shared_transformer.adapters"
    attention: tuple[Tensor, ...] = ()
    if config.flag("use_shared_attention_adapter", default=False):
        attention = (*linear(name, rank, wide, Split.OUTPUT), *linear(name, wide, rank, Split.OUTPUT)) * 3
    return (*linear(name, rank, hidden, Split.OUTPUT), *linear(name, inner, rank, Split.OUTPUT) * 2, *attention)


def _inner(config: VendorConfig) -> int:
    return config.integer("intermediate_size", default=4 * common.hidden_size(config), most=common.MOST_WIDTH)
