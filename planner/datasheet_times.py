"""Prices of kernels that no measurement went into: datasheet peaks, and nothing between the kernels."""

from decimal import Decimal
from itertools import product
from typing import get_args

from planner.calibration import Calibration, Errors, Family, FittedKernel, KernelConstants, SmallKernels
from planner.inputs import Accelerator
from planner.kernel_times import GEMM_KEYS, KernelTimes

NOTHING = Decimal("1e-9")
"""Of times that must be positive [us]."""
ATTENTION_KEYS = ("bfloat16", "fp8", "bfloat16+fp8_kv")


def datasheet_times(gpu: Accelerator) -> KernelTimes:
    """A roofline: every kernel takes the longer of its bytes and its arithmetic at the datasheet's peaks.

        max(b / W, f / F)

    gpu: W, its memory bandwidth, and F, its dense peaks [B/s, FLOP/s]
    returns: prices [s]
    assumes: no launches, no host, no server; messages at the link's bandwidth and 5 us a hop
    source: Williams et al. 2009, doi:10.1145/1498765.1498785 (the maximum as a 16-norm)
    """
    constants = KernelConstants(floor_us=float(NOTHING), memory_efficiency=1, compute_efficiency=1, norm=16)
    fit = Errors(points=0, median_percent=0, p90_percent=0, max_percent=0, bias_percent=0)
    keys = [(family, key) for family, key in product(get_args(Family), (*GEMM_KEYS, *ATTENTION_KEYS))]
    kernels = tuple(
        FittedKernel(family=family, key=key, version="datasheet", constants=constants, residual=fit)
        for family, key in dict.fromkeys(keys)
        if family != "collective"
    )
    calibration = Calibration(
        name="datasheet",
        gpu=gpu.name,
        engine="vllm",
        engine_version="none",
        peaks=gpu.source,
        points_used=1,
        holdout_rule="nothing is fitted",
        selection="nothing is measured",
        kernels=kernels,
        source=gpu.source,
        as_of=gpu.as_of,
    )
    small = SmallKernels(
        launch_us=NOTHING,
        memory_efficiency=Decimal(1),
        host_launch_us=NOTHING,
        host_step_us=NOTHING,
        host_step_request_us=NOTHING,
        server_request_us=NOTHING,
        server_token_us=NOTHING,
        source=gpu.source,
        as_of=gpu.as_of,
    )
    return KernelTimes(gpu, (calibration,), small)
