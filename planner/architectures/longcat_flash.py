"""LongCat-Flash: two latent attentions and two dense feed-forwards in each layer, beside experts
(vLLM, model_executor/models/longcat_flash.py).
"""

from planner.architectures import _common as common
from planner.architectures import _latent as latent
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.tensors import Tensor
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("longcat_flash",)


def blocks(config: VendorConfig) -> Stack:
    """Routed experts of which some do nothing (zero_expert_num): those have rows in the router and no weights."""
    for field in ("ngram_vocab_size_ratio", "disable_quant_module"):
        config.refuse_unless(not config.fields.get(field), field, "is not supported in this version")
    hidden, attention = common.hidden_size(config), latent.attention(config)
    width = config.integer("ffn_hidden_size", "intermediate_size", most=common.MOST_WIDTH)
    zero = config.integer("zero_expert_num", default=256, least=0, most=common.MOST_HEADS)
    moe = Moe(
        hidden,
        config.integer("expert_ffn_hidden_size", "moe_intermediate_size", most=common.MOST_WIDTH),
        config.integer("n_routed_experts", "num_local_experts", most=common.MOST_HEADS),
        config.integer("moe_topk", "num_experts_per_tok", most=common.MOST_HEADS),
        router_bias=True,
        router_dtype="float32",
    )
    layer = Layer(
        attention,
        moe,
        (
            *common.layer_norms(config, count=4),
            Tensor("mlp.router.zero_experts", zero, hidden, dtype="float32"),
            Tensor("mlp.router.zero_experts_bias", zero, dtype="float32"),
        ),
        beside=(attention,),
        dense=Mlp(hidden, 2 * width, name="mlps"),  # both, which are of one width
    )
    return latent.stack(config, (layer,) * config.integer("num_layers", most=common.MOST_LAYERS))
