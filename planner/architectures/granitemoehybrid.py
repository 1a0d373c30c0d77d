"""Granite 4: attention and Mamba-2 layers, dense or with experts (vLLM, model_executor/models/granitemoehybrid.py)."""

from planner.architectures import _common as common
from planner.architectures import _states as states
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("granitemoehybrid",)
ATTENTION, STATE = ("attention", "full_attention"), ("mamba", "linear_attention")


def blocks(config: VendorConfig) -> Stack:
    """Layers as layer_types lists them, all states without a list; each has one "shared" MLP, experts or both."""
    count = config.integer("num_hidden_layers", most=common.MOST_LAYERS)
    kinds = config.texts("layer_types" if config.has("layer_types") else "layers_block_type") or (STATE[0],) * count
    config.refuse_unless(
        len(kinds) == count and set(kinds) <= {*ATTENTION, *STATE},
        "layer_types",
        f"every one of the {count} layers must be listed, as {' or '.join((*ATTENTION, *STATE))}",
    )
    attention, state = _layers(config, any(kind in STATE for kind in kinds))
    layers = tuple(attention if kind in ATTENTION else state for kind in kinds)
    return Stack(common.token_embedding(config), layers, *common.positions(config, default=2048))


def _layers(config: VendorConfig, with_states: bool) -> tuple[Layer, Layer]:
    """The attention layer and the state layer; the fields of states are read only where there are any."""
    ffn, norms, bias = _feed_forward(config), common.layer_norms(config), config.flag("attention_bias", default=False)
    attention = Layer(common.full_attention(config, bias=bias, output_bias=bias), ffn, norms)
    if not with_states:
        return attention, attention
    state = states.checked_mamba2(config, inner=states.expanded(config, "mamba_expand"))
    return attention, Layer(state, ffn, norms)


def _feed_forward(config: VendorConfig) -> Mlp | Moe | None:
    hidden = common.hidden_size(config)
    width = config.integer("shared_intermediate_size", default=1024, least=0, most=common.MOST_WIDTH)
    names = ("input_linear", "input_linear", "output_linear")
    shared = Mlp(hidden, width, name="shared_mlp", names=names) if width else None
    if not config.integer("num_local_experts", default=8, least=0, most=common.MOST_HEADS):
        return shared
    return Moe(
        hidden,
        config.integer("intermediate_size", default=11008, most=common.MOST_WIDTH),
        *common.routing(config, ("num_local_experts",), default=2),
        shared=shared,
        name="block_sparse_moe",
    )
