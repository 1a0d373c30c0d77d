"""Datasheet peaks of an accelerator, as the points of one kernel family need them."""

from planner.calibrate.forms import Peaks
from planner.calibrate.points import DTYPE_BYTES, CollectivePoint, DecodePoint, MoePoint, Point, PrefillPoint
from planner.catalog import load_accelerator, names
from planner.errors import InputError, nearest
from planner.inputs import Accelerator
from planner.units import GB, MIB

ARITHMETIC = {
    "bfloat16": "bf16_dense_tflops",
    "float16": "bf16_dense_tflops",
    "int8_wo": "bf16_dense_tflops",
    "int4_wo": "bf16_dense_tflops",
    "w4a16_mxfp4": "bf16_dense_tflops",
    "fp8": "fp8_dense_tflops",
    "fp8_block": "fp8_dense_tflops",
    "w4afp8": "fp8_dense_tflops",
    "w4a8_mxfp4_mxfp8": "fp8_dense_tflops",
    "nvfp4": "fp4_dense_tflops",
    "sq": "int8_dense_tops",
}
"""dtype of a kernel -> the datasheet peak of its arithmetic."""


def shipped_accelerator(name: str) -> Accelerator:
    """An accelerator by shipped name only, as tables that strangers wrote may name it.

    raises: InputError with the nearest names
    """
    known = names("accelerator")
    if name not in known:
        raise InputError(f"accelerator {name!r} is not shipped{nearest(name, known)}")
    return load_accelerator(name)


def peaks_for(gpu: Accelerator, point: Point) -> Peaks:
    """Peaks for points like this one, with the L2 cache warm as in a loop over one call.

    raises: InputError where the datasheet has no such peak, or planner no size of the dtype
    """
    bandwidth, cache = float(gpu.hbm_gb_per_s) * GB, float(gpu.l2_mib or 0) * MIB
    if isinstance(point, CollectivePoint):
        return Peaks(bandwidth, 1.0)
    dtypes = {point.dtype, point.kv_dtype} if isinstance(point, PrefillPoint) else {getattr(point, "dtype", "bfloat16")}
    unknown = sorted(dtypes - DTYPE_BYTES.keys())
    # an fp8 cache is widened before the products of decode, so their peak stays that of 16 bits
    dtype = "bfloat16" if isinstance(point, DecodePoint) else getattr(point, "dtype", "bfloat16")
    if unknown or dtype not in ARITHMETIC:
        raise InputError(f"planner knows no size and peak of the dtype {', '.join(unknown) or dtype}")
    peak = getattr(gpu, ARITHMETIC[dtype])
    if peak is None:
        raise InputError(f"accelerator {gpu.name} gives no {ARITHMETIC[dtype]}, which {dtype} refers to")
    # weights of MoE layers in the tables exceed every L2
    return Peaks(bandwidth, float(peak) * 1e12, 0.0 if isinstance(point, MoePoint) else cache)
