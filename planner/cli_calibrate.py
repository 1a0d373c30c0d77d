"""`planner calibrate ...`: measuring this machine, drawing what was measured, and fitting tables of others."""

import os
import sys
from datetime import date, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from planner import catalog
from planner.console import (
    ForceOption,
    Format,
    FormatOption,
    OutputOption,
    counting,
    emit,
    hub_cache,
    progress,
)
from planner.errors import InputError, MachineError, PlannerError
from planner.inputs import Accelerator
from planner.printable import escaped
from planner.units import counted

if TYPE_CHECKING:
    from planner.calibrate.session import Device
    from planner.calibrate.shapes import Shapes
    from planner.calibration import Calibration
    from planner.calibration_run import CalibrationRun, RunPoint

PIPE_WIDTH = 160
REDUCE_REPLAYS = 20

calibrate_app = typer.Typer(rich_markup_mode=None)


@calibrate_app.callback(
    invoke_without_command=True,
    epilog="\b\nExample: planner calibrate --device cpu --quick -o cpu.yaml",
)
def calibrate(
    context: typer.Context,
    device: Annotated[str, typer.Option(help="cuda, cuda:0, cuda:1, ... or cpu.")] = "cuda:0",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points, shorter timings.")] = False,
    model: Annotated[
        str | None, typer.Option(help="Measure this model's heads and matrices instead of the standard ones.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallel ranks that share the model's heads.")] = 1,
    dtype: Annotated[str | None, typer.Option(help="Comma-separated: bf16, fp16, fp32, fp8.")] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Accelerator profile for the datasheet; default: by the driver's name.")
    ] = None,
    shared: Annotated[bool, typer.Option("--shared", help="Measure although other processes use the GPU.")] = False,
    show: Annotated[
        str | None, typer.Option(help="Draw a calibration (file or shipped name) instead of measuring.")
    ] = None,
    output_format: FormatOption = Format.text,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Measure this machine's memory, matrix products, attention and all-reduce, and fit constants to them."""
    if context.invoked_subcommand is not None:
        return
    if output_format in (Format.markdown, Format.html):
        raise InputError(f"--format: {output_format.value} is not offered here; accepted: text, yaml, json")
    if show is not None:
        _write(catalog.load_calibration(show), output_format, output, force=force)
        return
    from planner.calibrate.device import parse_device
    from planner.calibrate.session import check_profile, open_device
    from planner.calibrate.shapes import parse_dtypes

    index, dtypes = parse_device(device), parse_dtypes(dtype, ())
    if tp > 1 and model is None:
        raise InputError("--tp: shares a model's heads; name it with --model")
    if index is None:
        _check_cpu(gpu, dtypes)
    shapes = _model_shapes(model, tp) if model else None
    accelerator = catalog.load_accelerator(gpu) if gpu else None
    _check_output(output, force=force)
    _check_packages("torch", "scipy")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch's profiler writes to stderr as it loads
    opened = open_device(index, _configuration, shared=shared)
    check_profile(accelerator, opened.card)
    if accelerator is None and opened.card.profile:
        accelerator = catalog.load_accelerator(opened.card.profile)
    run = _run(opened, accelerator, shapes, dtypes, quick=quick, shared=shared, command=_command(context))
    if output is not None:
        _save(run, output, force=force)
    _write(run, output_format, None, force=False)


@calibrate_app.command(
    "fit", epilog="\b\nExample: planner calibrate fit kernel_*.csv.gz -o calibrations --source 'our H100, June'"
)
def fit(
    tables: Annotated[list[Path], typer.Argument(help="Tables of measured kernels, CSV or CSV.gz, any families.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for one file per GPU and engine; needed.")],
    source: Annotated[
        str | None, typer.Option(help="Where the tables are from; default: the names of their files.")
    ] = None,
    licence: Annotated[str | None, typer.Option(help="Licence of the tables; default: none is stated.")] = None,
    attribution: Annotated[
        str | None, typer.Option(help="What their licence asks to be said; default: nothing.")
    ] = None,
    as_of: Annotated[
        datetime | None, typer.Option(help="When the tables were made or read; default: today.", formats=["%Y-%m-%d"])
    ] = None,
    force: ForceOption = False,
) -> None:
    """Fit constants to tables of others: a calibration for every GPU and engine that they cover."""
    from planner.calibrate.bundle import Provenance, check_folder, fit_tables, write_calibrations

    _check_packages("scipy")
    check_folder(output, (), overwrite=force)
    named = source or f"the tables given: {', '.join(table.name for table in tables)}"
    stated = (escaped(text) if text else None for text in (licence, attribution))
    provenance = Provenance(escaped(named), as_of.date() if as_of else date.today(), *stated)
    with counting("fitting") as step:
        calibrations, left_out = fit_tables(
            tables, provenance, step, lambda names: check_folder(output, names, overwrite=force)
        )
    files = write_calibrations(calibrations, output, overwrite=force)
    lines = (f"{path}: {counted(c.points_used, 'point')}" for path, c in zip(files, calibrations, strict=True))
    emit("".join(f"{line}\n" for line in (*lines, *left_out)), None, force=False)


def _run(
    device: "Device",
    accelerator: Accelerator | None,
    shapes: "Shapes | None",
    dtypes: tuple[str, ...],
    *,
    quick: bool,
    shared: bool,
    command: str,
) -> "CalibrationRun":
    """Every point, then the fits; a bar on stderr meanwhile."""
    from planner.calibrate.conclude import conclude
    from planner.calibrate.run import all_reduces, measure
    from planner.calibrate.session import bench_of, environment, peaks_of, rank_counts
    from planner.calibrate.shapes import all_reduces as all_reduce_points
    from planner.calibrate.shapes import grid_of, points, standard

    peaks, grid = peaks_of(accelerator), grid_of(cuda=device.cuda, quick=quick)
    bench = bench_of(device, peaks, quick=quick)
    chosen = shapes or standard(cuda=device.cuda)
    planned = tuple(points(chosen, grid, dtypes or device.default_dtypes(), device.card.multiprocessors))
    counts, backend, left_out = rank_counts(device, shared=shared)
    found: list[RunPoint] = []
    with progress() as bar:
        task = bar.add_task("starting", total=len(planned) + len(counts))
        found += measure(bench, planned, lambda label: bar.update(task, description=label, advance=1))
        for ranks in counts:
            bar.update(task, description=f"all-reduce over {ranks} ranks", advance=1)
            found += all_reduces(all_reduce_points(grid, ranks, backend), REDUCE_REPLAYS)
        bar.update(task, description="fitting")
        notes = (left_out,) if left_out else ()
        return conclude(environment(device, accelerator, command, notes), found, chosen.left_out)


def _save(run: "CalibrationRun", output: Path, *, force: bool) -> None:
    """The run's file; where it cannot be written after all, its content goes to stdout: a run takes minutes."""
    form = Format.json if output.suffix == ".json" else Format.yaml
    try:
        _write(run, form, output, force=force)
    except PlannerError:
        _write(run, form, None, force=False)
        raise


def _write(calibration: "Calibration", form: Format, output: Path | None, *, force: bool) -> None:
    from planner.calibrate.shipped import calibration_yaml

    if form is Format.yaml:
        emit(calibration_yaml(calibration), output, force=force)
    elif form is Format.json:
        emit(calibration.model_dump_json(indent=2, exclude_defaults=True) + "\n", output, force=force)
    else:
        _draw(calibration, output, force=force)


def _draw(calibration: "Calibration", output: Path | None, *, force: bool) -> None:
    """Tables, and for a run the plots: as wide as the terminal, where there is one."""
    from planner.calibrate.curves import curves_of
    from planner.calibration_run import CalibrationRun
    from planner.render import calibration as render
    from planner.render import text

    width = Console().width if output is None else PIPE_WIDTH
    curves = curves_of(calibration) if isinstance(calibration, CalibrationRun) else ()
    plots = "".join(f"\n{render.plot(curve, width)}\n" for curve in curves)
    if output is None and sys.stdout.isatty():
        console = Console()
        text.write(render.draw(calibration, console.width), console)
        emit(plots, None, force=False)
    else:
        emit(text.plain(render.draw(calibration, PIPE_WIDTH), PIPE_WIDTH) + plots, output, force=force)


def _model_shapes(ref: str, tp: int) -> "Shapes":
    from planner.architectures import resolve
    from planner.calibrate.shapes import shapes_of

    model = catalog.load_model(ref, hub_cache=hub_cache())
    return shapes_of(model.name, resolve(model.config, model.origin), tp)


def _check_cpu(gpu: str | None, dtypes: tuple[str, ...]) -> None:
    """Refuse what only a GPU can be asked for.

    raises: InputError
    """
    if gpu:
        raise InputError("--gpu: names a GPU's profile, and --device cpu measures none; leave one of them out")
    if "fp8" in dtypes:
        raise InputError("--dtype fp8: a CPU takes seconds for each product of it; accepted here: bf16, fp16, fp32")


def _check_packages(*needed: str) -> None:
    """Packages that measuring or fitting cannot do without.

    raises: MachineError that names all that are missing
    """
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        verb, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise MachineError(
            f"{' and '.join(missing)} {verb} not installed, and calibrate needs {them}: "
            "pip install 'llm-serving-planner[calibrate]'"
        )


def _check_output(output: Path | None, *, force: bool) -> None:
    """Refuse what cannot be written before anything is measured.

    raises: InputError
    """
    if output is None:
        return
    from planner.output import check_free

    if output.is_dir():
        raise InputError(f"{output}: is a folder; name a file in it")
    check_free(output, overwrite=force)
    if not output.parent.is_dir():
        raise InputError(f"{output}: cannot be written: no such folder")
    if not os.access(output.resolve().parent, os.W_OK | os.X_OK):
        raise InputError(f"{output}: cannot be written: no permission to create files in its folder")


def _configuration(name: str) -> int | None:
    """A figure of the system, where it has it."""
    try:
        return os.sysconf(name)
    except (ValueError, OSError):
        return None


def _command(context: typer.Context) -> str:
    """The options that were given, as the run's file records them."""
    given = {name: value for name, value in context.params.items() if value not in (None, False)}
    kept = ("device", "quick", "model", "tp", "dtype", "gpu", "shared")
    return " ".join(f"{name}={given[name]}" for name in kept if name in given)
