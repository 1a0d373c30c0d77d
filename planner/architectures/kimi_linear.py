"""Kimi Linear and Kimi K3: Kimi delta attention, some latent attention (vLLM, models/kimi_k3/nvidia/model.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _states as states
from planner.architectures import _vision as vision
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.mixers import LatentAttention, Mixer, State
from planner.tensors import Split, Tensor, linear, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("kimi_linear", "kimi_k3")
SECTIONS = ("text_config", "vision_config")


def blocks(config: VendorConfig) -> Stack:
    """The text model; K3 has a vision tower beside it."""
    if config.fields["model_type"] == "kimi_linear":
        return _text(config)
    stack = _text(common.text_section(config))
    tower = vision.moonvit(config.section("vision_config"), stack.embedding.hidden)
    return replace(stack, towers=(tower,), notes=(vision.NOTE,))


def _text(config: VendorConfig) -> Stack:
    """Mixers by the lists of linear_attn_config, which count layers from one; the first layers are dense."""
    count = common.layer_count(config)
    linear_layers = _linear_layers(config, count)
    mixers: dict[bool, Mixer] = {True: _delta(config), False: _latent(config)}
    dense, norms = common.gated_mlp(config), _norms(config)
    experts = _experts(config) if config.has("num_experts") else None
    first = config.integer("first_k_dense_replace", default=0, least=0, most=common.MOST_LAYERS)
    step = config.integer("moe_layer_freq", default=1, most=common.MOST_LAYERS)
    sparse = tuple(experts is not None and i >= first and i % step == 0 for i in range(count))
    layer_of = {
        (linear_, has_experts): Layer(mixer, experts if has_experts else dense, norms)
        for linear_, mixer in mixers.items()
        for has_experts in (True, False)
    }
    layers = tuple(layer_of[i + 1 in linear_layers, sparse[i]] for i in range(count))
    embedding = common.token_embedding(config, default_vocab=163840)
    residual = _residual(config, "output_attn_res") if config.has("attn_res_block_size") else ()
    # Where the config names both, the engine goes by model_max_length (vLLM 0.33, model_arch_config_convertor.py).
    positions = common.positions(config, "model_max_length", "max_position_embeddings", default=4096)
    return Stack(replace(embedding, final=(*embedding.final, *residual)), layers, *positions)


def _linear_layers(config: VendorConfig, count: int) -> frozenset[int]:
    """Layers with a state, counted from one; the others must be those listed as full attention."""
    listed = config.section("linear_attn_config")
    with_state, full = listed.integers("kda_layers"), listed.integers("full_attn_layers")
    config.refuse_unless(
        sorted((*with_state, *full)) == list(range(1, count + 1)),
        "linear_attn_config",
        f"kda_layers and full_attn_layers must list each of the {count} layers once, from 1",
    )
    return frozenset(with_state)


def _delta(config: VendorConfig) -> State:
    fields = config.section("linear_attn_config")
    return states.kimi_delta(
        common.hidden_size(config),
        fields.integer("num_heads", most=common.MOST_HEADS),
        fields.integer("head_dim", most=common.MOST_HEADS),
        states.state_taps(fields, "short_conv_kernel_size"),
        full_rank_gate=fields.flag("use_full_rank_gate", default=False),
    )


def _latent(config: VendorConfig) -> LatentAttention:
    """Latent attention without rotary positions (the width for them is cached all the same), gated in K3."""
    config.refuse_unless(
        config.flag("mla_use_nope", default=False), "mla_use_nope", "must be true: the engine has no other kind here"
    )
    hidden, heads = common.hidden_size(config), common.head_count(config)
    value_dim = config.integer("v_head_dim", most=common.MOST_HEADS)
    gate: tuple[Tensor, ...] = ()
    if config.flag("mla_use_output_gate", default=False):
        gate = linear("self_attn.g_proj", heads * value_dim, hidden, Split.OUTPUT, units=heads)
    return LatentAttention(
        hidden,
        heads,
        config.integer("q_lora_rank", most=common.MOST_WIDTH) if config.has("q_lora_rank") else None,
        config.integer("kv_lora_rank", most=common.MOST_WIDTH),
        config.integer("qk_nope_head_dim", most=common.MOST_HEADS),
        config.integer("qk_rope_head_dim", most=common.MOST_HEADS),
        value_dim,
        extra=gate,
    )


def _norms(config: VendorConfig) -> tuple[Tensor, ...]:
    """Two norms per layer and, in K3, what weighs the earlier blocks' outputs before each half of the layer."""
    norms = common.layer_norms(config)
    if not config.has("attn_res_block_size"):
        return norms
    return (*norms, *_residual(config, "self_attention_res"), *_residual(config, "mlp_res"))


def _residual(config: VendorConfig, name: str) -> tuple[Tensor, ...]:
    hidden = common.hidden_size(config)
    return (*norm(f"{name}_norm", hidden), Tensor(f"{name}_proj", 1, hidden))


def _experts(config: VendorConfig) -> Moe:
    """Routed experts, in K3 in a latent width of their own, and shared ones in the hidden width."""
    hidden, name = common.hidden_size(config), "block_sparse_moe"
    width = config.integer("moe_intermediate_size", most=common.MOST_WIDTH)
    total = config.integer("num_experts", most=common.MOST_HEADS)
    top_k = config.integer("num_experts_per_token", "num_experts_per_tok", most=common.MOST_HEADS)
    config.refuse_unless(
        top_k <= total or bool(config.problems),
        "num_experts_per_token",
        f"{top_k} experts per token are more than the model's {total}",
    )
    shared = config.integer("num_shared_experts", default=0, least=0, most=1024)
    field = "routed_expert_hidden_size"
    latent = config.integer(field, most=common.MOST_WIDTH) if config.has(field) else None
    down_up: tuple[Tensor, ...] = ()
    if latent:
        down_up = (
            *linear(f"{name}.routed_expert_down_proj", latent, hidden, Split.REPLICATED),
            *(norm(f"{name}.routed_expert_norm", latent) if config.flag("latent_moe_use_norm", default=False) else ()),
            *linear(f"{name}.routed_expert_up_proj", hidden, latent, Split.REPLICATED),
        )
    return Moe(
        hidden,
        width,
        total,
        top_k,
        shared=Mlp(hidden, shared * width, name=f"{name}.shared_experts") if shared else None,
        router_bias=True,
        name=name,
        latent=latent,
        latent_weights=down_up,
        least_per_rank=config.integer("min_moe_intermediate_per_partition", default=256, most=common.MOST_WIDTH),
    )
