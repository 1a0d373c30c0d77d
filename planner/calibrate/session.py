"""Opening a device to measure, and what a run records about it."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import ModuleType

from planner import __version__, catalog
from planner.calibrate.device import (
    Card,
    Nvml,
    Watch,
    cpu_card,
    cuda_card,
    processes_by_uuid,
    require_cuda,
    require_torch,
    start_nvml,
)
from planner.calibrate.kernels import open_lab
from planner.calibrate.run import Bench, Peaks
from planner.calibrate.timing import CudaTimer, WallTimer
from planner.calibration_run import Environment
from planner.errors import InputError, MachineError
from planner.inputs import Accelerator

QUICK_BUDGET_S, FULL_BUDGET_S = 0.1, 0.6
"""Time for one point on a CPU, whose points are as slow as they are."""
RANKS = (2, 4, 8)
FP8_CAPABILITY = (8, 9)
"""First compute capability with fp8 tensor cores."""
BF16_CAPABILITY = (8, 0)
"""First compute capability with bfloat16 tensor cores."""


@dataclass(frozen=True, slots=True)
class Device:
    """An opened device."""

    torch: ModuleType
    index: int | None
    """Of the CUDA device; None: the CPU."""
    card: Card
    nvml: Nvml
    processes: Mapping[str, tuple[str, ...]]
    """Those on each GPU before the run."""

    @property
    def cuda(self) -> bool:
        """A GPU."""
        return self.index is not None

    @property
    def name(self) -> str:
        """As torch spells it."""
        return f"cuda:{self.index}" if self.cuda else "cpu"

    def default_dtypes(self) -> tuple[str, ...]:
        """What is measured unless --dtype says otherwise."""
        if not self.cuda:
            return "float32", "bfloat16"
        capability = tuple(int(part) for part in (self.card.compute_capability or "0.0").split("."))
        if capability < BF16_CAPABILITY:
            return ("float16",)
        return ("bfloat16", "fp8") if capability >= FP8_CAPABILITY else ("bfloat16",)


def open_device(index: int | None, configuration: Callable[[str], int | None], *, shared: bool) -> Device:
    """The device, checked.

    index: of the CUDA device; None for the CPU
    configuration: a named system figure, or None
    shared: other processes on the GPU are accepted
    raises: MachineError, one line, for whatever is missing
    """
    torch = require_torch()
    if index is None:
        return Device(torch, None, cpu_card(torch, configuration), Nvml(), {})
    if torch.version.cuda is None:
        require_cuda(torch, index)  # its message names the build, which no driver would help
    module = _nvml(torch)
    processes = processes_by_uuid(module)
    require_cuda(torch, index)
    torch.cuda.set_device(index)
    card, nvml = cuda_card(torch, index, module, processes, shared=shared)
    return Device(torch, index, card, nvml, processes)


def check_profile(accelerator: Accelerator | None, card: Card) -> None:
    """Refuse another shipped GPU's datasheet for a GPU that is known; a file of one's own is accepted.

    raises: InputError
    """
    if accelerator is None or card.profile in (None, accelerator.name):
        return
    if accelerator.name in catalog.names("accelerator"):
        raise InputError(f"--gpu {accelerator.name}: this GPU is an {card.name}, {card.profile}; leave --gpu out")


def _nvml(torch: ModuleType) -> ModuleType | None:
    """NVML; None where torch finds a GPU without it, which is then measured unwatched.

    raises: MachineError with NVML's reason where torch finds none either
    """
    try:
        return start_nvml()
    except MachineError:
        if torch.cuda.is_available():
            return None
        raise


def bench_of(device: Device, peaks: Peaks, *, quick: bool) -> Bench:
    """A bench on the device; of a CPU, one core: threads that wait for one another measure the other processes."""
    if not device.cuda:
        device.torch.set_num_threads(1)
    watch = Watch(device.nvml)
    budget = QUICK_BUDGET_S if quick else FULL_BUDGET_S
    timer = CudaTimer(device.torch.cuda, observe=watch.observe) if device.cuda else WallTimer(budget_s=budget)
    lab = open_lab(device.torch, device.name)
    return Bench(lab, device.cuda, timer, watch, device.card.l2_bytes, peaks)


def rank_counts(device: Device, *, shared: bool) -> tuple[tuple[int, ...], str, str | None]:
    """(numbers of ranks for all-reduce, its backend, why there are fewer than the machine has GPUs).

    Two processes of the CPU; on GPUs 2, 4 and 8 of those that are visible, none of them in use unless shared.
    """
    if not device.cuda:
        return (2,), "gloo", None
    count = device.torch.cuda.device_count()
    uuids = [f"GPU-{device.torch.cuda.get_device_properties(i).uuid}" for i in range(count)]
    busy = [i for i, uuid in enumerate(uuids) if device.processes.get(uuid)]
    if count > 1 and busy and not shared:
        used = ", ".join(f"cuda:{i}" for i in busy)
        return (), "nccl", f"all-reduce was left out: other processes use {used}; --shared measures all the same"
    return tuple(ranks for ranks in RANKS if ranks <= count), "nccl", None


def peaks_of(accelerator: Accelerator | None) -> Peaks:
    """The datasheet's peaks of a profile."""
    if accelerator is None:
        return Peaks()
    by_dtype = {
        "bfloat16": accelerator.bf16_dense_tflops,
        "float16": accelerator.fp16_dense_tflops,
        "fp8": accelerator.fp8_dense_tflops,
    }
    given = tuple((dtype, float(peak)) for dtype, peak in by_dtype.items() if peak is not None)
    return Peaks(float(accelerator.hbm_gb_per_s), given)


def environment(
    device: Device, accelerator: Accelerator | None, command: str, notes: tuple[str, ...] = ()
) -> Environment:
    """What a run says about the machine it measured."""
    torch, card, peaks = device.torch, device.card, peaks_of(accelerator)
    cudnn = torch.backends.cudnn.version() if device.cuda else None
    return Environment(
        measured_at=datetime.now(UTC).replace(microsecond=0),
        planner=__version__,
        command=command,
        device=card.name,
        accelerator=accelerator.name if accelerator else None,
        uuid=card.uuid,
        driver=card.driver,
        compute_capability=card.compute_capability,
        multiprocessors=card.multiprocessors,
        memory_bytes=card.memory_bytes,
        l2_bytes=card.l2_bytes,
        sm_clock_mhz=card.sm_clock_mhz,
        max_sm_clock_mhz=card.max_sm_clock_mhz,
        memory_clock_mhz=card.memory_clock_mhz,
        power_limit_w=card.power_limit_w,
        ecc=card.ecc,
        temperature_c=card.temperature_c,
        other_processes=card.other_processes,
        torch=torch.__version__,
        cuda=torch.version.cuda if device.cuda else None,
        cudnn=str(cudnn) if cudnn else None,
        python=platform.python_version(),
        platform=platform.platform(),
        threads=torch.get_num_threads(),
        datasheet_gb_per_s=peaks.gb_per_s,
        datasheet_tflop_per_s=dict(peaks.tflop_per_s),
        notes=(*card.notes, *notes),
    )
