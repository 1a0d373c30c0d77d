"""Public tables -> one calibration per GPU and engine: `planner calibrate fit TABLE...`."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from planner.calibrate.accuracy import seconds_of
from planner.calibrate.fit import HOLDOUT_RULE, LEAST_POINTS, fit, split
from planner.calibrate.forms import Peaks
from planner.calibrate.peaks import peaks_for, shipped_accelerator
from planner.calibrate.points import Point, shape_of
from planner.calibrate.shipped import calibration_yaml
from planner.calibrate.tables import SELECTION, Row, newest, read_tables, selected, version_order
from planner.calibration import Borrowed, Calibration, Errors, FittedKernel, Table
from planner.errors import InputError
from planner.inputs import Accelerator
from planner.output import write_whole
from planner.units import counted

LIBRARIES = ("nccl",)
"""`engine` of rows that every engine on the GPU shares."""
TABLE_FROM_PERCENT = 10
TABLE_ROWS = 16
POOR_PERCENT = 50
"""Median error on the fitted points from which a fit says itself that it is poor [%]."""
FAMILIES = ("decode_attention", "prefill_attention", "gemm", "moe", "collective")
MLA_RULE = (
    "no table holds MLA decode: decode attention's constants of the same GPU, engine and dtype with the compute "
    "efficiency of its prefill attention, since MLA multiplies whole tiles; bytes and FLOPs are MLA's own"
)
QUANTISED_NOTE = (
    "TensorRT-LLM's fp8 and nvfp4 GEMMs were timed with an unfused quantise of the input, which a captured step does "
    "not pay: floor_us and activation_passes contain it"
)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where tables came from, as each calibration fitted to them says it."""

    source: str
    as_of: date
    """When the tables were read."""
    licence: str | None = None
    attribution: str | None = None


@dataclass(slots=True)
class Draft:
    """A calibration on its way: fitted kernels by GPU and engine, and what could not be fitted."""

    gpu: Accelerator
    engine: str
    kernels: list[FittedKernel] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.gpu.name}-{self.engine}"

    @property
    def families(self) -> set[str]:
        """That have constants of their own."""
        return {entry.family for entry in self.kernels}


def fit_tables(
    paths: Sequence[Path],
    provenance: Provenance,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[Sequence[str]], None] | None = None,
) -> tuple[list[Calibration], list[str]]:
    """(a calibration for every GPU and engine that the tables cover, a line for everything left out).

    progress: told how many of how many fits are done
    check: told the calibrations' names before the first fit; may raise
    raises: InputError with every bad row, or where nothing could be fitted; MachineError without scipy
    """
    rows = newest(selected(read_tables(paths)))
    accelerators, notes = _accelerators(rows)
    drafts = {
        (gpu, engine): Draft(accelerators[gpu], engine)
        for gpu, engine in sorted({(row.gpu, row.engine) for row in rows})
        if gpu in accelerators and engine not in LIBRARIES
    }
    if check:
        check([draft.name for draft in drafts.values()])
    for done, (key, draft) in enumerate(drafts.items()):
        if progress:
            progress(done, len(drafts))
        _fit_draft(draft, [row for row in rows if row.gpu == key[0] and row.engine in (key[1], *LIBRARIES)])
    notes += [f"{draft.name}: {line}" for draft in drafts.values() for line in draft.left_out]
    finished = [_finish(draft, drafts.values(), provenance) for draft in drafts.values() if draft.kernels]
    if not finished:
        raise InputError(*_nothing_fitted(paths, rows, notes))
    return finished, notes


def _nothing_fitted(paths: Sequence[Path], rows: Sequence[Row], notes: Sequence[str]) -> list[str]:
    """Why no calibration came of the tables."""
    if not rows:
        return [f"{', '.join(map(str, paths))}: nothing to fit: no rows, or none within the selection ({SELECTION})"]
    libraries = sorted({row.engine for row in rows} & set(LIBRARIES))
    shared = [f"rows of {name} alone make no calibration: they go into those of engines" for name in libraries]
    return [f"nothing to fit: {reason}" for reason in (*notes, *shared)]


def write_calibrations(calibrations: Iterable[Calibration], folder: Path, *, overwrite: bool) -> list[Path]:
    """The files written, one a calibration, each whole or not at all.

    raises: InputError where the folder is none, or a file exists and overwrite is false
    """
    files = {folder / f"{calibration.name}.yaml": calibration for calibration in calibrations}
    check_folder(folder, [calibration.name for calibration in files.values()], overwrite=overwrite)
    for path, calibration in files.items():
        write_whole(path, calibration_yaml(calibration), overwrite=overwrite)
    return list(files)


def check_folder(folder: Path, calibrations: Iterable[str], *, overwrite: bool) -> None:
    """Refuse a folder that files of these names cannot be written to.

    raises: InputError where the folder is none, or a file exists and overwrite is false
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    files = (folder / f"{name}.yaml" for name in calibrations)
    present = [f"{path}: exists already; --force overwrites it" for path in files if path.exists()]
    if present and not overwrite:
        raise InputError(*present)


def _accelerators(rows: Iterable[Row]) -> tuple[dict[str, Accelerator], list[str]]:
    """Profiles of the rows' GPUs, and a line for each GPU that has none."""
    found: dict[str, Accelerator] = {}
    notes: list[str] = []
    for name in sorted({row.gpu for row in rows}):
        try:
            found[name] = shipped_accelerator(name)
        except InputError as error:
            notes.append(f"{name}: left out: {error.problems[0]}")
    return found, notes


def _fit_draft(draft: Draft, rows: Sequence[Row]) -> None:
    grouped: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row.family, row.point.key].append(row)
    for family, key in sorted(grouped, key=lambda found: (FAMILIES.index(found[0]), found[1])):
        if family == "collective" and (draft.gpu.interconnect or "").startswith("PCIe"):
            continue
        draft.kernels.extend(_fit_key(draft, family, key, grouped[family, key]))
    if (draft.gpu.interconnect or "").startswith("PCIe") and any(family == "collective" for family, _ in grouped):
        draft.left_out.append("collective: over PCIe they vary tenfold between hosts; measure yours")


def _fit_key(draft: Draft, family: str, key: str, rows: Sequence[Row]) -> list[FittedKernel]:
    """One entry per kernel that ran for the key, the fastest one marked."""
    by_kernel: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_kernel[row.point.kernel].append(row)
    entries: list[FittedKernel] = []
    fitted_points: dict[str, list[Point]] = {}
    for kernel, found in sorted(by_kernel.items()):
        points = [row.point for row in found]
        if len(points) < LEAST_POINTS:
            draft.left_out.append(f"{family} {key} {kernel}: only {counted(len(points), 'point')}")
            continue
        try:
            peaks = peaks_for(draft.gpu, points[0])
        except InputError as error:
            draft.left_out.append(f"{family} {key}: {error.problems[0]}")
            continue
        fitted = fit(points, peaks)
        fitted_points[kernel] = points
        entries.append(
            FittedKernel.model_validate(
                {
                    "family": family,
                    "key": key,
                    "kernel": kernel,
                    "version": found[0].version,
                    "constants": fitted.constants,
                    "residual": fitted.residual,
                    "holdout": fitted.holdout,
                    "table": _table(split(points)[0]) if fitted.residual.median_percent > TABLE_FROM_PERCENT else None,
                    "notes": _notes(draft.engine, family, key, fitted.residual),
                }
            )
        )
    return mark_fastest(entries, fitted_points, peaks) if entries else []


def _notes(engine: str, family: str, key: str, residual: Errors) -> str | None:
    """What a reader of the constants must know."""
    notes = [QUANTISED_NOTE] if _unfused(engine, family, key) else []
    if residual.median_percent > POOR_PERCENT:
        notes.append(
            f"the form does not describe these points: half are missed by {residual.median_percent:g} % or more"
        )
    return "; ".join(notes) or None


def _unfused(engine: str, family: str, key: str) -> bool:
    return engine == "trtllm" and family == "gemm" and key in ("fp8", "nvfp4")


def mark_fastest(
    entries: Sequence[FittedKernel], points: Mapping[str, Sequence[Point]], peaks: Peaks
) -> list[FittedKernel]:
    """The fits of one family and key, of which exactly one is the fastest: by its times on the shapes that all ran.

    Where they have no shape in common: by the times that their constants predict for every shape that any ran.
    points: of each fitted kernel
    """
    measured = {e.kernel: {shape_of(p): math.log(p.seconds) for p in points[e.kernel]} for e in entries}
    times = measured if set.intersection(*map(set, measured.values())) else _predicted(entries, points, peaks)
    common = set.intersection(*map(set, times.values()))
    fastest = min(sorted(times), key=lambda kernel: sum(times[kernel][shape] for shape in common))
    return [entry.model_copy(update={"fastest": entry.kernel == fastest}) for entry in entries]


def _predicted(
    entries: Sequence[FittedKernel], points: Mapping[str, Sequence[Point]], peaks: Peaks
) -> dict[str, dict[str, float]]:
    """Kernel -> shape -> logarithm of the predicted seconds, for every shape that any of the kernels ran."""
    shapes = {shape_of(point): point for entry in entries for point in points[entry.kernel]}
    return {
        entry.kernel: {shape: math.log(seconds_of(p, entry.constants, peaks)) for shape, p in shapes.items()}
        for entry in entries
    }


def _table(points: Sequence[Point]) -> Table:
    """Points evenly spread over the ones sorted by shape."""
    columns = [name for name in type(points[0]).__slots__ if name not in ("dtype", "kv_dtype", "kernel", "seconds")]
    rows = sorted((*(getattr(point, name) for name in columns), round(point.seconds * 1e6, 2)) for point in points)
    spread = [rows[i * (len(rows) - 1) // (TABLE_ROWS - 1)] for i in range(min(TABLE_ROWS, len(rows)))]
    return Table(columns=(*columns, "measured_us"), rows=tuple(spread))


def _finish(draft: Draft, drafts: Iterable[Draft], provenance: Provenance) -> Calibration:
    own = [entry for entry in draft.kernels if entry.family != "collective"] or draft.kernels
    return Calibration(
        name=draft.name,
        gpu=draft.gpu.name,
        engine=draft.engine,
        engine_version=max((entry.version for entry in own), key=version_order),
        peaks=f"accelerator {draft.gpu.name}",
        points_used=sum(entry.residual.points for entry in draft.kernels),
        holdout_rule=HOLDOUT_RULE,
        selection=SELECTION,
        kernels=tuple(draft.kernels),
        borrowed=tuple(borrow(draft, drafts)),
        left_out=tuple(draft.left_out),
        source=provenance.source,
        licence=provenance.licence,
        attribution=provenance.attribution,
        as_of=provenance.as_of,
    )


def borrow(draft: Draft, drafts: Iterable[Draft]) -> Iterator[Borrowed]:
    """What stands in for each family without points: the same engine on the most alike GPU that has them.

    Alike is first a datasheet with the same narrow dtypes (FP8, FP4), then the nearest ratio of BF16 peak to memory
    bandwidth. A collective is never borrowed: it belongs to the host's links.
    """
    for family in FAMILIES[:-1]:
        owners = [d for d in drafts if d.engine == draft.engine and family in d.families]
        if family in draft.families or not owners:
            continue
        nearest = min(owners, key=lambda owner: (_distance(draft.gpu, owner.gpu), owner.name))
        rule = (
            "the same engine on the most alike GPU that has points: same narrow dtypes (FP8, FP4), then the nearest "
            "ratio of BF16 peak to memory bandwidth; constants on this GPU's own peaks"
        )
        yield Borrowed.model_validate(
            {"family": family, "calibration": nearest.name, "borrowed_family": family, "rule": rule}
        )
    if "decode_attention" in draft.families:
        yield Borrowed(family="mla_decode", calibration=draft.name, borrowed_family="decode_attention", rule=MLA_RULE)


def _distance(one: Accelerator, other: Accelerator) -> tuple[bool, float]:
    ratios = [float(gpu.bf16_dense_tflops or 1) / float(gpu.hbm_gb_per_s) for gpu in (one, other)]
    return _narrow(one) != _narrow(other), abs(math.log(ratios[0] / ratios[1]))


def _narrow(gpu: Accelerator) -> tuple[bool, bool]:
    return gpu.fp8_dense_tflops is not None, gpu.fp4_dense_tflops is not None
