"""Llama 4, with its vision tower and as a text model (vLLM, model_executor/models/llama4.py, mllama4.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _vision as vision
from planner.blocks import Layer, Mlp, Moe, Stack, Tower
from planner.tensors import Split, linear
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("llama4", "llama4_text")
SECTIONS = ("text_config", "vision_config")


def blocks(config: VendorConfig) -> Stack:
    """The engine builds the tower even for a config without a vision_config, from the class's defaults."""
    if config.fields.get("model_type") == "llama4_text":
        return _text(config)
    stack = _text(common.text_section(config))
    tower = _tower(config.section("vision_config"), stack.embedding.hidden)
    return replace(stack, towers=(tower,), notes=(vision.NOTE,))


def _text(config: VendorConfig) -> Stack:
    """Chunked-local attention in layers with rotary positions, full attention in those without."""
    count, hidden = common.layer_count(config, ("full_attention", "chunked_attention")), common.hidden_size(config)
    bias = config.flag("attention_bias", default=False)
    config.refuse_unless(not bias, "attention_bias", "biases are not supported here")
    full = common.full_attention(config, default_kv_heads=8, default_head_dim=128)
    chunk = config.fields.get("attention_chunk_size", 8192)
    chunked = replace(full, chunk=config.integer("attention_chunk_size", default=chunk)) if chunk else full
    mlp = config.integer("intermediate_size_mlp", default=16384, most=common.MOST_WIDTH)
    ffns = (Mlp(hidden, mlp, name="feed_forward"), _experts(config, hidden))
    norms = common.layer_norms(config)
    made = {
        (rope, sparse): Layer(chunked if rope else full, ffns[sparse], norms)
        for rope in (False, True)
        for sparse in (False, True)
    }
    layers = tuple(made[key] for key in zip(_rope(config, count), _sparse(config, count), strict=True))
    return Stack(common.token_embedding(config), layers, *common.positions(config, default=131072))


def _rope(config: VendorConfig, count: int) -> tuple[bool, ...]:
    """Which layers have rotary positions: 1 in no_rope_layers; without that list all but every fourth."""
    given = config.integers("no_rope_layers")
    if not given:
        step = config.integer("no_rope_layer_interval", default=4)
        return tuple((i + 1) % step != 0 for i in range(count))
    config.refuse_unless(len(given) >= count, "no_rope_layers", f"lists {len(given)} layers of {count}")
    return tuple(bool(rope) for rope in (*given, *([0] * count)))[:count]


def _sparse(config: VendorConfig, count: int) -> tuple[bool, ...]:
    """Which layers have experts: every interleave_moe_layer_step-th, none for 0."""
    step = config.integer("interleave_moe_layer_step", default=1, least=0)
    sparse = tuple(step > 0 and (i + 1) % step == 0 for i in range(count))
    listed = set(config.integers("moe_layers"))
    config.refuse_unless(
        not config.has("moe_layers") or listed == {i for i, has_experts in enumerate(sparse) if has_experts},
        "moe_layers",
        f"lists other layers than interleave_moe_layer_step {step} gives, which is what the engine follows",
    )
    return sparse


def _experts(config: VendorConfig, hidden: int) -> Moe:
    width = config.integer("intermediate_size", default=8192, most=common.MOST_WIDTH)
    return Moe(
        hidden,
        width,
        *common.routing(config, ("num_local_experts",), default=1),
        shared=Mlp(hidden, width, name="feed_forward.shared_expert"),
        name="feed_forward",
    )


def _tower(section: VendorConfig, hidden: int) -> Tower:
    """The encoder and its projection to the language model's width."""
    out = section.integer("vision_output_dim", default=7680, most=common.MOST_WIDTH)
    projection = vision.unquantised(linear("multi_modal_projector.linear_1", hidden, out, Split.OUTPUT))
    return vision.tower("vision tower", vision.llama4(section), vision.once(projection))
