"""Weight bytes of one rank: computed from the config, and corrected by the checkpoint's own figures."""

from collections.abc import Mapping

from planner.blocks import Stack
from planner.inputs import Weights
from planner.quantisation import Quantisation
from planner.sharding import Ranks, Stage, stages, weight_bytes
from planner.units import DTYPE_BYTES, ceil_div

CHECKPOINT_FLOATS = {"F32": 4, "F16": 2, "BF16": 2}
"""Safetensors dtypes that the engine converts to the dtype it serves an unquantised model in."""

ALIASES = {"half": "float16", "float": "float32", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


def checkpoint_dtype(config: Mapping[str, object]) -> str | None:
    """The dtype a config declares (dtype or torch_dtype), or None."""
    for field in ("dtype", "torch_dtype"):
        value = config.get(field)
        if isinstance(value, str):
            name = value.removeprefix("torch.")
            return ALIASES.get(name, name)
    return None


def served_dtype(config: Mapping[str, object], asked: str, *, has_bf16: bool = True) -> str:
    """The dtype an engine serves the model in: as asked, else the checkpoint's, and bfloat16 for float32 ones.

    has_bf16: the device computes in bfloat16; without it auto is float16

    source: vLLM 0.33, config/model.py _resolve_auto_dtype
    """
    if asked != "auto":
        return ALIASES.get(asked, asked)
    declared = checkpoint_dtype(config)
    if not has_bf16:
        return "float16"
    return declared if declared in ("float16", "bfloat16") else "bfloat16"


def published_bytes(stack: Stack, dtype: str, quantisation: Quantisation | None) -> int:
    """Bytes of the whole model without the engine's vocabulary padding [B]."""
    total = 0
    for count, tensor, form in stages(stack, 1)[0].forms(stack, quantisation):
        if form and tensor.quantisable:
            size = tensor.copies * form.weight_bytes(tensor.rows, tensor.cols)
        else:
            size = tensor.elements * DTYPE_BYTES[tensor.dtype or dtype]
        total += count * size
    return total


def loaded_bytes(stack: Stack, weights: Weights, config: Mapping[str, object], dtype: str, quantised: bool) -> int:
    """Bytes of a checkpoint once the engine has loaded it in its dtype [B].

    An unquantised checkpoint is converted: its float tensors count in the served dtype, but for those that the
    engine keeps in float32. A quantised one is loaded as it is.
    """
    if quantised:
        return weights.total_bytes
    stored = weights.bytes_by_dtype
    if not stored:
        declared = DTYPE_BYTES.get(checkpoint_dtype(config) or dtype, DTYPE_BYTES[dtype])
        return weights.total_bytes // declared * DTYPE_BYTES[dtype]
    kept = sum(
        count * tensor.elements * (DTYPE_BYTES[tensor.dtype] - DTYPE_BYTES[dtype])
        for count, tensor in stack.tensors()
        if tensor.dtype
    )
    converted = sum(
        size // CHECKPOINT_FLOATS[name] * DTYPE_BYTES[dtype] if name in CHECKPOINT_FLOATS else size
        for name, size in stored.items()
    )
    return converted + kept


def rank_bytes(
    stack: Stack,
    stage: Stage,
    ranks: Ranks,
    dtype: str,
    quantisation: Quantisation | None,
    checkpoint_bytes: int | None,
) -> int:
    """Weights on one rank [B].

    checkpoint_bytes: what the whole checkpoint takes once loaded; its difference from the config's figure is
        spread over ranks as the config's weights are, so that one rank alone is exact
    """
    computed = weight_bytes(stack, stage, ranks, dtype, quantisation)
    if checkpoint_bytes is None:
        return computed
    whole = weight_bytes(stack, stages(stack, 1)[0], Ranks(), dtype, quantisation)
    difference = checkpoint_bytes - published_bytes(stack, dtype, quantisation)
    return computed + ceil_div(difference * computed, whole)
