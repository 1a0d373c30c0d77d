"""What the kernels of a step cost on one GPU: a calibration's constants, looked up and, where missing, stood in for."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from planner.calibrate.forms import Peaks, Work, collective_seconds, kernel_seconds
from planner.calibrate.peaks import ARITHMETIC
from planner.calibration import Calibration, CollectiveConstants, KernelConstants, SmallKernels
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

    def times(self, factor: float) -> "Terms":
        """Each term that many times."""
        return Terms(*(factor * getattr(self, field.name) for field in fields(self)))


def kernel_terms(work: Work, constants: KernelConstants, peaks: Peaks, *, reads_cache: bool = False) -> Terms:
    """The time of one kernel call, by what it is spent on; sums to forms.kernel_seconds.

    Of the p-norm of bytes, FLOPs and chain, each takes the share of its p-th power.
    reads_cache: the kernel's bytes are cache, not weights
    """
    passes = constants.activation_passes * work.activation_bytes + constants.token_passes * work.token_bytes
    moved = float(passes) / peaks.bytes_per_s
    start = constants.floor_us * 1e-6 + constants.item_ns * 1e-9 * float(work.items)
    rest = float(kernel_seconds(work, constants, peaks)) - start - moved
    p = constants.norm
    memory = (float(work.bytes) / (constants.memory_efficiency * peaks.bytes_per_s)) ** p
    compute = (float(work.flops) / (constants.compute_efficiency * peaks.flops_per_s)) ** p
    chain = (float(work.steps) * constants.serial_ns_per_step * 1e-9) ** p
    each = rest / (memory + compute + chain or 1.0)
    read = each * memory
    return Terms(
        weights=0.0 if reads_cache else read,
        kv=read if reads_cache else 0.0,
        compute=each * compute,
        activations=moved,
        launch=start + each * chain,
    )


class KernelTimes:
    """Prices of kernels on one GPU, from calibrations in the order in which they are asked."""

    def __init__(self, gpu: Accelerator, calibrations: Sequence[Calibration], small: SmallKernels) -> None:
        self.gpu = gpu
        self.calibrations = tuple(calibrations)
        self._bandwidth = float(gpu.hbm_gb_per_s) * GB
        self._small = float(small.launch_us) * 1e-6, float(small.memory_efficiency) * self._bandwidth
        self._host = float(small.host_launch_us) * 1e-6
        self._found: dict[tuple[str, str], KernelConstants] = {}
        self._links: dict[tuple[str, int], tuple[CollectiveConstants, ...]] = {}

    def peaks(self, dtype: str) -> Peaks:
        """Datasheet peaks for arithmetic of a dtype, with a cold L2: in a step, weights evict what a kernel would find.

        raises: InputError where the datasheet has none
        """
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
        for key in keys:
            for calibration in self.calibrations:
                entry = calibration.find(family, key)
                if entry is not None and isinstance(entry.constants, KernelConstants):
                    fused = family == "gemm" and calibration.engine == UNFUSED[0] and key in UNFUSED[1:]
                    return self._without_quantise(calibration, entry.constants) if fused else entry.constants
        raise InputError(f"calibration {self.calibrations[0].name} has no constants for {family} of {keys[0]}")

    def _without_quantise(self, calibration: Calibration, constants: KernelConstants) -> KernelConstants:
        """Constants whose start and chain of steps are no longer than those of 16 bits, where nothing is quantised."""
        plain = calibration.find("gemm", "bfloat16")
        least = plain.constants if plain and isinstance(plain.constants, KernelConstants) else constants
        names = ("floor_us", "serial_ns_per_step")
        bounded = {name: min(getattr(constants, name), getattr(least, name)) for name in names}
        return constants.model_copy(update={"activation_passes": 0.0, **bounded})

    def matrix(self, work: Work, form: str) -> Terms:
        """One weight matrix."""
        return kernel_terms(work, self.constants("gemm", GEMM_KEYS[form]), self.peaks(form))

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
        return replace(step, launch=step.launch + max(0.0, kernels * self._host - step.seconds))

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
        for calibration in self.calibrations:
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
