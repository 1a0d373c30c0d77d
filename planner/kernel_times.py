"""What the kernels of a step cost on one GPU: a calibration's constants, looked up and, where missing, stood in for."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from planner.calibrate.forms import Peaks, Work, collective_seconds, kernel_parts
from planner.calibrate.peaks import ARITHMETIC
from planner.calibration import Calibration, CollectiveConstants, FittedKernel, KernelConstants, SmallKernels
from planner.errors import InputError
from planner.inputs import Accelerator
from planner.units import GB

GEMM_KEYS = {
    "bfloat16": ("bfloat16",),
    "fp8": ("fp8", "fp8_block"),
    "fp8_block": ("fp8_block", "fp8"),
    "sq": ("sq", "fp8"),
    "int8_wo": ("int8_wo", "bfloat16"),
    "int4_wo": ("int4_wo", "bfloat16"),
    "nvfp4": ("nvfp4", "fp8_block", "fp8"),
    "w4a16_mxfp4": ("w4a16_mxfp4", "bfloat16"),
    "w4a8_mxfp4_mxfp8": ("w4a8_mxfp4_mxfp8", "nvfp4", "fp8_block", "bfloat16"),
}
"""Stored form of weights -> whose constants price it, by preference; bytes and peak stay its own."""
UNFUSED = ("trtllm", "fp8", "nvfp4")
"""TensorRT-LLM's tables time these GEMMs with a quantise of the input that a captured step fuses into the norm."""

Parts = tuple[float, float, float, float, float]
"""Of a kernel call, as forms.kernel_parts gives them [s]."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Where the time of a step goes [s]; the fields sum to it."""

    weights: float = 0.0
    """Reading weights."""
    kv: float = 0.0
    """Reading the KV cache, latents and states."""
    compute: float = 0.0
    """Arithmetic."""
    activations: float = 0.0
    """Moving activations between kernels."""
    communication: float = 0.0
    """Between GPUs."""
    launch: float = 0.0
    """Launches, scheduling and chains that no other core can take over."""

    @property
    def seconds(self) -> float:
        """The whole step [s]."""
        return self.weights + self.kv + self.compute + self.activations + self.communication + self.launch

    @property
    def binds(self) -> str:
        """The largest term's name."""
        return max((field.name for field in fields(self)), key=lambda name: float(getattr(self, name)))

    def __add__(self, other: "Terms") -> "Terms":
        return Terms(
            self.weights + other.weights,
            self.kv + other.kv,
            self.compute + other.compute,
            self.activations + other.activations,
            self.communication + other.communication,
            self.launch + other.launch,
        )

    def waiting(self, seconds: float) -> "Terms":
        """With that much more time in launches."""
        if not seconds:
            return self
        launch = self.launch + seconds
        return Terms(self.weights, self.kv, self.compute, self.activations, self.communication, launch)

    def times(self, factor: float) -> "Terms":
        """Each term that many times."""
        return Terms(
            factor * self.weights,
            factor * self.kv,
            factor * self.compute,
            factor * self.activations,
            factor * self.communication,
            factor * self.launch,
        )


class Meter:
    """Adds up where the time of a step goes, kernel by kernel."""

    __slots__ = ("activations", "communication", "compute", "kv", "launch", "weights")

    def __init__(self) -> None:
        self.weights = self.kv = self.compute = self.activations = self.communication = self.launch = 0.0

    def kernel(self, parts: Parts, norm: float, count: float = 1.0, *, reads_cache: bool = False) -> None:
        """A kernel's parts (forms.kernel_parts), so many times; the sum is forms.kernel_seconds.

        Of the p-norm of bytes, FLOPs and chain, each takes the share of its p-th power.
        reads_cache: the kernel's bytes are cache, not weights
        """
        start, moved, memory, compute, chain = parts
        if norm != 1.0:
            memory, compute, chain = memory**norm, compute**norm, chain**norm
            whole = memory + compute + chain
            share = whole ** (1 / norm) / whole if whole else 0.0
            memory, compute, chain = memory * share, compute * share, chain * share
        if reads_cache:
            self.kv += count * memory
        else:
            self.weights += count * memory
        self.compute += count * compute
        self.activations += count * moved
        self.launch += count * (start + chain)

    def add(self, terms: Terms, count: float = 1.0) -> None:
        """Terms, so many times."""
        self.weights += count * terms.weights
        self.kv += count * terms.kv
        self.compute += count * terms.compute
        self.activations += count * terms.activations
        self.communication += count * terms.communication
        self.launch += count * terms.launch

    def terms(self) -> Terms:
        """What has been added up."""
        return Terms(self.weights, self.kv, self.compute, self.activations, self.communication, self.launch)


def kernel_terms(work: Work, constants: KernelConstants, peaks: Peaks, *, reads_cache: bool = False) -> Terms:
    """The time of one kernel call, by what it is spent on; sums to forms.kernel_seconds.

    reads_cache: the kernel's bytes are cache, not weights
    """
    meter = Meter()
    meter.kernel(kernel_parts(work, constants, peaks), constants.norm, reads_cache=reads_cache)
    return meter.terms()


class KernelTimes:
    """Prices of kernels on one GPU, from calibrations in the order in which they are asked."""

    def __init__(self, gpu: Accelerator, calibrations: Iterable[Calibration], small: SmallKernels) -> None:
        self.gpu = gpu
        self._rest = iter(calibrations)
        self._read = [next(self._rest)]
        self._bandwidth = float(gpu.hbm_gb_per_s) * GB
        self._small = float(small.launch_us) * 1e-6, float(small.memory_efficiency) * self._bandwidth
        self._host = float(small.host_launch_us) * 1e-6
        self._between = float(small.host_step_us) * 1e-6, float(small.host_step_request_us) * 1e-6
        self.server_request_s = float(small.server_request_us) * 1e-6
        self.server_token_s = float(small.server_token_us) * 1e-6
        self._found: dict[tuple[str, str], KernelConstants] = {}
        self._peaks: dict[str, Peaks] = {}
        self._links: dict[tuple[str, int], tuple[CollectiveConstants, ...]] = {}

    @property
    def first(self) -> Calibration:
        """The calibration that is asked first."""
        return self._read[0]

    def _each(self) -> Iterator[Calibration]:
        """All of them in order; one that is not needed is never read."""
        yield from self._read
        for calibration in self._rest:
            self._read.append(calibration)
            yield calibration

    def peaks(self, dtype: str) -> Peaks:
        """Datasheet peaks for arithmetic of a dtype, with a cold L2: in a step, weights evict what a kernel would find.

        raises: InputError where the datasheet has none
        """
        if dtype not in self._peaks:
            self._peaks[dtype] = self._peaks_of(dtype)
        return self._peaks[dtype]

    def _peaks_of(self, dtype: str) -> Peaks:
        field = ARITHMETIC[dtype]
        peak = getattr(self.gpu, field) or (self.gpu.fp16_dense_tflops if field.startswith("bf16") else None)
        if peak is None:
            raise InputError(f"accelerator {self.gpu.name} gives no {field}, which {dtype} refers to")
        return Peaks(self._bandwidth, float(peak) * 1e12)

    def constants(self, family: str, keys: Sequence[str]) -> KernelConstants:
        """Of the first key that any calibration has, by preference of keys, then of calibrations.

        raises: InputError where none has any
        """
        asked = family, keys[0]
        if asked not in self._found:
            self._found[asked] = self._look_up(family, keys)
        return self._found[asked]

    def _look_up(self, family: str, keys: Sequence[str]) -> KernelConstants:
        calibration, entry, constants = self.entry(family, keys)
        fused = family == "gemm" and calibration.engine == UNFUSED[0] and entry.key in UNFUSED[1:]
        return self._without_quantise(calibration, constants) if fused else constants

    def entry(self, family: str, keys: Sequence[str]) -> tuple[Calibration, FittedKernel, KernelConstants]:
        """The fit that prices a family of kernels, with the calibration that it is from, and its constants.

        raises: InputError where no calibration has any of the keys
        """
        for key in keys:
            for calibration in self._each():
                entry = calibration.find(family, key)
                if entry is not None and isinstance(entry.constants, KernelConstants):
                    return calibration, entry, entry.constants
        raise InputError(f"calibration {self.first.name} has no constants for {family} of {keys[0]}")

    def _without_quantise(self, calibration: Calibration, constants: KernelConstants) -> KernelConstants:
        """Constants whose start and chain of steps are no longer than those of 16 bits, where nothing is quantised."""
        plain = calibration.find("gemm", "bfloat16")
        least = plain.constants if plain and isinstance(plain.constants, KernelConstants) else constants
        names = ("floor_us", "serial_ns_per_step")
        bounded = {name: min(getattr(constants, name), getattr(least, name)) for name in names}
        return constants.model_copy(update={"activation_passes": 0.0, **bounded})

    def matrix(self, work: Work, form: str) -> tuple[Parts, float]:
        """(parts, p of their norm) of one weight matrix."""
        constants = self.constants("gemm", GEMM_KEYS[form])
        return kernel_parts(work, constants, self.peaks(form)), constants.norm

    def quantise(self, work: Work, form: str) -> Terms:
        """Quantising a matrix's input by a kernel of its own, which its table's GEMM was timed with.

            launch = t;  passes x activations / W

        work: the matrix's, with its activations [B]
        form: of its weights [1]
        returns: terms [s]
        assumes: t, launch_us of a small kernel, since the table's floor is not of a captured graph
        source: activation_passes of the calibration; profiles/kernels/small.yaml
        """
        entries = (calibration.find("gemm", form) for calibration in self._each())
        constants = next((entry.constants for entry in entries if entry), None)
        passes = constants.activation_passes if isinstance(constants, KernelConstants) else 0.0
        return Terms(activations=passes * float(work.activation_bytes) / self._bandwidth, launch=self._small[0])

    def experts(self, work: Work, form: str) -> Terms:
        """The routed experts of a layer."""
        return kernel_terms(work, self.constants("moe", GEMM_KEYS[form]), self.peaks(form))

    def decode_attention(self, work: Work, constants: KernelConstants) -> Terms:
        """Attention of new tokens over their cache; its products are in 16 bits, whatever the cache holds."""
        return kernel_terms(work, constants, self.peaks("bfloat16"), reads_cache=True)

    def prefill_attention(self, work: Work, keys: Sequence[str]) -> Terms:
        """Attention of prompts."""
        dtype = "fp8" if keys[0] == "fp8" else "bfloat16"
        return kernel_terms(work, self.constants("prefill_attention", keys), self.peaks(dtype), reads_cache=True)

    def small(self, kernels: float, moved_bytes: float, *, reads_cache: bool = False) -> Terms:
        """Small kernels: their launches, and their bytes.

            launch = n t;  bytes / (eff W)

        kernels: n, how many [1]
        moved_bytes: read and written by all of them [B]
        reads_cache: the bytes are states or indexer keys, not activations [1]
        returns: terms [s]
        source: profiles/kernels/small.yaml
        """
        start, speed = self._small
        moved = moved_bytes / speed
        kv, activations = (moved, 0.0) if reads_cache else (0.0, moved)
        return Terms(kv=kv, activations=activations, launch=kernels * start)

    def launched(self, step: Terms, kernels: int) -> Terms:
        """A step whose kernels the host launches one by one, as engines do with prompts, and not from a captured graph.

            launch + max(0, n h - t)

        step: t, the kernels' own time [s]
        kernels: n, how many [1]
        returns: terms [s]
        assumes: h, host_launch_us; the host runs ahead of the device wherever it can
        source: profiles/kernels/small.yaml
        """
        return step.waiting(self.launched_s(step.seconds, kernels) - step.seconds)

    def launched_s(self, step_s: float, kernels: int) -> float:
        """The time of such a step as a whole [s]."""
        return max(step_s, kernels * self._host)

    def hosted(self, step: Terms, requests: int, *, overlapped: bool) -> Terms:
        """A step and the host's work between it and the next.

            overlapped: launch + max(0, h + r B - t); else: launch + h + r B

        step: t, the device's time [s]
        requests: B, of all groups that one scheduler serves [1]
        overlapped: the host prepares the next step while the device runs this one [1]
        returns: terms [s]
        assumes: h, host_step_us, and r, host_step_request_us, of any engine, model and number of ranks
        source: profiles/kernels/small.yaml
        """
        return step.waiting(self.hosted_s(step.seconds, requests, overlapped=overlapped) - step.seconds)

    def hosted_s(self, step_s: float, requests: int, *, overlapped: bool) -> float:
        """The time of both as a whole [s]."""
        fixed, each = self._between
        host = fixed + each * requests
        return max(step_s, host) if overlapped else step_s + host

    def collective(self, operation: str, message_bytes: float, ranks: int) -> Terms:
        """A collective by the fastest of the library's and the engine's own kernels; nothing on one rank."""
        if ranks == 1:
            return Terms()
        asked = operation, ranks
        if asked not in self._links:
            self._links[asked] = self._measured(operation, ranks) or (self._by_datasheet(operation, ranks),)
        return Terms(
            communication=min(float(collective_seconds(message_bytes, constants)) for constants in self._links[asked])
        )

    def _measured(self, operation: str, ranks: int) -> tuple[CollectiveConstants, ...]:
        """Of the first calibration that has this many ranks, else the most that it has; none across PCIe."""
        if (self.gpu.interconnect or "").startswith("PCIe"):
            return ()
        for calibration in self._each():
            entries = [e for e in calibration.kernels if e.family == "collective" and not e.kernel.endswith("_eager")]
            sizes = [int(e.key.partition("/")[2]) for e in entries if e.key.startswith(f"{operation}/")]
            nearest = min(sizes, key=lambda size: abs(size - ranks), default=0)
            found = [e.constants for e in entries if e.key == f"{operation}/{nearest}"]
            if found:
                return tuple(c for c in found if isinstance(c, CollectiveConstants))
        return ()

    def _by_datasheet(self, operation: str, ranks: int) -> CollectiveConstants:
        """Where nothing was measured: a latency per hop, and the link's datasheet bandwidth.

        source: ring algorithms, Thakur et al. 2005, doi:10.1177/1094342005051521; 5 us per hop is an assumption
        """
        link = self.gpu.interconnect_gb_per_s
        if link is None:
            raise InputError(f"accelerator {self.gpu.name} gives no interconnect_gb_per_s, which {ranks} ranks need")
        passes = (ranks - 1) / ranks * (2 if operation == "all_reduce" else 1)
        return CollectiveConstants(latency_us=5.0 * (ranks - 1), gb_per_s=float(link) / passes)
