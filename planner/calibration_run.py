"""What a calibration run leaves behind: the machine, and every point that was measured, with its verdict."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from planner.calibration import Calibration
from planner.input_types import Count, CountOrNone, Input
from planner.printable import Name, Printable

Figure = Annotated[float, Field(ge=0)]
"""A measured number: finite, not negative."""
Verdict = Literal["ok", "noisy", "throttled", "wrong", "skipped"]
USABLE: tuple[Verdict, ...] = ("ok", "noisy")
"""Verdicts of points that a fit may use; noisy ones only where a family has too few that are ok."""


class Environment(Input):
    """The machine and the software that a run measured."""

    measured_at: datetime
    planner: Name
    command: Printable
    """The options that were given."""
    device: Name
    """The device's name, as its driver or torch says it."""
    accelerator: Name | None = None
    """planner's profile of it, for the datasheet's peaks."""
    uuid: Name | None = None
    driver: Name | None = None
    compute_capability: Name | None = None
    multiprocessors: Count | None = None
    memory_bytes: Count | None = None
    l2_bytes: CountOrNone
    """Last-level cache; timings rotate over at least five times as much [B]."""
    sm_clock_mhz: CountOrNone | None = None
    """Before the run."""
    max_sm_clock_mhz: CountOrNone | None = None
    memory_clock_mhz: CountOrNone | None = None
    power_limit_w: Figure | None = None
    ecc: bool | None = None
    temperature_c: int | None = None
    """Before the run."""
    other_processes: tuple[Printable, ...] = ()
    """Those on the GPU before the run; --shared accepted them."""
    torch: Name
    cuda: Name | None = None
    cudnn: Name | None = None
    python: Name
    platform: Printable
    threads: Count
    """CPU threads of torch."""
    datasheet_gb_per_s: Figure | None = None
    datasheet_tflop_per_s: dict[str, Figure] = Field(default={})
    """Dense peaks by dtype."""
    peak_gb_per_s: Figure | None = None
    """What the fitted memory efficiencies are shares of: the datasheet's figure, else the best bandwidth measured."""
    peak_tflop_per_s: dict[str, Figure] = Field(default={})
    """What the compute efficiencies are shares of, by dtype: the datasheet's, else the best matrix product measured."""
    notes: tuple[Printable, ...] = ()


class RunPoint(Input):
    """One shape on one backend: what was timed, how well, and what it is worth."""

    family: Name
    backend: Name
    shape: dict[str, int | str]
    """The fields of the family's point, seconds left out."""
    verdict: Verdict
    median_us: Figure | None = None
    """Absent where nothing was timed."""
    iqr_share: Figure | None = None
    """Interquartile range over the median."""
    drift_share: Figure | None = None
    """Between the two halves of the timings, over the median."""
    timings: CountOrNone = 0
    set_aside: CountOrNone = 0
    """Further timings that other processes disturbed."""
    method: Name | None = None
    """cuda_graph, cuda_events or wall_clock."""
    rotated_bytes: CountOrNone = 0
    """Of all the input sets that the calls went round."""
    moved_bytes: CountOrNone = 0
    """Least traffic to memory that the work needs [B]."""
    flops: CountOrNone = 0
    achieved_gb_per_s: Figure | None = None
    achieved_tflop_per_s: Figure | None = None
    share_of_datasheet_gb_per_s: Figure | None = None
    share_of_datasheet_tflop_per_s: Figure | None = None
    error: Figure | None = None
    """||out - ref|| / ||ref|| against a float64 reference; absent where it is not a number."""
    error_limit: Figure | None = None
    kernels: tuple[Printable, ...] = ()
    """What really ran, by a separate profiled call."""
    lowest_sm_clock_mhz: CountOrNone | None = None
    """While it was timed."""
    notes: tuple[Printable, ...] = ()


class CalibrationRun(Calibration):
    """A calibration with the machine that it was measured on and every raw point."""

    environment: Environment
    points: tuple[RunPoint, ...]
