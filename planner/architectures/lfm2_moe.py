"""LFM2 with experts: short convolutions, some attention (vLLM, model_executor/models/lfm2_moe.py)."""

from planner.architectures import _common as common
from planner.architectures import lfm2
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.mixers import Mixer
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("lfm2_moe",)


def blocks(config: VendorConfig) -> Stack:
    """The first num_dense_layers with a dense MLP, the others with experts; mixers as in LFM2."""
    norms, hidden = common.layer_norms(config), common.hidden_size(config)
    width = config.integer("intermediate_size", default=7168, most=common.MOST_WIDTH)
    dense_mlp = Mlp(hidden, width, name="feed_forward", names=("w1", "w3", "w2"))
    mixers: dict[str, Mixer] = {"full_attention": lfm2.full_attention(config), "conv": lfm2.short_conv(config)}
    dense = {kind: Layer(mixer, dense_mlp, norms) for kind, mixer in mixers.items()}
    experts = _experts(config)
    sparse = {kind: Layer(mixer, experts, norms) for kind, mixer in mixers.items()}
    first = config.integer("num_dense_layers", default=2, least=0, most=common.MOST_LAYERS)
    layers = tuple(
        (dense if i < first else sparse).get(kind, dense["conv"]) for i, kind in enumerate(lfm2.layer_kinds(config))
    )
    return Stack(lfm2.token_embedding(config), layers, *common.positions(config, default=128_000))


def _experts(config: VendorConfig) -> Moe:
    return Moe(
        common.hidden_size(config),
        config.integer("moe_intermediate_size", default=1792, most=common.MOST_WIDTH),
        *common.routing(config, ("num_experts",), default=4),
        router_bias=config.flag("use_expert_bias", default=True),
        name="feed_forward",
    )
