"""Nemotron-H and Nemotron 3: Mamba-2, attention, MLP and experts, one per layer (vLLM, models/nemotron_h.py)."""

from planner.architectures import _common as common
from planner.architectures import _states as states
from planner.blocks import Layer, Mlp, Moe, Stack
from planner.mixers import State
from planner.tensors import Split, Tensor, linear
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("nemotron_h",)
PATTERN = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
OLDER_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}
ATTENTION_NAMES = ("mixer.q_proj", "mixer.k_proj", "mixer.v_proj", "mixer.o_proj")


def blocks(config: VendorConfig) -> Stack:
    """Each layer is one thing after one norm; layers for multi-token prediction are not loaded."""
    common.refuse_windows(config)
    kinds = layer_kinds(config)
    bias = config.flag("attention_bias", default=False)
    config.refuse_unless(not bias, "attention_bias", "the engine builds no such biases in this family")
    config.refuse_unless(not config.has("block_configs"), "block_configs", "layers of different sizes are not known")
    norms = common.layer_norms(config, count=1)
    builders = {
        "linear_attention": lambda: Layer(_state(config), None, norms),
        "full_attention": lambda: Layer(
            common.full_attention(config, default_kv_heads=8, default_head_dim=128, names=ATTENTION_NAMES), None, norms
        ),
        "mlp": lambda: Layer(None, _mlp(config), norms),
        "moe": lambda: Layer(None, _experts(config), norms),
    }
    # Only the fields of kinds that the model has are read.
    layer_of = {kind: builders[kind]() for kind in dict.fromkeys(kinds)}
    layers = tuple(layer_of[kind] for kind in kinds)
    return Stack(common.token_embedding(config), layers, *common.positions(config, default=4096))


def layer_kinds(config: VendorConfig) -> tuple[str, ...]:
    """What each layer is: from a list of names, else from a pattern of letters; num_hidden_layers does not count."""
    field = next((f for f in ("layers_block_type", "layer_types") if config.has(f)), "hybrid_override_pattern")
    if field == "hybrid_override_pattern":
        named = tuple(PATTERN.get(letter, letter) for letter in config.text(field, default=""))
    else:
        named = tuple(OLDER_NAMES.get(name, name) for name in config.texts(field))
    unknown = sorted(set(named) - set(PATTERN.values()))
    config.refuse_unless(not unknown, field, f"layers of {', '.join(unknown)} are not known in this family")
    config.refuse_unless(0 < len(named) <= common.MOST_LAYERS, field, "a list of layers is needed")
    return () if unknown or len(named) > common.MOST_LAYERS else named


def _state(config: VendorConfig) -> State:
    return states.mamba2(
        common.hidden_size(config),
        config.integer("mamba_num_heads", default=128, most=common.MOST_HEADS),
        config.integer("mamba_head_dim", default=64, most=common.MOST_HEADS),
        config.integer("mamba_n_groups", "n_groups", default=8, most=common.MOST_HEADS),
        config.integer("ssm_state_size", default=128, most=common.MOST_HEADS),
        states.state_taps(config, "mamba_d_conv", "conv_kernel", default=4),
        conv_bias=config.flag("mamba_conv_bias", "use_conv_bias", default=True),
        bias=config.flag("use_bias", default=False),
        name="mixer",
        dtype=states.state_dtype(config, "mamba_ssm_cache_dtype", "float32"),
    )


def _mlp(config: VendorConfig) -> Mlp:
    width = config.fields.get("intermediate_size")
    if isinstance(width, list):
        config.refuse_unless(len(set(map(str, width))) == 1, "intermediate_size", "one width for all layers is needed")
        width = config.integers("intermediate_size")[0] if config.integers("intermediate_size") else 1
    else:
        width = config.integer("intermediate_size", default=21504, most=common.MOST_WIDTH)
    return Mlp(
        common.hidden_size(config), width, gated=False, bias=config.flag("mlp_bias", default=False), name="mixer"
    )


def _experts(config: VendorConfig) -> Moe:
    """Experts without a gate projection; in Super and Ultra they work in a latent width of their own."""
    hidden, bias = common.hidden_size(config), config.flag("mlp_bias", default=False)
    shared = config.integer("n_shared_experts", default=1, least=0, most=1024) * config.integer(
        "moe_shared_expert_intermediate_size", default=7688, least=0, most=common.MOST_WIDTH
    )
    latent = config.integer("moe_latent_size", most=common.MOST_WIDTH) if config.has("moe_latent_size") else None
    down_up: tuple[Tensor, ...] = ()
    if latent:
        down_up = (
            *linear("mixer.fc1_latent_proj", latent, hidden, Split.REPLICATED, bias=bias),
            *linear("mixer.fc2_latent_proj", hidden, latent, Split.REPLICATED, bias=bias),
        )
    return Moe(
        hidden,
        config.integer("moe_intermediate_size", default=7688, most=common.MOST_WIDTH),
        *common.routing(config, ("n_routed_experts",), default=2),
        gated=False,
        shared=Mlp(hidden, shared, gated=False, bias=bias, name="mixer.shared_experts") if shared else None,
        router_bias=True,
        name="mixer",
        latent=latent,
        latent_weights=down_up,
    )
