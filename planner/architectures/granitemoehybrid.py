"""Granite 4 without Mamba (transformers, models/granitemoehybrid/modeling_granitemoehybrid.py)."""

from planner.architectures import _common as common
from planner.blocks import Layer, Mlp, Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("granitemoehybrid",)


def blocks(config: VendorConfig) -> Stack:
    """Granite's attention and one dense "shared" MLP, named so because the family also has experts."""
    count = config.integer("num_hidden_layers", most=common.MOST_LAYERS)
    # The class makes every layer a state layer unless the config lists its layers.
    kinds = config.texts("layer_types" if config.has("layer_types") else "layers_block_type")
    config.refuse_unless(
        len(kinds) == count and set(kinds) <= {"attention", "full_attention"},
        "layer_types",
        "every layer must be listed as attention: Mamba layers are not supported in this version",
    )
    experts = config.integer("num_local_experts", default=8, least=0)
    config.refuse_unless(
        experts == 0, "num_local_experts", f"{experts} experts are not supported in this family, only 0"
    )
    bias = config.flag("attention_bias", default=False)
    shared = config.integer("shared_intermediate_size", default=1024, most=common.MOST_WIDTH)
    names = ("input_linear", "input_linear", "output_linear")
    layer = Layer(
        common.full_attention(config, bias=bias, output_bias=bias),
        Mlp(common.hidden_size(config), shared, name="shared_mlp", names=names),
        common.layer_norms(config),
    )
    return Stack(common.token_embedding(config), (layer,) * count, *common.positions(config))
