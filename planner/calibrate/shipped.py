"""The calibrations that ship with planner: their names, loading one, writing one."""

from collections.abc import Iterator
from functools import cache
from itertools import chain

from planner.calibration import Calibration, SmallKernels
from planner.catalog import bundled, load_calibration, names
from planner.documents import load_mapping, to_yaml, validate
from planner.errors import InputError, nearest
from planner.inputs import Accelerator
from planner.origin import Origin

SMALL_KERNELS = "profiles/kernels/small.yaml"
ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm", "generic": "vllm"}
"""Kind of an engine profile -> how calibrations name the engine."""
STANDS_IN = {"8": "a100-sxm-80gb", "9": "h100-sxm", "10": "b200-sxm", "12": "rtx-pro-6000-server"}
"""Major compute capability -> the measured GPU whose constants stand in for one that nobody measured."""
ALIKE = {"rtx-4090": "rtx-pro-6000-server"}
"""The same for one GPU, where another architecture is more like it: both are boards with GDDR memory and tensor cores
that their power sustains. Chosen on a run of vLLM (tests/oracles/traces), for which the A100's constants and the L40S's
are a quarter too slow."""


def calibration_names() -> list[str]:
    """Shipped calibrations, sorted."""
    return names("calibration")


@cache
def shipped_calibration(name: str) -> Calibration:
    """A calibration by shipped name only, as tables that strangers wrote may name it.

    raises: InputError with the nearest names
    """
    known = calibration_names()
    if name not in known:
        raise InputError(f"calibration {name!r} is not shipped{nearest(name, known)}")
    return load_calibration(name)


def calibrations_for(gpu: Accelerator, kind: str, measured_on: str | None = None) -> Iterator[Calibration]:
    """Calibrations that price an engine's kernels on a GPU, by preference; each file is read when it is asked for.

    Its own first; then those that it borrows from; then other engines' on the same GPU.

    kind: of the engine profile
    measured_on: the GPU whose constants are used; None: this one, or where nobody measured it one alike
    raises: InputError where nobody measured the GPU that is asked for
    """
    known, engine = calibration_names(), ENGINES[kind]
    capability = (gpu.compute_capability or "9.0").split(".")[0]
    base = measured_on or gpu.name
    if measured_on is None and f"{base}-{engine}" not in known:
        base = ALIKE.get(base) or STANDS_IN.get(capability, "h100-sxm")
    own = shipped_calibration(f"{base}-{engine}")
    lenders = [borrowed.calibration for borrowed in own.borrowed]
    others = [f"{base}-{other}" for other in ("sglang", "trtllm", "vllm")]
    names = [name for name in dict.fromkeys((*lenders, *others)) if name in known and name != own.name]
    return chain((own,), (shipped_calibration(name) for name in names))


def small_kernels() -> SmallKernels:
    """The constants of small kernels."""
    path = bundled() / SMALL_KERNELS
    return validate(SmallKernels, load_mapping(path), Origin(str(path)))


def calibration_yaml(calibration: Calibration) -> str:
    """YAML with a line or two per set of constants or errors."""
    return to_yaml(calibration.model_dump(mode="json", exclude_defaults=True), flow_leaves=True)
