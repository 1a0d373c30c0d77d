"""`planner validate ...`: planner held against figures of others."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from planner import catalog, documents, saved
from planner.console import (
    DONE,
    NOT_FEASIBLE,
    ForceOption,
    Format,
    FormatOption,
    check_output,
    check_rows_format,
    counting,
    emit,
    emit_rows,
    hub_cache,
)
from planner.printable import escaped

if TYPE_CHECKING:
    from planner.serving_rows import ServingRow

validate_app = typer.Typer(help="Hold planner against an engine's own figures.", no_args_is_help=True)


@validate_app.command(
    "memory",
    epilog="\b\nExample: planner validate memory --configs model_configs_dir --oracle kv_engine_oracle.json.gz",
)
def validate_memory(
    configs: Annotated[Path, typer.Option("--configs", help="Folder of checkpoint folders named ORG__NAME.")],
    oracle: Annotated[Path, typer.Option("--oracle", help="What the engine computed, JSON or JSON.gz.")],
    engine: Annotated[str, typer.Option(help="Engine profile to hold against it.")] = catalog.DEFAULT_ENGINE,
    output_format: FormatOption = Format.text,
) -> None:
    """Groups, blocks, bytes and weights against what an engine computed for the same configs."""
    from planner.validate import score_memory  # not needed by any other command's start-up

    loaded = documents.load_json(oracle, saved.MAX_ORACLE_BYTES)
    with counting("rows") as step:
        score = score_memory(loaded, configs, engine, step, str(oracle))
    lines = (
        f"rows {score.rows:,}, equal {score.equal:,}, refused {score.refused:,}, "
        f"mismatches {len(score.mismatches):,}; weights of {score.weights_rows:,} rows: "
        f"{score.weights_equal:,} equal to the byte, {len(score.weights_mismatches):,} beyond 0.1 % (1 % quantised)",
        *score.mismatches,
        *score.weights_mismatches,
    )
    emit_rows(asdict(score), lines, output_format)
    raise typer.Exit(NOT_FEASIBLE if score.mismatches or score.weights_mismatches else DONE)


@validate_app.command("logs", epilog="\b\nExample: planner validate logs server.log --gpu h100-sxm")
def validate_logs(
    file: Annotated[Path, typer.Argument(help="A vLLM server's log, or a CSV of start-up figures; .gz accepted.")],
    configs: Annotated[
        Path | None, typer.Option("--configs", help="Folder of checkpoint folders named ORG__NAME.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="Accelerator, for logs that do not name it.")] = None,
    output_format: FormatOption = Format.text,
) -> None:
    """Pool and concurrency against what engines logged at start-up."""
    from planner.engine_logs import read_rows
    from planner.validate_logs import score_logs

    rows = read_rows(documents.read_text(file, saved.MAX_ORACLE_BYTES), str(file))
    score = score_logs(rows, configs, gpu, hub_cache())
    worst = "" if score.worst_pool_gib is None else f" (worst {score.worst_pool_gib:.2f} GiB)"
    lines = (
        *score.lines,
        f"rows {score.rows:,}, refused {score.refused:,}, pool within 1 GiB {score.pool_within:,}{worst}, "
        f"concurrency within 0.1 % or the log's rounding "
        f"{score.concurrency_within:,} of {score.concurrency_rows:,} without pipeline parallelism",
        *score.mismatches,
    )
    emit_rows(asdict(score), lines, output_format)
    raise typer.Exit(NOT_FEASIBLE if score.mismatches else DONE)


@validate_app.command(
    "kernels",
    epilog="\b\nExample: planner validate kernels tests/oracles/kernels/kernel_gemm.csv.gz",
)
def validate_kernels(
    tables: Annotated[
        list[Path], typer.Argument(help="Tables of measured kernels, CSV or CSV.gz.", metavar="TABLE...")
    ],
    calibration: Annotated[
        str | None,
        typer.Option(help="Shipped name or YAML for every point; default: the one of the point's GPU and engine."),
    ] = None,
    output_format: FormatOption = Format.text,
) -> None:
    """Predicted kernel times against measured ones, by family, GPU and engine: points, median, p90, bias."""
    from planner.calibrate import score  # not needed by any other command's start-up

    scores = score.score_tables(tables, calibration)
    width = Console().width if sys.stdout.isatty() else score.WIDE
    emit_rows(score.fields(scores), score.lines(scores, width), output_format)
    raise typer.Exit(NOT_FEASIBLE if scores.exceeded or not scores.keys else DONE)


LATENCY = {"ttft_ms": "ttft_ms", "tpot_ms": "tpot_ms"}
THROUGHPUT = {"tokens_per_s": "output_tokens_per_s"}
ConfigsOption = Annotated[
    Path | None,
    typer.Option("--configs", help="Folder of checkpoint folders named ORG__NAME; default: shipped models."),
]
PredictionsOption = Annotated[
    Path | None, typer.Option("--predictions", help="Write every predicted row to a CSV, whole or not at all.")
]
CalibratedOption = Annotated[
    str | None,
    typer.Option(
        "--calibrated-on", help="Price every row with this GPU's constants, on the row's own GPU's datasheet peaks."
    ),
]


@validate_app.command("serving", epilog="\b\nExample: planner validate serving tests/oracles/serving_latency.csv")
def validate_serving(
    rows: Annotated[Path, typer.Argument(help="Measured rows, CSV or CSV.gz.")],
    configs: ConfigsOption = None,
    predictions: PredictionsOption = None,
    force: ForceOption = False,
    calibrated_on: CalibratedOption = None,
    output_format: FormatOption = Format.text,
) -> None:
    """TTFT and TPOT against measured rows, replayed as their benchmark ran them, beside a peer's own errors."""
    from planner import serving_rows

    read = serving_rows.read_latency(documents.read_text(rows, saved.MAX_ORACLE_BYTES), str(rows))
    _score(read, LATENCY, configs, predictions, calibrated_on, output_format, force=force)


@validate_app.command(
    "throughput", epilog="\b\nExample: planner validate throughput tests/oracles/trtllm_throughput.csv"
)
def validate_throughput(
    rows: Annotated[Path, typer.Argument(help="Measured rows, CSV or CSV.gz.")],
    configs: ConfigsOption = None,
    predictions: PredictionsOption = None,
    force: ForceOption = False,
    calibrated_on: CalibratedOption = None,
    output_format: FormatOption = Format.text,
) -> None:
    """Output tokens per second of saturated deployments against measured rows, beside a peer's own errors."""
    from planner import serving_rows

    read = serving_rows.read_throughput(documents.read_text(rows, saved.MAX_ORACLE_BYTES), str(rows))
    _score(read, THROUGHPUT, configs, predictions, calibrated_on, output_format, force=force)


def _score(
    rows: "list[ServingRow]",
    columns: dict[str, str],
    configs: Path | None,
    predictions: Path | None,
    calibrated_on: str | None,
    output_format: Format,
    *,
    force: bool,
) -> None:
    from planner import validate_serving as score

    check_rows_format(output_format)
    check_output(predictions, force=force)
    with counting("rows") as step:
        found = score.score_serving(rows, configs, calibrated_on, step)
    for reason in found.refused.values():
        sys.stderr.write(f"planner: {escaped(reason)}\n")
    if predictions is not None:
        emit(score.predictions_csv(rows, found, columns), predictions, force=force)
    emit_rows(score.fields(found), score.lines(found), output_format)
    raise typer.Exit(DONE if found.predictions else NOT_FEASIBLE)


@validate_app.command(
    "replay",
    epilog="\b\nExample: planner validate replay tests/oracles/traces/vllm_truth_RTX4090_Llama-3.1-8B.jsonl "
    "--meta tests/oracles/traces/vllm_truth_RTX4090_Llama-3.1-8B.meta.json",
)
def validate_replay(
    run: Annotated[Path, typer.Argument(help="A vLLM run's requests with their times, JSON lines; .gz accepted.")],
    meta: Annotated[Path, typer.Option("--meta", help="The run's model, version, device and settings, JSON.")],
    gpu: Annotated[str | None, typer.Option(help="Accelerator, where the record does not name it.")] = None,
    model: Annotated[str | None, typer.Option(help="Shipped name or path, instead of the record's model.")] = None,
    configs: ConfigsOption = None,
    timeseries: Annotated[
        Path | None, typer.Option(help="CSV of running, waiting and kv_cache_pct by second, to compare as well.")
    ] = None,
    output_format: FormatOption = Format.text,
) -> None:
    """A recorded run through the simulated engine: its TTFT, TPOT and E2E, with fitted constants and without."""
    from planner import replay_meta, replay_rows, replay_series, replay_setup
    from planner import validate_replay as score

    check_rows_format(output_format)
    recorded = replay_rows.read_run(documents.read_text(run, saved.MAX_ORACLE_BYTES), str(run))
    over_time = (
        {} if timeseries is None else replay_series.read_series(documents.read_text(timeseries), str(timeseries))
    )
    settings = replay_meta.read_meta(meta)
    prepared = replay_setup.prepare(recorded, settings, str(meta), model=model, gpu=gpu, configs=configs)
    with counting("replays") as step:
        found = score.score_replay(prepared, step)
    compared = replay_series.compare_series(over_time, found.fitted.points)
    lines = (*score.lines(found), *replay_series.series_lines(compared))
    emit_rows(score.fields(found) | {"over_time": [asdict(each) for each in compared]}, lines, output_format)
    raise typer.Exit(DONE if found.within else NOT_FEASIBLE)
