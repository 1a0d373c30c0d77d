"""Calibrations: fitted kernel constants of one GPU and engine, with their errors and where the points came from."""

from datetime import date
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from planner.input_types import Count, CountOrNone, Input, Positive, PositiveShare
from planner.printable import Name, Printable

Family = Literal["bandwidth", "decode_attention", "prefill_attention", "gemm", "moe", "collective"]
MOST = 1e9
"""Largest time (1,000 s in us, 1 s in ns), rate, number of passes and percentage: a step's sums stay finite."""
Efficiency = Annotated[float, Field(ge=1e-6, le=1.05)]
Percent = Annotated[float, Field(ge=0, le=MOST)]
PositiveFloat = Annotated[float, Field(gt=0, le=MOST)]
FloatOrNone = Annotated[float, Field(ge=0, le=MOST)]


class KernelConstants(Input):
    """Constants of one kernel family and dtype; forms.kernel_seconds says what each does."""

    floor_us: PositiveFloat
    """Launch and everything else that does not grow with the work [us]."""
    memory_efficiency: Efficiency
    """Share of the datasheet's memory bandwidth."""
    compute_efficiency: Efficiency
    """Share of the datasheet's dense peak of the arithmetic's dtype."""
    serial_ns_per_step: FloatOrNone = 0.0
    """Each step of the longest chain that no other core can take over: a cached token, a row of k [ns]."""
    norm: Annotated[float, Field(ge=1, le=16)] = 1.0
    """p of the p-norm that joins bytes, FLOPs and chain: 1 adds them, a large one takes the longest."""
    item_ns: FloatOrNone = 0.0
    """Each unit of scheduling: a (request, KV head) pair in decode, an expert touched in MoE [ns]."""
    activation_passes: FloatOrNone = 0.0
    """Extra passes over the activations at full memory bandwidth: quantising, permuting, unfused operations."""
    token_passes: FloatOrNone = 0.0
    """Extra passes over all tokens of the layer, routed here or not."""
    l2_reach: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the L2 cache that a repeated call finds its bytes in; 0: no such effect."""
    l2_speedup: Annotated[float, Field(ge=1, le=16)] = 1.0
    """How much faster than device memory those bytes are read. Not for a step, whose weights evict them."""


class CollectiveConstants(Input):
    """Constants of one collective over a number of ranks; forms.collective_seconds says what each does."""

    latency_us: PositiveFloat
    """Of the smallest message [us]."""
    gb_per_s: Annotated[float, Field(ge=1e-6, le=MOST)]
    """Bytes of one rank's buffer per second, for the largest [GB/s]."""
    norm: Annotated[float, Field(ge=0.5, le=16)] = 1.0
    """p of the p-norm that joins both: below 1 where a slower protocol serves the sizes between."""
    measured_bytes: tuple[Annotated[int, Field(gt=0)], ...] = ()
    """Sizes that were measured, rising: between them times are interpolated. Empty: the form alone [B]."""
    measured_us: tuple[PositiveFloat, ...] = ()
    """Time of each of these sizes, never falling [us]."""

    @model_validator(mode="after")
    def _one_time_a_size(self) -> "CollectiveConstants":
        sizes, times = self.measured_bytes, self.measured_us
        falls = any(a >= b for a, b in pairwise(sizes)) or any(a > b for a, b in pairwise(times))
        if len(sizes) != len(times) or falls:
            raise ValueError("measured_bytes: rising sizes, each with a time in measured_us, are needed")
        return self


class Errors(Input):
    """Relative errors of predicted times."""

    points: CountOrNone
    median_percent: Percent
    """Of the absolute errors."""
    p90_percent: Percent
    """90th percentile of the absolute errors."""
    max_percent: Percent
    bias_percent: Annotated[float, Field(ge=-MOST, le=MOST)]
    """Median of the signed errors: above 0, predictions are slow."""


class Table(Input):
    """A thin sample of the points themselves, kept where the form misses more than a tenth."""

    columns: tuple[Name, ...]
    rows: tuple[tuple[float | int | str, ...], ...]


def _kind(constants: object) -> str:
    """What constants are of, so that a message is about their own fields alone."""
    fields = constants if isinstance(constants, dict) else vars(constants) if isinstance(constants, Input) else ()
    return "collective" if "latency_us" in fields or "gb_per_s" in fields else "kernel"


class FittedKernel(Input):
    """One family and dtype (and kernel, where several ran): constants and how well they hold."""

    family: Family
    key: Name
    """dtype of the points; of attention also of the cache; of collectives the operation and ranks."""
    kernel: Annotated[str, Field(max_length=200)] = ""
    """What ran, as the table names it."""
    version: Name
    """Of the engine or library that the points were measured with."""
    fastest: bool = True
    """Whether no other kernel of the same family and key is faster on the shapes that both ran."""
    constants: Annotated[
        Annotated[KernelConstants, Tag("kernel")] | Annotated[CollectiveConstants, Tag("collective")],
        Discriminator(_kind),
    ]
    residual: Errors
    """On the points that were fitted."""
    holdout: Errors | None = None
    """On the third that the fit never saw."""
    table: Table | None = None
    notes: Printable | None = None

    @model_validator(mode="after")
    def _of_their_family(self) -> "FittedKernel":
        collective = isinstance(self.constants, CollectiveConstants)
        if collective != (self.family == "collective"):
            raise ValueError(f"constants of a {'collective' if collective else 'kernel'}, for family {self.family}")
        return self


class Borrowed(Input):
    """A family without points of its own, and whose constants stand in."""

    family: Literal["decode_attention", "prefill_attention", "gemm", "moe", "collective", "mla_decode"]
    calibration: Name
    """Whose constants are used, on this GPU's own datasheet peaks."""
    borrowed_family: Family
    rule: Printable
    """Why that one."""


class Calibration(Input):
    """Kernel constants of one GPU and engine, fitted to public or own measurements."""

    name: Name
    gpu: Name
    """The accelerator that the points were measured on; for any other this is an extrapolation."""
    engine: Name
    engine_version: Name
    """Newest version that feeds it; each kernel says its own."""
    peaks: Printable
    """Where the peaks that efficiencies refer to are written."""
    points_used: Count
    holdout_rule: Printable
    """Which points the fit never sees."""
    selection: Printable
    """Which points count at all."""
    kernels: tuple[FittedKernel, ...]
    borrowed: tuple[Borrowed, ...] = ()
    left_out: tuple[Printable, ...] = ()
    """What the tables hold and this file does not, and why."""
    source: Printable
    licence: Printable | None = None
    attribution: Printable | None = None
    as_of: date
    notes: Printable | None = None

    def find(self, family: str, key: str, kernel: str = "") -> FittedKernel | None:
        """The entry of a family and key: of that kernel, or else of the fastest one."""
        entries = [entry for entry in self.kernels if (entry.family, entry.key) == (family, key)]
        exact = [entry for entry in entries if entry.kernel == kernel]
        return next(iter(exact or [entry for entry in entries if entry.fastest]), None)


class SmallKernels(Input):
    """Constants of the small kernels between the large ones: norms, rotary embedding, activations, sampling."""

    launch_us: Positive
    """Of each [us]."""
    memory_efficiency: PositiveShare
    """Share of the datasheet's memory bandwidth at which their bytes move."""
    host_launch_us: Positive
    """What the host takes to launch one kernel of any kind outside a captured graph [us]."""
    host_step_us: Positive
    """Host's work between two steps: scheduling, inputs of the next, outputs of the last [us]."""
    host_step_request_us: Positive
    """What each request of the batch adds to it [us]."""
    server_request_us: Positive
    """A request's way through the server before it is queued: HTTP, checks, tokenising [us]."""
    server_token_us: Positive
    """An output token's way through the server: detokenising, and streaming it [us]."""
    source: Printable
    as_of: date
