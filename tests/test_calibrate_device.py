"""What is missing is said in one line; NVML may refuse any question; a GPU is found by its UUID."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from planner import catalog
from planner.calibrate import device as devices
from planner.calibrate.device import Nvml, Watch, cuda_card, parse_device, require_cuda, require_torch, start_nvml
from planner.errors import InputError, MachineError

UUID = "5a1b2c3d-0000-1111-2222-333344445555"
GPU = f"GPU-{UUID}"


class SimulatedNvmlError(Exception):
    """pynvml.NVMLError."""


class NVMLError_NotSupported(SimulatedNvmlError):  # noqa: N801, N818 - pynvml's name
    """What a card or a container does not offer."""


class NVMLError_DriverNotLoaded(SimulatedNvmlError):  # noqa: N801, N818 - pynvml's name
    """No driver."""


class NVMLError_NoPermission(SimulatedNvmlError):  # noqa: N801, N818 - pynvml's name
    """The device files are not ours to open."""


@dataclass
class SimulatedNvml:
    """pynvml with one GPU; each name in `refuses` raises NotSupported."""

    refuses: tuple[str, ...] = ()
    fails: SimulatedNvmlError | None = None
    reasons: int = 0
    mig: int = 0
    processes: tuple[tuple[int, int | None], ...] = ()
    asked: list[str] = field(default_factory=list)
    NVMLError = SimulatedNvmlError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def answers(self) -> dict[str, Callable[..., Any]]:
        running = [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes]
        return {
            "nvmlInit": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: b"570.1",
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda _: "handle",
            "nvmlDeviceGetHandleByUUID": self.by_uuid,
            "nvmlDeviceGetUUID": lambda _: GPU,
            "nvmlDeviceGetComputeRunningProcesses": lambda _: running,
            "nvmlDeviceGetMigMode": lambda _: [self.mig, self.mig],
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=80 * 2**30),
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
            "nvmlDeviceGetEccMode": lambda _: [1, 1],
            "nvmlDeviceGetClockInfo": lambda _, kind: 1980 if kind == self.NVML_CLOCK_SM else 2619,
            "nvmlDeviceGetMaxClockInfo": lambda *_: 1980,
            "nvmlDeviceGetTemperature": lambda *_: 35,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: self.reasons,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: self.reasons,
        }

    def by_uuid(self, uuid: str) -> str:
        if uuid != GPU:
            raise NVMLError_NotSupported("not found")
        return "handle"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        self.asked.append(name)
        if self.fails:
            raise self.fails
        if name in self.refuses:

            def refuse(*_: object) -> None:
                raise NVMLError_NotSupported(name)

            return refuse
        return self.answers()[name]


def nvml_of(simulated: SimulatedNvml) -> ModuleType:
    return simulated  # type: ignore[return-value]


def simulated_torch(name: str = "NVIDIA H100 80GB HBM3", count: int = 1, cuda: str | None = "13.0") -> Any:
    properties = SimpleNamespace(
        name=name,
        uuid=UUID,
        major=9,
        minor=0,
        multi_processor_count=132,
        total_memory=79 * 2**30,
        L2_cache_size=50 * 2**20,
    )
    namespace = SimpleNamespace(
        is_available=lambda: count > 0, device_count=lambda: count, get_device_properties=lambda _: properties
    )
    return SimpleNamespace(__version__="2.13.0", version=SimpleNamespace(cuda=cuda), cuda=namespace)


def card_of(simulated: SimulatedNvml, *, shared: bool = False, **torch: Any) -> devices.Card:
    module = nvml_of(simulated)
    processes = devices.processes_by_uuid(module)
    return cuda_card(simulated_torch(**torch), 0, module, processes, shared=shared)[0]


def test_devices_are_spelt_as_torch_spells_them() -> None:
    assert (parse_device("cpu"), parse_device("cuda"), parse_device("cuda:3")) == (None, 0, 3)
    for bad in ("gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", ""):
        with pytest.raises(InputError, match="--device"):
            parse_device(bad)


def test_torch_missing_broken_or_old_is_one_line() -> None:
    def raising(error: Exception) -> Callable[[str], ModuleType]:
        def load(_: str) -> ModuleType:
            raise error

        return load

    def version(text: str) -> Callable[[str], ModuleType]:
        return lambda _: SimpleNamespace(__version__=text)  # type: ignore[return-value]

    for load, expected in (
        (raising(ImportError("torch")), r"torch is not installed.*calibrate\]"),
        (raising(OSError("libcudart.so.13: cannot open\nmore")), "does not load: libcudart.so.13: cannot open$"),
        (version("2.10.1+cu128"), "2.10.1.* is too old: calibrate needs 2.11"),
        (version("unknown"), "too old"),
    ):
        with pytest.raises(MachineError, match=expected) as caught:
            require_torch(load)
        assert len(caught.value.problems) == 1
        assert caught.value.exit_code == 4
    assert require_torch(version("2.11.0a0+git")) is not None
    assert require_torch(version("3.0.0")) is not None


def test_no_gpu_no_driver_no_permission_are_one_line_each() -> None:
    for torch, index, expected in (
        (simulated_torch(cuda=None), 0, "built without CUDA"),
        (simulated_torch(count=0), 0, "finds no CUDA device"),
        (simulated_torch(count=2), 2, "cuda:2: this machine shows 2 CUDA devices"),
    ):
        with pytest.raises(MachineError, match=expected):
            require_cuda(torch, index)
    for error, expected in (
        (NVMLError_DriverNotLoaded("Driver Not Loaded"), "no NVIDIA driver.*--device cpu"),
        (NVMLError_NoPermission("Insufficient Permissions"), "no permission to use the NVIDIA driver"),
        (SimulatedNvmlError("GPU is lost"), "does not answer: GPU is lost"),
    ):
        with pytest.raises(MachineError, match=expected):
            start_nvml(lambda _, error=error: nvml_of(SimulatedNvml(fails=error)))  # type: ignore[misc]


def test_without_the_nvml_package_a_gpu_is_measured_unwatched() -> None:
    def missing(_: str) -> ModuleType:
        raise ImportError

    assert start_nvml(missing) is None
    card, nvml = cuda_card(simulated_torch(), 0, None, devices.processes_by_uuid(None), shared=False)
    assert card.memory_bytes == 79 * 2**30
    assert card.power_limit_w is None
    assert "NVML does not answer" in card.notes[0]
    assert nvml.slowdown_reasons() is None


def test_a_card_has_what_the_driver_says() -> None:
    simulated = SimulatedNvml()
    card = card_of(simulated)
    assert card.driver == "570.1"
    assert card.memory_bytes == 80 * 2**30
    assert (card.sm_clock_mhz, card.memory_clock_mhz) == (1980, 2619)
    assert (card.power_limit_w, card.ecc, card.temperature_c) == (700, True, 35)
    assert (card.compute_capability, card.multiprocessors, card.l2_bytes) == ("9.0", 132, 50 * 2**20)
    assert card.profile == "h100-sxm"
    assert not [name for name in simulated.asked if "Set" in name], "clocks and modes are never set"


@pytest.mark.parametrize("refused", [name for name in SimulatedNvml().answers() if name != "nvmlInit"])
def test_any_call_may_be_refused(refused: str) -> None:
    simulated = SimulatedNvml(refuses=(refused,))
    card = card_of(simulated)
    assert card.name == "NVIDIA H100 80GB HBM3"
    watch = Watch(Nvml(nvml_of(simulated), "handle"))
    watch.observe()
    assert watch.throttled == ()


def test_another_process_is_named_and_refused_unless_shared() -> None:
    busy = SimulatedNvml(processes=((4711, 2**30), (4712, None)))
    with pytest.raises(MachineError, match=r"pid 4711 \(1,024 MiB\), pid 4712; --shared"):
        card_of(busy)
    assert card_of(busy, shared=True).other_processes == ("pid 4711 (1,024 MiB)", "pid 4712")


def test_unlisted_processes_are_said_to_be_unknown() -> None:
    card = card_of(SimulatedNvml(refuses=("nvmlDeviceGetComputeRunningProcesses",)))
    assert "others may have run" in card.notes[0]
    assert card_of(SimulatedNvml()).notes == ()


@pytest.mark.parametrize(
    ("simulated", "name"),
    [(SimulatedNvml(mig=1), "NVIDIA H100 80GB HBM3"), (SimulatedNvml(), "NVIDIA H100 80GB HBM3 MIG 1g.10gb")],
)
def test_a_slice_of_a_gpu_is_refused(simulated: SimulatedNvml, name: str) -> None:
    with pytest.raises(MachineError, match="MIG mode"):
        card_of(simulated, name=name)


def test_slowdowns_throttle_and_a_power_cap_is_a_note() -> None:
    simulated = SimulatedNvml()
    watch = Watch(Nvml(nvml_of(simulated), "handle"))
    for bit in devices.SLOWDOWNS:
        simulated.reasons = bit
        watch.reset()
        watch.observe()
        simulated.reasons = 0
        watch.observe()
        assert watch.throttled == (devices.SLOWDOWNS[bit],), "what was seen once stays"
    simulated.reasons = devices.POWER_CAP | 0x1
    watch.reset()
    watch.observe()
    assert watch.throttled == ()
    assert len(watch.notes) == 1
    assert watch.lowest_sm_clock_mhz == 1980
    watch.reasons |= 0x2
    assert "the application clocks setting held the clocks down" in watch.notes


def test_a_low_clock_without_a_reason_is_a_note() -> None:
    watch = Watch(Nvml(nvml_of(SimulatedNvml()), "handle"))
    for clock, notes in ((1980, 0), (1400, 0), (1300, 1)):
        watch.reset()
        watch.lowest_sm_clock_mhz = clock
        assert len(watch.notes) == notes
    watch.reasons = 0x40
    assert watch.notes == (), "throttled says more"


def test_a_rank_watches_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "start_nvml", lambda: SimulatedNvml(reasons=0x40))
    watch = devices.watch_of(simulated_torch(), 0)
    watch.observe()
    assert watch.throttled == (devices.SLOWDOWNS[0x40],)

    def missing() -> None:
        raise MachineError("no driver")

    monkeypatch.setattr(devices, "start_nvml", missing)
    assert devices.watch_of(simulated_torch(), 0).nvml.handle is None


def test_our_bits_are_the_real_packages() -> None:
    pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    names = ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert set(devices.SLOWDOWNS) == {getattr(pynvml, f"nvmlClocksEventReason{name}") for name in names}
    assert pynvml.nvmlClocksEventReasonApplicationsClocksSetting == devices.APPLICATION_CLOCKS
    assert pynvml.nvmlClocksEventReasonSwPowerCap == devices.POWER_CAP
    for name in SimulatedNvml().answers():
        assert callable(getattr(pynvml, name)), name
    for error in (NVMLError_NotSupported, NVMLError_DriverNotLoaded, NVMLError_NoPermission):
        assert issubclass(getattr(pynvml, error.__name__), pynvml.NVMLError)
    assert hasattr(pynvml, "NVML_CLOCK_SM")
    assert hasattr(pynvml, "NVML_TEMPERATURE_GPU")


def test_the_names_of_drivers_lead_to_shipped_profiles() -> None:
    assert set(devices.PROFILES.values()) <= set(catalog.names("accelerator"))
