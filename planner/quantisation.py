"""How a checkpoint stores the weights of its linear layers: bits, scales, and the modules it leaves alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, NamedTuple

from planner.errors import InputError
from planner.module_names import by_layer, named_by
from planner.origin import Origin
from planner.printable import shown
from planner.units import ceil_div

SMALLEST_BLOCK = 32
"""Side of the smallest block that the engine can refine the blocks of an expert's slice to."""


class CacheScales(NamedTuple):
    """Scales of the KV cache that a method creates in each attention layer, quantised cache or not."""

    served: int = 0
    """How many in the model's dtype."""
    floats: int = 0
    """How many in float32."""
    latent: bool = False
    """In layers of latent attention too."""


NO_SCALES = CacheScales()
CACHE_SCALES = CacheScales(4)
"""For the query, key, value and probabilities (vLLM 0.33, model_executor/layers/quantization/kv_cache.py)."""
MODELOPT_SCALES = CacheScales(4, latent=True)
COMPRESSED_SCALES = CacheScales(3, 3)
"""Zero points in the model's dtype beside float32 scales (compressed_tensors.py)."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """One storage form for linear weights."""

    name: str
    weight_bits: int
    scale_bytes: int
    """Bytes of one scale."""
    scale_rows: int | None = None
    """Output features that share a scale; None: all of them."""
    scale_cols: int | None = None
    """Input features that share a scale; None: all of them."""
    zero_point_bits: int = 0
    """Bits of the zero point stored beside each scale."""
    tensor_scales: int = 0
    """Further float32 scales per weight matrix (global and activation scales)."""
    cache_scales: CacheScales = NO_SCALES
    excluded: tuple[str, ...] = ()
    """Module names or patterns that stay in the model's dtype."""
    named: tuple[tuple[tuple[str, ...], "Quantisation"], ...] = ()
    """(module names or patterns, the form that these have instead of this one)."""
    head: bool = False
    """The output head has this form too, unless it is excluded."""
    only_named: bool = False
    """Modules that `named` leaves out stay in the model's dtype."""
    experts_only: bool = False
    """Only routed experts are stored so; all else stays in the model's dtype."""
    expert_multiple: int = 1
    """The engine pads the width of an expert on a rank to a multiple of this."""
    expert_biases: bool = False
    """The engine makes room for a bias in the model's dtype in every expert, whether the checkpoint has one or not."""

    def weight_bytes(self, rows: int, cols: int) -> int:
        """Stored bytes of one rows x cols weight matrix with its scales [B].

        source: vLLM 0.33, model_executor/layers/quantization (fp8.py, modelopt.py, awq.py, gptq.py)
        """
        # Of groups along a row, a slice keeps whole ones only; of blocks, the cut ones too.
        per_row = ceil_div(cols, self.scale_cols or cols) if self.has_blocks else cols // (self.scale_cols or cols)
        groups = ceil_div(rows, self.scale_rows or rows) * max(1, per_row)
        scales = groups * self.scale_bytes + ceil_div(groups * self.zero_point_bits, 8)
        return ceil_div(rows * cols * self.weight_bits, 8) + scales + 4 * self.tensor_scales

    def of_expert_slice(self, rows: int, cols: int, *, cut_cols: bool) -> "Quantisation":
        """The form in which the engine stores the rows x cols of an expert that TP leaves to one rank.

        Where the cut side does not hold whole blocks, their scales are repeated over smaller square ones.
        source: vLLM 0.33, model_executor/layers/fused_moe/oracle/fp8.py (refined block shape)
        """
        width, block = (cols, self.scale_cols) if cut_cols else (rows, self.scale_rows)
        if not self.has_blocks or not block or width % block == 0:
            return self
        side = gcd(self.scale_rows or 0, self.scale_cols or 0, rows, cols)
        return replace(self, scale_rows=side, scale_cols=side)

    @property
    def has_blocks(self) -> bool:
        """True if a scale is shared by a block of rows and columns, which a slice should not cut."""
        return (self.scale_rows or 1) > 1 and (self.scale_cols or 1) > 1

    @property
    def has_groups(self) -> bool:
        """True if inputs of one output feature share a scale group by group, of which a slice needs whole ones."""
        return self.scale_rows == 1 and (self.scale_cols or 1) > 1

    @property
    def names_layers(self) -> bool:
        """True if it treats some layers unlike others."""
        return any(by_layer(names).single for names in (self.excluded, *(names for names, _ in self.named)))

    def in_layer(self, layer: int) -> "Quantisation":
        """The form within one decoder layer: of the names that mean single layers, only those of this one."""
        named = tuple((by_layer(names).of(layer), form) for names, form in self.named)
        return replace(self, excluded=by_layer(self.excluded).of(layer), named=named)

    def form_of(self, module: str) -> "Quantisation | None":
        """The form of one module; None where it stays in the model's dtype."""
        if named_by(module, self.excluded) or (self.experts_only and ".experts." not in module):
            return None
        for names, form in self.named:
            if named_by(module, names):
                return form
        return None if self.only_named or (module == "lm_head" and not self.head) else self


FP8_TENSOR = Quantisation("fp8, one scale per tensor", 8, 4, cache_scales=CACHE_SCALES)
FP8_CHANNEL = replace(FP8_TENSOR, name="fp8, one scale per output channel", scale_rows=1)
NVFP4 = Quantisation("nvfp4, an fp8 scale per 16", 4, 1, 1, 16, tensor_scales=2, cache_scales=MODELOPT_SCALES)
MXFP4 = Quantisation("mxfp4, a scale of one byte per 32", 4, 1, 1, 32)
MXFP8 = Quantisation("mxfp8, a scale of one byte per 32", 8, 1, 1, 32, cache_scales=MODELOPT_SCALES)
ALGORITHMS = {
    "FP8": replace(FP8_TENSOR, tensor_scales=1, cache_scales=MODELOPT_SCALES),
    "FP8_PER_CHANNEL_PER_TOKEN": replace(FP8_CHANNEL, cache_scales=MODELOPT_SCALES),
    "FP8_PB_WO": replace(
        FP8_TENSOR,
        name="fp8, one scale per 128x128 block",
        scale_rows=128,
        scale_cols=128,
        cache_scales=MODELOPT_SCALES,
    ),
    "NVFP4": NVFP4,
    "W4A16_NVFP4": replace(NVFP4, tensor_scales=1),
    "MXFP8": MXFP8,
}
"""ModelOpt's names for the forms (vLLM 0.33, model_executor/layers/quantization/modelopt.py)."""

ENGINE_FLAGS = {"fp8": FP8_TENSOR}
"""What the engine can quantise an unquantised checkpoint to while loading it (`--quantization`)."""


def from_engine_flag(flag: str) -> Quantisation:
    """The form that `--quantization FLAG` loads an unquantised checkpoint in."""
    if flag not in ENGINE_FLAGS:
        accepted = ", ".join(ENGINE_FLAGS)
        raise InputError(
            f"--quantization: {flag!r} cannot be applied while loading; accepted: {accepted}. "
            "A checkpoint that is already quantised needs no flag"
        )
    return ENGINE_FLAGS[flag]


def from_checkpoint(
    config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None, origin: Origin
) -> Quantisation | None:
    """The form a checkpoint declares, or None where its weights are not quantised.

    config.json's quantization_config is read, or its text_config's; hf_quant_config.json only where they are absent,
    and it counts only when its producer is modelopt. The engine takes a quantization_config that names no quant_method
    for none at all, and makes room for weights in the model's dtype (vLLM 0.33, config/model.py).
    raises: InputError for a method that planner does not know
    """
    declared = config.get("quantization_config") or config.get("compression_config")
    if declared is None:
        declared = _mapping(config.get("text_config")).get("quantization_config")
    if declared is None:
        if not hf_quant_config or _mapping(hf_quant_config.get("producer")).get("name") != "modelopt":
            return None
        declared = {"quant_method": "modelopt", **_mapping(hf_quant_config.get("quantization"))}
    if not isinstance(declared, Mapping):
        raise InputError(f"{origin.at('quantization_config')}: a mapping is needed, not {shown(declared)}")
    method = str(declared.get("quant_method") or "").lower()
    if not method:
        return None
    if config.get("model_type") == "kimi_k3" and declared.get("format") == "mxfp4-pack-quantized":
        method = "mxfp4"  # The engine takes it so (vLLM 0.33, model_executor/models/config.py).
    reader = _READERS.get(method.split("_")[0] if method.startswith("modelopt") else method)
    found = reader(declared) if reader else None
    if found and config.get("model_type") == "deepseek_v4" and method in ("fp8", "deepseek_v4_fp8"):
        found = _deepseek_v4(found, config.get("expert_dtype", "fp4"), declared)
    if found is None:
        raise InputError(
            f"{origin.at('quantization_config')}: weight quantisation {shown(method)} in this form is not known; "
            f"known: {', '.join(sorted(_READERS))}. Give memory.weights_gib, or a checkpoint "
            "directory, to plan with weights of a known size"
        )
    return found


def kinds(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What a checkpoint's quantisation is called, for engines that refuse some: its method, and traits of it."""
    declared = _mapping(config.get("quantization_config"))
    method = str(declared.get("quant_method") or "").lower()
    traits = {
        "asymmetric": declared.get("sym") is False,
        "reordered": declared.get("desc_act") is True and declared.get("group_size") != -1,
        f"{declared.get('bits')}-bit": type(declared.get("bits")) is int,
    }
    return (method, *(f"{trait} {method}" for trait, present in traits.items() if present)) if method else ()


def _fp8(declared: Mapping[str, Any]) -> Quantisation | None:
    block = declared.get("weight_block_size")
    excluded = _names(declared.get("ignored_layers") or declared.get("modules_to_not_convert"))
    if block:
        form = _fp8_blocks(block)
        return form and replace(form, excluded=excluded)
    static = 1 if declared.get("activation_scheme") == "static" else 0
    return replace(FP8_TENSOR, tensor_scales=static, excluded=excluded)


def _fp8_blocks(block: object) -> Quantisation | None:
    if not isinstance(block, list) or len(block) != 2 or not all(_positive(side) for side in block):
        return None
    rows, cols = block
    return replace(FP8_TENSOR, name=f"fp8, one scale per {rows}x{cols} block", scale_rows=rows, scale_cols=cols)


def _deepseek_v4(form: Quantisation, experts: object, declared: Mapping[str, Any]) -> Quantisation | None:
    """DeepSeek-V4: block scales of one byte, and experts in fp4 of one kind or the other, unless they are fp8 too.

    source: vLLM 0.33, models/deepseek_v4/quant_config.py
    """
    if experts == "fp8":
        return form
    if experts != "fp4":
        return None
    fp4 = NVFP4 if str(declared.get("moe_quant_algo") or "").upper() == "NVFP4" else MXFP4
    name = f"{form.name}; experts in {fp4.name}"
    return replace(form, name=name, scale_bytes=1, named=((("ffn.experts",), fp4),))


def _fbgemm(declared: Mapping[str, Any]) -> Quantisation:
    """Weights by output channel, and the same bound of the inputs' scales in every layer (fbgemm_fp8.py)."""
    excluded = _names(declared.get("modules_to_not_convert"))
    return replace(FP8_CHANNEL, cache_scales=NO_SCALES, tensor_scales=1, excluded=excluded)


def _modelopt(declared: Mapping[str, Any]) -> Quantisation | None:
    algorithm = str(declared.get("quant_algo", "")).upper()
    excluded = _names(declared.get("ignore") or declared.get("exclude_modules"))
    if algorithm == "MIXED_PRECISION":
        return _mixed(declared, excluded)
    form = ALGORITHMS.get(algorithm)
    return form and replace(form, excluded=excluded, head=True)


def _mixed(declared: Mapping[str, Any], excluded: tuple[str, ...]) -> Quantisation | None:
    """ModelOpt's mixed precision: each quantised module is listed with its own form."""
    by_form: dict[str, dict[str, None]] = {}
    for module, details in _mapping(declared.get("quantized_layers")).items():
        parent, single_expert, _ = str(module).partition(".experts.")
        name = f"{parent}.experts" if single_expert else parent
        by_form.setdefault(str(_mapping(details).get("quant_algo", "")).upper(), {})[name] = None
    if not by_form or not set(by_form) <= set(ALGORITHMS):
        return None
    forms = {algorithm: ALGORITHMS[algorithm] for algorithm in sorted(by_form)}
    fp8_cache = str(declared.get("kv_cache_quant_algo") or "").upper() == "FP8" or declared.get("kv_cache_scheme")
    return replace(
        next(iter(forms.values())),
        name="; ".join(form.name for form in forms.values()),
        cache_scales=CACHE_SCALES if fp8_cache else NO_SCALES,
        excluded=excluded,
        named=tuple((tuple(by_form[algorithm]), form) for algorithm, form in forms.items()),
        head=True,
        only_named=True,
    )


def _compressed_tensors(declared: Mapping[str, Any]) -> Quantisation | None:
    """Groups of modules with a form each; the group of all linear layers is the form of what no other names."""
    groups = [_mapping(group) for group in _mapping(declared.get("config_groups")).values()]
    forms = [(_names(group.get("targets") or ["Linear"]), _compressed_form(group)) for group in groups]
    if not forms or not all(form and targets for targets, form in forms):
        return None
    general = [form for targets, form in forms if form and "Linear" in targets]
    named = tuple((targets, form) for targets, form in forms if form and "Linear" not in targets)
    if len(general) > 1:
        return None
    base = general[0] if general else named[0][1]
    name = "; ".join(dict.fromkeys(form.name for form in (*general, *(form for _, form in named))))
    return replace(
        base,
        name=name,
        cache_scales=COMPRESSED_SCALES,
        excluded=_names(declared.get("ignore")),
        named=named,
        only_named=not general,
    )


def _compressed_form(group: Mapping[str, Any]) -> Quantisation | None:
    """One group's form, by bits, kind and what shares a scale."""
    weights, inputs = _mapping(group.get("weights")), _mapping(group.get("input_activations"))
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    size = weights.get("group_size")
    static = 1 if inputs and not inputs.get("dynamic") else 0
    if (kind, bits) == ("float", 8):
        if strategy == "block":
            return _fp8_blocks(weights.get("block_structure"))
        if size == 32:
            return MXFP8
        form = {"channel": FP8_CHANNEL, "tensor": FP8_TENSOR}.get(str(strategy))
        return form and replace(form, tensor_scales=static)
    if (kind, bits) == ("float", 4):
        nvfp4 = NVFP4 if inputs else replace(NVFP4, tensor_scales=1)
        return nvfp4 if size == 16 else MXFP4 if size == 32 else None
    if kind != "int" or type(bits) is not int or bits not in (4, 8):
        return None
    grouped = strategy == "group" or (strategy is None and size is not None)
    if grouped and not _positive(size):
        return None
    zero_bits = 0 if weights.get("symmetric", True) or inputs else bits
    scale_bytes = 4 if inputs else 2
    return Quantisation(
        f"int{bits}, a scale per {size}" if grouped else f"int{bits}",
        bits,
        scale_bytes,
        None if strategy == "tensor" else 1,
        size if grouped else None,
        zero_point_bits=zero_bits,
        tensor_scales=static,
    )


TOWERS = ("visual", "vision_tower", "vision_model", "audio_tower", "multi_modal_projector")
"""Modules that the tools of GPTQ and AWQ leave alone whether they say so or not: they know text layers only."""


def _gptq(declared: Mapping[str, Any]) -> Quantisation | None:
    bits = declared.get("bits", declared.get("w_bit"))
    group = declared.get("group_size", declared.get("q_group_size"))
    if type(bits) is not int or bits not in (2, 3, 4, 8) or not (_positive(group) or group == -1):
        return None
    # A rule that gives single modules a form of their own is not read, and one that only leaves modules alone is.
    dynamic = _mapping(declared.get("dynamic"))
    if not all(str(rule).startswith("-:") for rule in dynamic):
        return None
    left_alone = tuple(f"re:{str(rule)[2:]}" for rule in dynamic)
    return Quantisation(
        f"int{bits}, a scale and a zero point per {group}" if group > 0 else f"int{bits}",
        bits,
        2,
        1,
        group if group > 0 else None,
        zero_point_bits=bits,
        excluded=(*_names(declared.get("modules_to_not_convert")), *left_alone, *TOWERS),
        head=declared.get("lm_head") is True,
        expert_biases=declared.get("quant_method") == "gptq",
    )


def _mxfp4(declared: Mapping[str, Any]) -> Quantisation:
    """OCP microscaling: 4-bit floats with a one-byte exponent per 32, in the experts only.

    source: vLLM 0.33, layers/quantization/mxfp4.py, layers/fused_moe/oracle/mxfp4.py (the default kernel's padding)
    """
    excluded = _names(declared.get("modules_to_not_convert"))
    name = "mxfp4, an exponent per 32, experts only"
    return Quantisation(name, 4, 1, 1, 32, excluded=excluded, experts_only=True, expert_multiple=64)


_READERS = {
    "fp8": _fp8,
    "deepseek_v4_fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed_tensors,
    "gptq": _gptq,
    "awq": _gptq,
    "mxfp4": _mxfp4,
}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _positive(value: object) -> bool:
    return type(value) is int and value > 0


def _names(value: object) -> tuple[str, ...]:
    return tuple(str(v) for v in value) if isinstance(value, Iterable) and not isinstance(value, str) else ()
