"""How a checkpoint stores the weights of its linear layers: bits, scales, and the modules it leaves alone."""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import gcd
from typing import Any

from planner.errors import InputError
from planner.origin import Origin
from planner.printable import shown
from planner.units import ceil_div

SMALLEST_BLOCK = 32
"""Side of the smallest block that the engine can refine the blocks of an expert's slice to."""

CACHE_SCALES = 4
"""Query, key, value and probability scales that these methods create in each attention layer, in the model's
dtype (vLLM 0.33, model_executor/layers/quantization/kv_cache.py)."""


MAX_PATTERN = 300
MAX_REPEATS = 3
_REPEAT = re.compile(r"[*+{]|(?<!\()\?")
_UNBOUNDED = re.compile(r"\)[*+{]")
"""A repeated group can take exponential time to match, and no module pattern needs one."""


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
    cache_scales: int = 0
    """Scales of the KV cache in each attention layer, in the model's dtype."""
    excluded: tuple[str, ...] = ()
    """Module names or patterns that stay in the model's dtype."""

    def weight_bytes(self, rows: int, cols: int) -> int:
        """Stored bytes of one rows x cols weight matrix with its scales [B].

        source: vLLM 0.33, model_executor/layers/quantization (fp8.py, modelopt.py, awq.py, gptq.py)
        """
        groups = ceil_div(rows, self.scale_rows or rows) * ceil_div(cols, self.scale_cols or cols)
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

    def leaves_alone(self, module: str) -> bool:
        """True if the checkpoint keeps this module in the model's dtype (the output head always is)."""
        return module == "lm_head" or any(_matches(pattern, module) for pattern in self.excluded)


FP8_TENSOR = Quantisation("fp8, one scale per tensor", 8, 4, cache_scales=CACHE_SCALES)
FP8_CHANNEL = replace(FP8_TENSOR, name="fp8, one scale per output channel", scale_rows=1)

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

    config.json's quantization_config is read; hf_quant_config.json only where that is absent, and it counts
    only when its producer is modelopt. The engine takes a quantization_config that names no quant_method for
    none at all, and makes room for weights in the model's dtype (vLLM 0.33, config/model.py).
    raises: InputError for a method that planner does not know
    """
    declared = config.get("quantization_config") or config.get("compression_config")
    if declared is None:
        if not hf_quant_config or _mapping(hf_quant_config.get("producer")).get("name") != "modelopt":
            return None
        declared = {"quant_method": "modelopt", **_mapping(hf_quant_config.get("quantization"))}
    if not isinstance(declared, Mapping):
        raise InputError(f"{origin.at('quantization_config')}: a mapping is needed, not {shown(declared)}")
    method = str(declared.get("quant_method") or "").lower()
    if not method:
        return None
    reader = _READERS.get(method.split("_")[0] if method.startswith("modelopt") else method)
    found = reader(declared) if reader else None
    if found is None:
        raise InputError(
            f"{origin.at('quantization_config')}: weight quantisation {shown(method)} in this form is not known; "
            f"known: {', '.join(sorted(_READERS))}. Give memory.weights_gib, or a checkpoint "
            "directory, to plan with weights of a known size"
        )
    return found


def _fp8(declared: Mapping[str, Any]) -> Quantisation | None:
    block = declared.get("weight_block_size")
    excluded = _names(declared.get("modules_to_not_convert") or declared.get("ignored_layers"))
    if block:
        if not isinstance(block, list) or len(block) != 2 or not all(_positive(side) for side in block):
            return None
        rows, cols = block
        name = f"fp8, one scale per {rows}x{cols} block"
        return replace(FP8_TENSOR, name=name, scale_rows=rows, scale_cols=cols, excluded=excluded)
    static = 1 if declared.get("activation_scheme") == "static" else 0
    return replace(FP8_TENSOR, tensor_scales=static, excluded=excluded)


def _modelopt(declared: Mapping[str, Any]) -> Quantisation | None:
    algorithm = str(declared.get("quant_algo", "")).upper()
    excluded = _names(declared.get("exclude_modules") or declared.get("ignore"))
    if algorithm == "FP8":
        return replace(FP8_TENSOR, tensor_scales=1, excluded=excluded)
    if algorithm == "NVFP4":
        name = "nvfp4, an fp8 scale per 16"
        return Quantisation(name, 4, 1, 1, 16, tensor_scales=2, cache_scales=CACHE_SCALES, excluded=excluded)
    return None


def _compressed_tensors(declared: Mapping[str, Any]) -> Quantisation | None:
    groups = declared.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        return None
    weights = _mapping(_mapping(next(iter(groups.values()))).get("weights"))
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    excluded = _names(declared.get("ignore"))
    if kind == "float" and bits == 8 and strategy in ("channel", "tensor"):
        form = FP8_CHANNEL if strategy == "channel" else FP8_TENSOR
        return replace(form, excluded=excluded)
    group = weights.get("group_size") if strategy == "group" else None
    if kind == "int" and type(bits) is int and bits in (4, 8) and (group is None or _positive(group)):
        return Quantisation(f"int{bits}", bits, 2, 1, group, cache_scales=CACHE_SCALES, excluded=excluded)
    return None


def _gptq(declared: Mapping[str, Any]) -> Quantisation | None:
    bits = declared.get("bits", declared.get("w_bit"))
    group = declared.get("group_size", declared.get("q_group_size"))
    if type(bits) is not int or bits not in (2, 3, 4, 8) or not (_positive(group) or group == -1):
        return None
    return Quantisation(
        f"int{bits}, a scale and a zero point per {group}" if group > 0 else f"int{bits}",
        bits,
        2,
        1,
        group if group > 0 else None,
        zero_point_bits=bits,
        excluded=_names(declared.get("modules_to_not_convert")),
    )


_READERS = {
    "fp8": _fp8,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed_tensors,
    "gptq": _gptq,
    "awq": _gptq,
}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _positive(value: object) -> bool:
    return type(value) is int and value > 0


def _names(value: object) -> tuple[str, ...]:
    return tuple(str(v) for v in value) if isinstance(value, Iterable) and not isinstance(value, str) else ()


@cache
def _pattern(text: str) -> re.Pattern[str]:
    """A module pattern without its layer prefix: 're:' is a regular expression, '*' any text, else a name."""
    text = re.sub(r"^(re:)?(\.\*|\*)?(model\.)?layers\.(\d+|\*|\\d\+)\.", r"\1", text)
    if not text.startswith("re:"):
        first, *rest = (re.escape(part) for part in text.split("*"))
        *middle, last = rest or [""]
        # each middle part where it first occurs, for good: no pattern can take long
        return re.compile(first + "".join(f"(?>.*?{part})" for part in middle) + (".*" + last if rest else ""))
    if len(text) > MAX_PATTERN or _UNBOUNDED.search(text) or len(_REPEAT.findall(text)) > MAX_REPEATS:
        raise InputError(f"quantization_config: {text[:80]!r} repeats too much for a pattern of module names")
    try:
        with warnings.catch_warnings(action="ignore"):  # about doubtful forms, which are a stranger's to write
            return re.compile(text[3:])
    except (re.error, OverflowError) as error:
        raise InputError(f"quantization_config: {text!r} is not a regular expression: {error}") from error


def _matches(pattern: str, module: str) -> bool:
    """True if the pattern names the module, one of its parents, or a last part of it."""
    compiled = _pattern(pattern)
    parts = module.split(".")
    return any(
        compiled.fullmatch(".".join(parts[start:stop]))
        for start in range(len(parts))
        for stop in range(start + 1, len(parts) + 1)
    )
