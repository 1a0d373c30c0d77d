"""Opening a device, with torch and NVML simulated: what is asked in which order, and what the run's file says of it."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from planner import catalog
from planner.calibrate import session
from planner.calibrate.device import Card
from planner.calibrate.run import Peaks
from planner.calibrate.timing import CudaTimer
from planner.errors import InputError, MachineError
from tests.test_calibrate_device import (
    GPU,
    UUID,
    NVMLError_DriverNotLoaded,
    NVMLError_NoPermission,
    SimulatedNvml,
    simulated_torch,
)


class Installed:
    """A simulated torch and pynvml, as the import system finds them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, torch: Any, nvml: SimulatedNvml | None) -> None:
        self.order: list[str] = []
        torch.cuda.set_device = lambda index: self.order.append(f"set_device {index}")
        torch.cuda.current_device = lambda: 0
        torch.backends = SimpleNamespace(
            cudnn=SimpleNamespace(version=lambda: 91500),
            cpu=SimpleNamespace(get_cpu_capability=lambda: "AVX2"),
            cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True)),
        )
        torch.get_num_threads = lambda: 8
        torch.Generator = lambda device: SimpleNamespace(manual_seed=lambda seed: (device, seed))
        self.torch, self.nvml = torch, nvml
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)

    def open(self, index: int | None = 0, *, shared: bool = False) -> session.Device:
        return session.open_device(index, lambda name: {"SC_LEVEL2_CACHE_SIZE": 2**20}.get(name), shared=shared)


def test_a_gpu_is_opened_watched_and_described(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimulatedNvml()
    installed = Installed(monkeypatch, simulated_torch(), nvml)
    device = installed.open()
    assert (device.name, device.cuda, device.default_dtypes()) == ("cuda:0", True, ("bfloat16", "fp8"))
    bench = session.bench_of(device, Peaks(), quick=True)
    assert isinstance(bench.timer, CudaTimer)
    assert bench.timer.observe == bench.watch.observe
    assert bench.cache_bytes == 50 * 2**20
    assert installed.torch.backends.cuda.matmul.allow_tf32 is False
    found = session.environment(device, catalog.load_accelerator("h100-sxm"), "device=cuda:0", ("a note",))
    assert (found.device, found.accelerator, found.uuid) == ("NVIDIA H100 80GB HBM3", "h100-sxm", UUID)
    assert (found.driver, found.cuda, found.cudnn, found.torch) == ("570.1", "13.0", "91500", "2.13.0")
    assert found.datasheet_gb_per_s == 3350
    assert found.datasheet_tflop_per_s == {"bfloat16": 989, "fp8": 1979}
    assert "a note" in found.notes


def test_processes_are_listed_before_this_one_touches_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimulatedNvml()
    installed = Installed(monkeypatch, simulated_torch(), nvml)
    installed.torch.cuda.set_device = lambda _: installed.order.append(f"set_device after {len(nvml.asked)}")
    device = installed.open()
    listed = nvml.asked.index("nvmlDeviceGetComputeRunningProcesses")
    assert installed.order[0].startswith("set_device after ")
    assert listed < int(installed.order[0].rpartition(" ")[2])
    assert device.processes == {GPU: ()}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NVMLError_DriverNotLoaded("Driver Not Loaded"), "no NVIDIA driver"),
        (NVMLError_NoPermission("Insufficient Permissions"), "no permission"),
    ],
)
def test_a_missing_driver_is_named_only_where_torch_finds_no_gpu(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    with pytest.raises(MachineError, match=message):
        Installed(monkeypatch, simulated_torch(count=0), SimulatedNvml(fails=error)).open()  # type: ignore[arg-type]
    device = Installed(monkeypatch, simulated_torch(), SimulatedNvml(fails=error)).open()  # type: ignore[arg-type]
    assert "NVML does not answer" in device.card.notes[0]


def test_a_build_without_cuda_is_named_before_any_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = SimulatedNvml(fails=NVMLError_DriverNotLoaded("Driver Not Loaded"))
    with pytest.raises(MachineError, match="built without CUDA"):
        Installed(monkeypatch, simulated_torch(cuda=None), failing).open()


def test_a_cpu_needs_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Installed(monkeypatch, simulated_torch(cuda=None), None).open(None)
    assert (device.name, device.cuda, device.default_dtypes()) == ("cpu", False, ("float32", "bfloat16"))
    assert device.card.l2_bytes == 2**20
    assert "AVX2" in device.card.name
    assert session.rank_counts(device, shared=False) == ((2,), "gloo", None)


def test_ranks_are_powers_of_two_of_idle_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, expected in ((1, ()), (2, (2,)), (5, (2, 4)), (8, (2, 4, 8))):
        device = Installed(monkeypatch, simulated_torch(count=count), SimulatedNvml()).open()
        assert session.rank_counts(device, shared=False) == (expected, "nccl", None)
    busy = SimulatedNvml(processes=((7, None),))
    device = Installed(monkeypatch, simulated_torch(count=2), busy).open(shared=True)
    counts, _, why = session.rank_counts(device, shared=False)
    assert counts == ()
    assert "other processes use cuda:0, cuda:1" in str(why)
    assert session.rank_counts(device, shared=True)[0] == (2,)


def test_older_gpus_are_measured_without_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = simulated_torch()
    torch.cuda.get_device_properties(0).major = 8
    assert Installed(monkeypatch, torch, SimulatedNvml()).open().default_dtypes() == ("bfloat16",)


def test_gpus_without_bfloat16_are_measured_in_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = simulated_torch("Tesla T4")
    torch.cuda.get_device_properties(0).major, torch.cuda.get_device_properties(0).minor = 7, 5
    assert Installed(monkeypatch, torch, SimulatedNvml()).open().default_dtypes() == ("float16",)


def test_another_gpus_datasheet_is_refused_where_the_gpu_is_known() -> None:
    card, h200 = Card("NVIDIA H100 80GB HBM3"), catalog.load_accelerator("h200-sxm")
    with pytest.raises(InputError, match=r"--gpu h200-sxm: .*NVIDIA H100 80GB HBM3, h100-sxm"):
        session.check_profile(h200, card)
    session.check_profile(catalog.load_accelerator("h100-sxm"), card)
    session.check_profile(h200, Card("NVIDIA Engineering Sample"))
    session.check_profile(h200.model_copy(update={"name": "my-h100"}), card)
    session.check_profile(None, card)


def test_peaks_are_the_datasheets_or_none() -> None:
    assert session.peaks_of(None) == Peaks()
    found = session.peaks_of(catalog.load_accelerator("a100-sxm-80gb"))
    assert dict(found.tflop_per_s)["bfloat16"] == 312
    assert "fp8" not in dict(found.tflop_per_s)
