"""The device to measure: torch and the driver checked, one clear line for what is missing, and the device's card.

NVML ignores CUDA_VISIBLE_DEVICES, so a GPU is found there by its UUID. Any NVML call may be refused: what it would
have said is then null. Clocks and modes are read, never set.
"""

import importlib
import platform
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from planner.errors import InputError, MachineError
from planner.units import MIB

LEAST_TORCH = (2, 11)
SLOWDOWNS = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake slowdown",
}
"""NVML's reasons for lower clocks that make a timing worthless."""
APPLICATION_CLOCKS = 0x2
"""NVML's reason that someone set lower clocks."""
LOW_CLOCK_SHARE = 0.7
"""A clock under this share of the highest deserves a note, whatever the driver says of it."""
POWER_CAP = 0x4
"""NVML's reason that only says the power limit holds: usual under load, so a note."""
PROFILES = {
    "Tesla T4": "t4",
    "Tesla V100-SXM2-16GB": "v100-sxm2-16gb",
    "Tesla V100-SXM2-32GB": "v100-sxm2-32gb",
    "NVIDIA A10": "a10",
    "NVIDIA A10G": "a10g",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H200": "h200-sxm",
    "NVIDIA B200": "b200-sxm",
    "NVIDIA B300 SXM6 AC": "b300-sxm",
    "NVIDIA GB200": "gb200",
    "NVIDIA GB300": "gb300",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000-workstation",
}
"""The driver's name of a GPU -> planner's accelerator."""


@dataclass(frozen=True, slots=True)
class Card:
    """What a device says about itself; None for what it does not say."""

    name: str
    uuid: str | None = None
    driver: str | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    memory_bytes: int | None = None
    l2_bytes: int = 0
    """Last-level cache that timings must not find warm [B]."""
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_limit_w: float | None = None
    ecc: bool | None = None
    temperature_c: int | None = None
    other_processes: tuple[str, ...] = ()
    """Each as "pid 123 (4,567 MiB)"."""
    notes: tuple[str, ...] = ()

    @property
    def profile(self) -> str | None:
        """planner's name of the accelerator, if the driver's is known."""
        return PROFILES.get(self.name)


@dataclass(slots=True)
class Watch:
    """Why clocks were lowered while a point was timed, and the lowest clock seen."""

    nvml: "Nvml"
    reasons: int = 0
    lowest_sm_clock_mhz: int | None = None

    def reset(self) -> None:
        """Start on another point."""
        self.reasons, self.lowest_sm_clock_mhz = 0, None

    def observe(self) -> None:
        """Look once, while the device works."""
        self.reasons |= self.nvml.slowdown_reasons() or 0
        clock = self.nvml.clock("SM")
        if clock is not None:
            self.lowest_sm_clock_mhz = min(clock, self.lowest_sm_clock_mhz or clock)

    @property
    def throttled(self) -> tuple[str, ...]:
        """Reasons that make the point worthless."""
        return tuple(name for bit, name in SLOWDOWNS.items() if self.reasons & bit)

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons that a reader should know."""
        named = {POWER_CAP: "the power limit", APPLICATION_CLOCKS: "the application clocks setting"}
        held = tuple(f"{name} held the clocks down" for bit, name in named.items() if self.reasons & bit)
        return held or self._unexplained

    @property
    def _unexplained(self) -> tuple[str, ...]:
        """A low clock for which the driver names no reason."""
        lowest, most = self.lowest_sm_clock_mhz, self.nvml.clock("SM", most=True)
        if self.throttled or lowest is None or most is None or lowest >= LOW_CLOCK_SHARE * most:
            return ()
        return (f"the SM clock was under {LOW_CLOCK_SHARE:.0%} of its highest, and the driver names no reason",)


@dataclass(slots=True)
class Nvml:
    """One GPU through NVML; with no module or handle, everything is unknown."""

    module: Any = None
    handle: Any = None
    refused: set[str] = field(default_factory=set)
    """Calls that the driver does not answer here."""

    def ask(self, call: str, *arguments: object) -> Any:
        """A call's answer for this GPU; None where it is refused."""
        if self.module is None or self.handle is None:
            return None
        try:
            return getattr(self.module, call)(self.handle, *arguments)
        except (self.module.NVMLError, AttributeError):
            self.refused.add(call)
            return None

    def clock(self, kind: str, *, most: bool = False) -> int | None:
        """Clock of "SM" or "MEM" [MHz]."""
        call = "nvmlDeviceGetMaxClockInfo" if most else "nvmlDeviceGetClockInfo"
        found: int | None = self.ask(call, getattr(self.module, f"NVML_CLOCK_{kind}", None))
        return found

    def slowdown_reasons(self) -> int | None:
        """Bits that say why clocks are lower than they could be; the second name is of older drivers."""
        found: int | None = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if found is None:
            found = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return found

    def driver(self) -> str | None:
        """The driver's version."""
        try:
            return _text(self.module.nvmlSystemGetDriverVersion())
        except (AttributeError, getattr(self.module, "NVMLError", AttributeError)):
            return None


def watch_of(torch: ModuleType, index: int) -> Watch:
    """A watch on one GPU of this process; it sees nothing where NVML does not answer."""
    try:
        module = start_nvml()
    except MachineError:
        module = None
    return Watch(Nvml(module, _handle(module, str(torch.cuda.get_device_properties(index).uuid))))


def require_torch(load: Callable[[str], ModuleType] = importlib.import_module) -> ModuleType:
    """torch, recent enough.

    raises: MachineError that says what to install
    """
    install = "pip install 'llm-serving-planner[calibrate]'"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # torch works without it, and so do we
            torch = load("torch")
    except ImportError:
        raise MachineError(f"torch is not installed, and calibrate measures with it: {install}") from None
    except OSError as error:  # a shared library that is missing or does not fit
        raise MachineError(f"torch is installed but does not load: {str(error).splitlines()[0]}") from error
    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if not version or (int(version[1]), int(version[2])) < LEAST_TORCH:
        least = ".".join(map(str, LEAST_TORCH))
        raise MachineError(f"torch {torch.__version__} is too old: calibrate needs {least} or newer: {install}")
    return torch


def parse_device(given: str) -> int | None:
    """The index of a CUDA device, or None for the CPU.

    raises: InputError for any other spelling
    """
    if given == "cpu":
        return None
    match = re.fullmatch(r"cuda(?::(\d{1,3}))?", given)
    if match is None:
        raise InputError(f"--device: {given!r} is not a device; accepted: cpu, cuda, cuda:0, cuda:1, ...")
    return int(match[1] or 0)


def start_nvml(load: Callable[[str], ModuleType] = importlib.import_module) -> ModuleType | None:
    """pynvml, initialised; None where the package is missing.

    raises: MachineError where there is no driver, or no permission to ask it
    """
    try:
        module = load("pynvml")
    except ImportError:
        return None
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        kind = type(error).__name__.removeprefix("NVMLError_")
        if kind in ("LibraryNotFound", "DriverNotLoaded"):
            raise MachineError(f"no NVIDIA driver is loaded here ({error}); {_CPU_HINT}") from None
        if kind == "NoPermission":
            raise MachineError(f"no permission to use the NVIDIA driver ({error}); {_CPU_HINT}") from None
        raise MachineError(f"the NVIDIA driver does not answer: {error}; {_CPU_HINT}") from None
    return module


_CPU_HINT = "planner calibrate --device cpu measures the CPU"


def processes_by_uuid(module: ModuleType | None) -> dict[str, tuple[str, ...]]:
    """Processes on each GPU, asked before this one touches a GPU: inside a container its own pid there is unknown."""
    found = dict[str, tuple[str, ...]]()
    if module is None:
        return found
    try:
        for index in range(module.nvmlDeviceGetCount()):
            handle = module.nvmlDeviceGetHandleByIndex(index)
            running = module.nvmlDeviceGetComputeRunningProcesses(handle)
            found[_text(module.nvmlDeviceGetUUID(handle))] = tuple(map(_process, running))
    except module.NVMLError:
        pass  # what was not answered stays unknown
    return found


def require_cuda(torch: ModuleType, index: int) -> None:
    """A CUDA device of this index.

    raises: MachineError that says which part is missing
    """
    if torch.version.cuda is None:
        raise MachineError(f"torch {torch.__version__} is built without CUDA; {_CPU_HINT}")
    if not torch.cuda.is_available():
        raise MachineError(f"torch finds no CUDA device; {_CPU_HINT}")
    count = torch.cuda.device_count()
    if index >= count:
        raise MachineError(f"cuda:{index}: this machine shows {count} CUDA device{'s' if count != 1 else ''}, from 0")


def cuda_card(
    torch: ModuleType,
    index: int,
    module: ModuleType | None,
    processes: Mapping[str, tuple[str, ...]],
    *,
    shared: bool,
) -> tuple[Card, Nvml]:
    """The card of one GPU, and NVML to watch it by.

    processes: what ran on each GPU before this process touched one
    shared: other processes on it are accepted
    raises: MachineError for a MIG slice, and for other processes unless shared
    """
    properties = torch.cuda.get_device_properties(index)
    uuid = str(properties.uuid)
    nvml = Nvml(module, _handle(module, uuid))
    mig = nvml.ask("nvmlDeviceGetMigMode")
    if (mig is not None and mig[0] == 1) or uuid.startswith("MIG-") or "MIG" in properties.name:
        raise MachineError(
            f"cuda:{index} ({properties.name}) is in MIG mode: a slice has neither the GPU's bandwidth nor its "
            "multiprocessors; calibrate a whole GPU"
        )
    full = next((known for known in processes if known.removeprefix("GPU-") == uuid.removeprefix("GPU-")), None)
    others = processes[full] if full else ()
    if others and not shared:
        raise MachineError(
            f"cuda:{index} is used by other processes, and timings would be wrong: {', '.join(others)}; --shared "
            "measures all the same"
        )
    return _card(properties, nvml, others, checked=full is not None), nvml


def _card(properties: Any, nvml: Nvml, others: tuple[str, ...], *, checked: bool) -> Card:
    memory, limit = nvml.ask("nvmlDeviceGetMemoryInfo"), nvml.ask("nvmlDeviceGetEnforcedPowerLimit")
    ecc = nvml.ask("nvmlDeviceGetEccMode")
    unwatched = "NVML does not answer: clocks, throttling and other processes are unknown"
    notes = () if nvml.handle is not None else (unwatched,)
    if nvml.handle is not None and not checked:
        notes = ("the driver does not list the processes on the GPU: others may have run",)
    return Card(
        name=properties.name,
        uuid=str(properties.uuid),
        driver=nvml.driver(),
        compute_capability=f"{properties.major}.{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        memory_bytes=memory.total if memory is not None else properties.total_memory,
        l2_bytes=properties.L2_cache_size,
        sm_clock_mhz=nvml.clock("SM"),
        max_sm_clock_mhz=nvml.clock("SM", most=True),
        memory_clock_mhz=nvml.clock("MEM"),
        power_limit_w=limit / 1000 if limit is not None else None,
        ecc=bool(ecc[0]) if ecc is not None else None,
        temperature_c=nvml.ask("nvmlDeviceGetTemperature", getattr(nvml.module, "NVML_TEMPERATURE_GPU", 0)),
        other_processes=others,
        notes=notes,
    )


def cpu_card(torch: ModuleType, configuration: Callable[[str], int | None]) -> Card:
    """The card of this machine's CPU, with the vector instructions that torch uses.

    configuration: a named system figure, as os.sysconf gives it, or None
    """
    pages, page = configuration("SC_PHYS_PAGES"), configuration("SC_PAGE_SIZE")
    return Card(
        name=f"{platform.processor() or platform.machine()} CPU, {torch.backends.cpu.get_cpu_capability()}",
        memory_bytes=pages * page if pages and page else None,
        l2_bytes=configuration("SC_LEVEL2_CACHE_SIZE") or 2 * MIB,
        notes=("a CPU core: a check of the method and a figure of this machine, never of a GPU; L3 stays warm",),
    )


def _handle(module: ModuleType | None, uuid: str) -> Any:
    """NVML's handle of a GPU; torch leaves the prefix of the UUID out."""
    if module is None:
        return None
    for spelling in dict.fromkeys((uuid, f"GPU-{uuid}")):
        try:
            return module.nvmlDeviceGetHandleByUUID(spelling)
        except module.NVMLError:
            continue
    return None


def _process(process: Any) -> str:
    memory = process.usedGpuMemory
    return f"pid {process.pid}" + (f" ({memory // MIB:,} MiB)" if memory is not None else "")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
