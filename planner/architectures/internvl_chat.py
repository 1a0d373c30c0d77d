"""InternVL 1.5 to 3.5 in the vendor's own layout (vLLM, model_executor/models/internvl.py, intern_vit.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _vision as vision
from planner.architectures import internlm2, llama, qwen2, qwen3, qwen3_moe
from planner.blocks import Stack, Tower
from planner.tensors import Split, Tensor, linear, norm
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("internvl_chat",)
SECTIONS = ("vision_config",)
TEXT = {"internlm2": internlm2, "llama": llama, "qwen2": qwen2, "qwen3": qwen3, "qwen3_moe": qwen3_moe}


def blocks(config: VendorConfig) -> Stack:
    """A text model (llm_config) beside InternViT and a projector of shuffled patches, whole on every rank."""
    config.refuse_unless(config.has("llm_config"), "llm_config", "missing: it describes the language model")
    text = common.text_section(config, "llm_config")
    kind = text.text("model_type", default="llama", accepted=TEXT)
    stack: Stack = TEXT[kind].blocks(text)
    return replace(stack, towers=(_tower(config, stack.embedding.hidden),), notes=(vision.NOTE,))


def _tower(config: VendorConfig, hidden: int) -> Tower:
    section, name = config.section("vision_config"), "vision_model"
    width = section.integer("hidden_size", most=common.MOST_WIDTH)
    depth = section.integer("num_hidden_layers", most=common.MOST_LAYERS)
    last = config.integer("select_layer", default=-1, least=-depth, most=depth - 1)
    patch = section.integer("patch_size", most=vision.MOST_PIXELS)
    places = (section.integer("image_size", most=vision.MOST_PIXELS) // patch) ** 2 + 1
    side = int(1 / config.number("downsample_ratio", most=1.0)) if config.has("downsample_ratio") else 2
    merged = width * min(side, 64) ** 2
    projector = (
        *linear("mlp1.1", hidden, merged, Split.REPLICATED, bias=True),
        *linear("mlp1.3", hidden, hidden, Split.REPLICATED, bias=True),
    )
    return vision.tower(
        "vision tower",
        vision.once(
            vision.conv(f"{name}.embeddings.patch_embedding", width, 3 * patch**2, bias=True),
            (
                Tensor(f"{name}.embeddings.class_embedding", width),
                Tensor(f"{name}.embeddings.position_embedding", places, width),
            ),
            norm("mlp1.0", merged, bias=True),
            vision.unquantised(projector),
        ),
        vision.times(last + 1 if last >= 0 else depth + last + 1, _layer(section, width, f"{name}.encoder.layers")),
    )


def _layer(section: VendorConfig, width: int, stem: str) -> tuple[Tensor, ...]:
    """Attention that every rank holds whole where TP does not divide its heads; norms and a scale for each half."""
    heads = section.integer("num_attention_heads", most=common.MOST_HEADS)
    inner = section.integer("intermediate_size", most=common.MOST_WIDTH)
    bias = section.flag("qkv_bias", default=False)
    attention = vision.attention(f"{stem}.attn", width, heads, ("qkv", "proj"), bias=bias, output_bias=True)
    layer_norm = section.text("norm_type", default="rms_norm", accepted=("rms_norm", "layer_norm")) == "layer_norm"
    head_norms = norm(f"{stem}.attn.qk_norms", 2 * width) if section.flag("qk_normalization", default=True) else ()
    return (
        *(replace(tensor, split_only_by=heads) for tensor in attention),
        *vision.mlp(f"{stem}.mlp", width, inner, ("fc1", "fc2")),
        *norm(f"{stem}.norms", 2 * width, bias=layer_norm),
        *head_norms,
        Tensor(f"{stem}.layer_scales", 2 * width),
    )
