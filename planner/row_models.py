"""Which model a measured row ran: the names that benchmarks use, and the form of the weights that they say."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from planner.catalog import load_model, names
from planner.errors import InputError, nearest
from planner.inputs import Model

SYSTEMS = {
    "a100": "a100-sxm-80gb",
    "a100-sxm": "a100-sxm-80gb",
    "a100-40gb": "a100-sxm-40gb",
    "a100-pcie": "a100-pcie-80gb",
    "a100-80gb-pcie": "a100-pcie-80gb",
    "h100": "h100-sxm",
    "h200": "h200-sxm",
    "b200": "b200-sxm",
    "b300": "b300-sxm",
    "gb200-sxm": "gb200",
    "gb300-sxm": "gb300",
    "rtx-pro-6000": "rtx-pro-6000-server",
    "rtxpro6000": "rtx-pro-6000-server",
}
"""What benchmarks call GPUs that planner names in full."""
_SAID = {"nvidia", "amd", "instinct", "tesla", "geforce", "blackwell", "edition", "oam", "nvl72"}
"""Words of a driver's or a catalogue's name that tell no GPU from another."""
SAME_SIZES = {
    "llama-3.3-70b": "llama-3.1-70b",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-llama-70b": "llama-3.1-70b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "qwen2-72b": "qwen2.5-72b",
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-v3.1-terminus": "deepseek-v3",
    "deepseek-v3.2-exp": "deepseek-v3.2",
    "glm-4.6": "glm-4.5",
    "glm-4.7": "glm-4.5",
    "minimax-m2": "minimax-m2.5",
    "minimax-m2.1": "minimax-m2.5",
}
"""Models whose layers have the sizes of another release."""
_MAKER = re.compile(r"^(?:meta-(?=llama)|nvidia-(?=nemotron))")
_TUNING = re.compile(r"-(?:instruct|it|chat|hf|base|thinking|preview|bf16|[01]\d[0-3]\d|2[4-6][01]\d)(?=-|$)")
_FORM = re.compile(
    r"-(?:fp8(?:-(?:static|dynamic|kv|block))*(?:-pertensor)?|w8a8|nvfp4|fp4|mxfp4|awq|gptq|int4|int8)(?:-v\d+)?(?=-|$)"
)
FORMS = (
    ("fp4", "fp4"),
    ("int4", "int4|awq|gptq|^w4a"),
    ("fp8_block", "fp8_?block|block_?fp8"),
    ("fp8", "fp8|float8"),
    ("int8", "int8|^w8a|^sq$"),
    ("plain", "bf16|bfloat16|fp16|float16"),
    ("", "^$|^auto$|^none$"),
)
"""Forms of weights, and what precision columns and names call them; the first that matches."""
FOUR_BITS = ("fp4", "int4")
TOWERS = ["*visual*", "*vision*", "*audio*"]
BLOCK = 128
"""Side of the blocks of published fp8 checkpoints."""
NARROW = ["*in_proj_a", "*in_proj_b", "*in_proj_ba"]
"""What published block-scaled checkpoints of linear attention leave in 16 bits: gates of a number per head."""
KEPT = ["lm_head", "*self_attn*", "*attn.*", "*linear_attn*", "*mlp.gate", "*router*"]
"""What published NVFP4 checkpoints of mixtures of experts leave in 16 bits."""


@lru_cache(maxsize=1024)
def gpu_name(system: str) -> str:
    """planner's name of a GPU: of "NVIDIA H100 80GB HBM3" or "a100_sxm4" what tells it from others."""
    name, known = "-".join(re.findall(r"[a-z0-9]+", system.lower())), names("accelerator")
    if name in known:
        return name
    words = [re.sub(r"^sxm[45]$", "sxm", word) for word in name.split("-") if word not in _SAID]
    told = "-".join(word for word in words if not word.startswith("hbm"))
    spellings = [told, re.sub(r"-\d+gb$", "", told)]
    return next((SYSTEMS.get(each, each) for each in spellings if SYSTEMS.get(each, each) in known), told)


def plain_name(model: str) -> str:
    """A model's name without its maker's prefix, its tuning and the form of its weights."""
    name = model.rsplit("/", 1)[-1].rsplit("__", 1)[-1].lower()
    name = _TUNING.sub("", _FORM.sub("", _MAKER.sub("", name)))
    return SAME_SIZES.get(name, name)


def _loosely(name: str) -> str:
    """A plain name without what some write and some do not: Mistral's versions below 1, and marks between words."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"-v0\.\d$", "", name))


def form_in_name(model: str) -> str:
    """fp8 or nvfp4 or the like as a name says it; empty where it says none."""
    found = _FORM.search(model.lower())
    return found[0].removeprefix("-").split("-")[0] if found else ""


def form_of(precision: str) -> str:
    """The form of weights that a precision column or a name's ending means; empty: the checkpoint's own.

    raises: InputError where it is none of the known ones
    """
    plain = precision.lower().replace("-", "_")
    found = next((form for form, names_it in FORMS if re.search(names_it, plain)), None)
    if found is None:
        accepted = "bf16, fp16, fp8, fp8_block, int8, int4, nvfp4 or mxfp4"
        raise InputError(f"weights in {precision!r} are not known; accepted: {accepted}")
    return found


def row_model(model: str, precision: str, backend: str, configs: Path | None) -> Model:
    """The model that a row ran, its weights in the form that the row says, or else its model's name.

    raises: InputError where no config is known under any of the usual names
    """
    named = form_in_name(model)
    form = form_of(precision) or form_of(named)
    wanted = named or {"fp4": "nvfp4", "fp8": "fp8", "fp8_block": "fp8"}.get(form, "")
    return with_form(load_model(_reference(model, wanted, configs)), form, backend)


def _reference(model: str, wanted: str, configs: Path | None) -> str:
    """The folder among the configs that has its own name, else of folders and shipped models the one most alike.

    That is one in the form that is wanted, then a folder, then one in no form of its own. A name without its sizes is
    enough where one model only begins with it.
    """
    folders = sorted(path for path in configs.iterdir() if (path / "config.json").is_file()) if configs else []
    exact = [path for path in folders if path.name in (model, model.replace("/", "__"))]
    if exact:
        return str(exact[0].resolve())
    known = [(path.name, str(path.resolve())) for path in folders] + [(name, name) for name in names("model")]
    plain = plain_name(model)
    alike = [(name, ref) for name, ref in known if plain_name(name) == plain]
    alike = alike or [(name, ref) for name, ref in known if _loosely(plain_name(name)) == _loosely(plain)]
    if not alike:
        longer = [(name, ref) for name, ref in known if plain_name(name).startswith(plain.replace("_", "-") + "-")]
        alike = longer if len({plain_name(name) for name, _ in longer}) == 1 else []
    if not alike:
        raise InputError(f"no config is known for {model!r}{nearest(plain, names('model'))}")
    return min(alike, key=lambda each: _unlike(each[0], each[0] == each[1], wanted))[1]


def _unlike(name: str, shipped: bool, wanted: str) -> tuple[bool, bool, bool, str]:
    form = form_in_name(name)
    return form != wanted, shipped, form != "", name


def with_form(model: Model, form: str, backend: str) -> Model:
    """The model with the form of weights that a row says, where its config has not that form already.

    A checkpoint's own form counts where it has the same bits: "fp8" of a block-scaled checkpoint is its blocks, and
    mxfp4 stays mxfp4. TensorRT-LLM's fp8 and every nvfp4 checkpoint are ModelOpt's, whose cache is fp8. Else the fp8 of
    a mixture's experts is in their vendor's blocks, whatever the row calls it.
    """
    stored = _bits(model)
    own = stored == 4 or (stored == 8 and form not in (*FOUR_BITS, "plain"))
    if not form or (own and not (form == "fp4" and _integers(model))):
        return model
    config = {name: value for name, value in model.config.items() if name != "quantization_config"}
    if form != "plain":
        widths = [config.get("moe_intermediate_size") for config in _configs(model)]
        blocks = all(width % BLOCK == 0 for width in widths if isinstance(width, int))
        config["quantization_config"] = _declared(form, backend, mixture=has_experts(model), blocks=blocks)
    return model.model_copy(update={"config": config, "hf_quant_config": None, "weights": None})


def _declared(form: str, backend: str, *, mixture: bool, blocks: bool) -> dict[str, Any]:
    """What checkpoints in a form write as their quantization_config.

    blocks: experts are whole blocks wide
    """
    kept = ["lm_head", *TOWERS]
    if form == "fp4":
        ignore = [*KEPT, *TOWERS] if mixture else kept
        return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore, "kv_cache_quant_algo": "FP8"}
    if form == "fp8_block":
        return {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "ignored_layers": [*TOWERS, *NARROW]}
    if form == "fp8" and backend == "trtllm":
        return {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": kept, "kv_cache_quant_algo": "FP8"}
    if form == "fp8" and not mixture:
        return {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": TOWERS}
    kind = "float" if form == "fp8" else "int"
    linear = {"num_bits": 4 if form == "int4" else 8, "type": kind, "symmetric": True, "strategy": "channel"}
    groups = {"linear": {"targets": ["Linear"], "weights": linear}}
    if form == "fp8" and blocks:
        weights = {**linear, "strategy": "block", "block_structure": [BLOCK, BLOCK]}
        groups["experts"] = {"targets": ["re:.*\\bexperts.*"], "weights": weights}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": kept}


def has_experts(model: Model) -> bool:
    """Whether a config is of a mixture of experts."""
    return any(value and "expert" in name for config in _configs(model) for name, value in config.items())


def _configs(model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
    text = model.config.get("text_config")
    return model.config, text if isinstance(text, dict) else {}


def _said(model: Model) -> str:
    """What a checkpoint says of its own form; empty: 16 bits."""
    fields = ("quantization_config", "compression_config", "expert_dtype")
    said = [config.get(name) for config in _configs(model) for name in fields]
    return "".join(str(each).lower() for each in (*said, model.hf_quant_config) if each)


def _integers(model: Model) -> bool:
    """Whether a 4-bit checkpoint holds whole numbers."""
    said = _said(model)
    return "'type': 'int'" in said or "int4" in said or "awq" in said or "gptq" in said


def _bits(model: Model) -> int:
    """Bits of the checkpoint's own form: 16, 8 or 4."""
    said = _said(model)
    four = ("fp4", "'num_bits': 4", "'bits': 4", "int4", "awq")
    return 16 if not said else 4 if any(mark in said for mark in four) else 8
