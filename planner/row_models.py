"""Which model a measured row ran: the names that benchmarks use, and the form of the weights that they say."""

import re
from pathlib import Path
from typing import Any

from planner.catalog import load_model, names
from planner.errors import InputError, nearest
from planner.inputs import Model

SYSTEMS = {
    "a100": "a100-sxm-80gb",
    "a100-sxm": "a100-sxm-80gb",
    "h100": "h100-sxm",
    "h200": "h200-sxm",
    "b200": "b200-sxm",
    "b300": "b300-sxm",
    "rtx-pro-6000": "rtx-pro-6000-server",
}
"""What benchmarks call GPUs that planner names in full."""
SAME_SIZES = {"llama-3.3-70b": "llama-3.1-70b", "deepseek-r1-0528": "deepseek-r1", "deepseek-v3-0324": "deepseek-v3"}
"""Models whose layers have the sizes of an earlier release."""
_MAKER = re.compile(r"^(?:meta-)(?=llama)")
_TUNING = re.compile(r"-(?:instruct|it|chat|hf|base|thinking|preview|bf16|2507)(?=-|$)")
_FORM = re.compile(
    r"-(?:fp8(?:-(?:static|dynamic|kv|block))*(?:-pertensor)?|w8a8|nvfp4|fp4|mxfp4|awq|gptq|int4|int8)(?=-|$)"
)
FOUR_BITS = ("nvfp4", "fp4", "mxfp4")
EIGHT_BITS = ("fp8", "fp8_block", "fp8_static")
PLAIN = ("bf16", "bfloat16", "fp16", "float16")
TOWERS = ["*visual*", "*vision*", "*audio*"]
KEPT = ["lm_head", "*self_attn*", "*attn.*", "*linear_attn*", "*mlp.gate", "*router*"]
"""What published NVFP4 checkpoints of mixtures of experts leave in 16 bits."""


def gpu_name(system: str) -> str:
    """planner's name of a GPU."""
    name = system.strip().lower().replace("_", "-")
    return SYSTEMS.get(name, name)


def plain_name(model: str) -> str:
    """A model's name without its maker's prefix, its tuning and the form of its weights."""
    name = model.rsplit("/", 1)[-1].rsplit("__", 1)[-1].lower()
    name = _TUNING.sub("", _FORM.sub("", _MAKER.sub("", name)))
    return SAME_SIZES.get(name, name)


def form_in_name(model: str) -> str:
    """fp8 or nvfp4 or the like as a name says it; empty where it says none."""
    found = _FORM.search(model.lower())
    return found[0].removeprefix("-").split("-")[0] if found else ""


def row_model(model: str, precision: str, backend: str, configs: Path | None) -> Model:
    """The model that a row ran, its weights in the form that the row says.

    raises: InputError where no config is known under any of the usual names
    """
    wanted = form_in_name(model) or ("nvfp4" if precision in FOUR_BITS else "fp8" if precision in EIGHT_BITS else "")
    ref = _reference(model, wanted, configs)
    return with_precision(load_model(ref), precision, backend)


def _reference(model: str, wanted: str, configs: Path | None) -> str:
    """The folder among the configs, by its own name first, else the shipped model."""
    plain = plain_name(model)
    if configs is not None:
        folders = sorted(path for path in configs.iterdir() if (path / "config.json").is_file())
        exact = [path for path in folders if path.name in (model, model.replace("/", "__"))]
        alike = [path for path in folders if plain_name(path.name) == plain]
        ordered = [*exact, *sorted(alike, key=lambda path: (form_in_name(path.name) != wanted, path.name))]
        if ordered:
            return str(ordered[0].resolve())
    shipped = [name for name in names("model") if plain_name(name) == plain]
    if not shipped:
        raise InputError(f"no config is known for {model!r}{nearest(plain, names('model'))}")
    return min(shipped, key=lambda name: (form_in_name(name) != wanted, form_in_name(name) != "", name))


def with_precision(model: Model, precision: str, backend: str) -> Model:
    """The model with the form of weights that a row says, where its config has not that form already.

    A checkpoint's own form counts where it has the same bits: "fp8" of a block-scaled checkpoint is its blocks, and
    mxfp4 stays mxfp4. TensorRT-LLM's fp8 and every nvfp4 checkpoint are ModelOpt's, whose cache is fp8.
    """
    stored = _bits(model)
    if not precision or stored == 4 or (stored == 8 and precision not in (*FOUR_BITS, *PLAIN)):
        return model
    config = {name: value for name, value in model.config.items() if name != "quantization_config"}
    declared: dict[str, Any] | None = None
    if precision in FOUR_BITS:
        ignore = KEPT if has_experts(model) else ["lm_head"]
        declared = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": [*ignore, *TOWERS]}
    elif precision == "fp8_block":
        declared = {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": TOWERS}
    elif precision in EIGHT_BITS:
        declared = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": TOWERS}
        if backend == "trtllm":
            declared = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", *TOWERS]}
    elif precision not in PLAIN:
        accepted = ", ".join((*PLAIN, *EIGHT_BITS, *FOUR_BITS))
        raise InputError(f"weights in {precision!r} are not known; accepted: {accepted}")
    if declared and declared["quant_method"] == "modelopt":
        declared["kv_cache_quant_algo"] = "FP8"
    if declared:
        config["quantization_config"] = declared
    return model.model_copy(update={"config": config, "hf_quant_config": None, "weights": None})


def has_experts(model: Model) -> bool:
    """Whether a config is of a mixture of experts."""
    text = model.config.get("text_config")
    configs = (model.config, text if isinstance(text, dict) else {})
    return any(value and "expert" in name for config in configs for name, value in config.items())


def _bits(model: Model) -> int:
    """Bits of the checkpoint's own form: 16, 8 or 4."""
    text = str(model.config.get("quantization_config") or "") + str(model.hf_quant_config or "")
    text += str(model.config.get("compression_config") or "")
    if not text:
        return 16
    lowered = text.lower()
    four = ("fp4", "'num_bits': 4", "'bits': 4", "int4", "awq")
    return 4 if any(mark in lowered for mark in four) else 8
