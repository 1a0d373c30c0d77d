"""The command line: arguments -> one call -> print."""

import json
import sys
from dataclasses import asdict
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel
from rich.console import Console

from planner import __version__, catalog, documents, saved
from planner.cli_calibrate import calibrate_app
from planner.cli_options import (
    ArrivalsOption,
    AvailabilityOption,
    BlockTokensOption,
    CalibrationOption,
    ConcurrencyOption,
    DtypeOption,
    GpuMemoryOption,
    ItlOption,
    ModelOption,
    OwnPriceOption,
    PricedOnOption,
    QuantizationOption,
    ScenarioArgument,
    SettingsOption,
    TtftOption,
    WorkloadOption,
    loaded,
    overrides_of,
)
from planner.cli_results import write
from planner.cli_search import search
from planner.cli_simulate import simulate
from planner.cli_validate import validate_app
from planner.compare import compare as compare_reports
from planner.console import (
    DONE,
    NOT_FEASIBLE,
    ForceOption,
    Format,
    FormatOption,
    OutputOption,
    PlannerGroup,
    ResultFormatOption,
    emit,
    emit_rows,
    hub_cache,
    prints_text,
)
from planner.demand import plan_demand
from planner.errors import InputError
from planner.inputs import PriceList, Scenario
from planner.render import text
from planner.report import Comparison, Report

app = typer.Typer(
    name="planner",
    cls=PlannerGroup,
    help="Capacity and cost of serving LLMs: does it fit, how many GPUs, what does it cost a month.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

PlotOption = Annotated[bool, typer.Option("--plot", help="Also plot KV bytes over context (text only).")]
BriefOption = Annotated[bool, typer.Option("--brief", help="Text without arithmetic, assumptions and sources.")]


@app.command(
    epilog="\b\nExample: planner estimate --model llama-3.1-8b --gpu h100-sxm --workload chat --context 16384 "
    "--context 32768"
)
def estimate(
    scenario: ScenarioArgument = None,
    model: ModelOption = None,
    gpu: Annotated[list[str] | None, typer.Option(help="Accelerator: shipped name or YAML; repeat to compare.")] = None,
    workload: WorkloadOption = None,
    engine: Annotated[str | None, typer.Option(help="Engine profile; default: the newest vLLM.")] = None,
    price: OwnPriceOption = None,
    priced_on: PricedOnOption = None,
    context: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Longest request, input and output together; repeat to compare."),
    ] = None,
    concurrency: ConcurrencyOption = None,
    arrivals: ArrivalsOption = None,
    ttft_p95: TtftOption = None,
    itl_p95: ItlOption = None,
    availability: AvailabilityOption = None,
    calibration: CalibrationOption = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Also say what this many devices carry.")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor parallel ranks.")] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Pipeline stages.")] = None,
    dp: Annotated[int | None, typer.Option(min=1, help="Data parallel ranks within a replica.")] = None,
    ep: Annotated[int | None, typer.Option(min=1, help="Expert parallel ranks: 1, or tp x dp.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV cache dtype, such as auto, bfloat16 or fp8.")] = None,
    block_tokens: BlockTokensOption = None,
    gpu_memory_utilization: GpuMemoryOption = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of one engine step.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="Requests the engine runs at once.")] = None,
    dtype: DtypeOption = None,
    quantization: QuantizationOption = None,
    kv_cache_bytes: Annotated[
        int | None, typer.Option(min=1, help="KV cache bytes per rank; replaces the computed pool.")
    ] = None,
    settings: SettingsOption = None,
    output_format: ResultFormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    brief: BriefOption = False,
    plot: PlotOption = False,
) -> None:
    """Memory, requests that fit, speed, fleet and monthly cost of a scenario."""
    overrides = overrides_of(
        settings,
        model=model,
        workload=workload,
        engine=engine,
        price=price,
        priced_on=priced_on,
        concurrency=concurrency,
        arrivals=arrivals,
        ttft_p95=ttft_p95,
        itl_p95=itl_p95,
        availability=availability,
        calibration=calibration,
        tp=tp,
        pp=pp,
        dp=dp,
        ep=ep,
        kv_dtype=kv_dtype,
        block_tokens=block_tokens,
        gpu_memory_utilization=gpu_memory_utilization,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        dtype=dtype,
        quantization=quantization,
        kv_cache_bytes=kv_cache_bytes,
    )
    chosen = [overrides | {"accelerator": name} for name in gpu or ()] or [overrides]
    scenarios = [loaded(scenario, of_one) for of_one in chosen]
    asked = [_with_context(loaded, tokens) for loaded in scenarios for tokens in context or [loaded.context]]
    reports = [plan_demand(each, devices) for each in asked]
    result = reports[0] if len(reports) == 1 else compare_reports(reports)
    write(result, output_format, output, force=force, brief=brief)
    _plot(reports, wanted=plot and prints_text(output_format, output))
    raise typer.Exit(_exit_code(reports))


@app.command(epilog="\b\nExample: planner compare examples/context-upgrade/16k.yaml examples/context-upgrade/32k.yaml")
def compare(
    old: Annotated[str, typer.Argument(help="Scenario file or saved report.")],
    new: Annotated[str, typer.Argument(help="Scenario file or saved report.")],
    output_format: ResultFormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Every line that moved between two scenarios or saved reports: old, new, difference, and why."""
    reports = [_report_of(ref) for ref in (old, new)]
    write(compare_reports(reports), output_format, output, force=force, brief=True)
    raise typer.Exit(_exit_code(reports))


app.command(
    epilog="\b\nExample: planner simulate --model llama-3.1-8b --gpu h100-sxm --workload chat --arrivals 5 --ttft-p95 1"
)(simulate)
app.command(
    epilog="\b\nExample: planner search --model llama-3.1-8b --workload chat --gpu h100-sxm --gpu l40s --ttft-p95 1"
)(search)


@app.command(
    epilog="\b\nExample: planner check examples/context-upgrade/32k.yaml --max-monthly-usd 30000 "
    "--require 'devices<=12'"
)
def check(
    report: Annotated[str, typer.Argument(help="Scenario file or saved report.")],
    max_monthly_usd: Annotated[str | None, typer.Option(help="Most dollars a month.")] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(help="A figure of the report and its limit, such as 'ttft_p95_s<=2'; .high of a range; repeat."),
    ] = None,
    output_format: FormatOption = Format.text,
) -> None:
    """A gate for reviews and CI: ends with 3 where a plan does not hold what is required of it."""
    from planner.gate import check as check_report  # not needed by any other command's start-up
    from planner.gate import requirement

    budget = [] if max_monthly_usd is None else [f"monthly_usd<={max_monthly_usd}"]
    requirements = [requirement(text) for text in (*budget, *(require or ()))]
    verdicts = check_report(_report_of(report), requirements)
    lines = (f"{'holds' if each.holds else 'FAILS'}  {each.text}" for each in verdicts)
    emit_rows([asdict(each) for each in verdicts], lines, output_format)
    raise typer.Exit(DONE if all(each.holds for each in verdicts) else NOT_FEASIBLE)


@app.command(epilog="\b\nExample: planner report saved.yaml --format markdown")
def report(
    file: Annotated[Path, typer.Argument(help="A report, comparison or search saved as YAML or JSON.")],
    output_format: ResultFormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    brief: BriefOption = False,
    plot: PlotOption = False,
) -> None:
    """Draw a saved report again, in any format, without planning again."""
    result = saved.read(file)
    write(result, output_format, output, force=force, brief=brief)
    reports = list(result.reports) if isinstance(result, Comparison) else [result] if isinstance(result, Report) else []
    _plot(reports, wanted=plot and prints_text(output_format, output))


@app.command("import", epilog="\b\nExample: planner import ./my-checkpoint -o my-model.yaml")
def import_model(
    model: Annotated[str, typer.Argument(help="config.json, checkpoint directory or Hugging Face id.")],
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Write planner's own model YAML from a vendor's config."""
    emit(saved.model_yaml(catalog.load_model(model, hub_cache=hub_cache())), output, force=force)


@app.command(epilog="\b\nExample: planner schema scenario > scenario.schema.json")
def schema(
    kind: Annotated[
        str,
        typer.Argument(
            help="scenario, model, accelerator, engine, workload, price, price-list, calibration, failure, report, "
            "comparison or search."
        ),
    ],
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """JSON Schema of an input or a report, for editors to complete and check."""
    from planner.schema import json_schema  # neither is needed by any other command's start-up
    from planner.search_report import SearchResult

    kinds: dict[str, type[BaseModel]] = {
        **catalog.KINDS,
        "price-list": PriceList,
        "scenario": Scenario,
        "report": Report,
        "comparison": Comparison,
        "search": SearchResult,
    }
    if kind not in kinds:
        raise InputError(f"{kind!r} has no schema; accepted: {', '.join(sorted(kinds))}")
    emit(json.dumps(json_schema(kinds[kind]), indent=2) + "\n", output, force=force)


@app.command("catalog", epilog="\b\nExample: planner catalog models")
def show_catalog(
    kind: Annotated[
        str, typer.Argument(help="models, accelerators, engines, workloads, prices, calibrations or failures.")
    ],
    gpu: Annotated[str | None, typer.Option(help="Of prices: an accelerator's name or its beginning.")] = None,
    output_format: FormatOption = Format.text,
) -> None:
    """What is shipped: models with layers by kind, bytes per token and state; dated prices; all else by name."""
    from planner.listing import KINDS_LISTED, prices, rows  # imports every model family, which no other command needs

    singular = kind.removesuffix("s")
    if singular not in KINDS_LISTED:
        raise InputError(f"{kind!r} is not a kind of input; accepted: {', '.join(f'{k}s' for k in KINDS_LISTED)}")
    if gpu is not None and singular != "price":
        raise InputError(f"--gpu: {kind} are not listed by accelerator; prices are")
    found = rows(singular) if gpu is None else prices(gpu)
    emit_rows(found, text.listing_lines(found), output_format)


app.add_typer(calibrate_app, name="calibrate")
app.add_typer(validate_app, name="validate")


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Options of planner itself."""
    if show:
        emit(f"planner {__version__}\n", None, force=False)
        raise typer.Exit()


def main() -> None:
    """Entry point of the `planner` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # whatever the locale: results are the same bytes everywhere
    app()


def _with_context(scenario: Scenario, tokens: int) -> Scenario:
    return scenario if tokens == scenario.context else scenario.model_copy(update={"context_tokens": tokens})


def _report_of(ref: str) -> Report:
    path = catalog.find_scenario(ref)
    if not saved.is_result(documents.load_mapping(path, saved.MAX_REPORT_BYTES)):
        return plan_demand(loaded(ref, {}))
    found = saved.read(path)
    if isinstance(found, Comparison):
        raise InputError(f"{ref}: holds {len(found.reports)} reports; compare takes one from each file")
    if found.kind == "planner search":
        raise InputError(f"{ref}: cannot be compared: it holds a search")
    return found


def _exit_code(reports: list[Report]) -> int:
    stranded = any(r.carry is not None and (r.carry.active_replicas == 0 or r.carry.misses) for r in reports)
    return DONE if all(r.fits and r.meets_objectives for r in reports) and not stranded else NOT_FEASIBLE


def _plot(reports: list[Report], *, wanted: bool) -> None:
    """The longest context's curve; the others lie on it."""
    if wanted and reports:
        from planner.render.plot import cache_curve  # not needed by any other command's start-up

        longest = max(reports, key=lambda report: report.scenario.context_tokens)
        emit(f"\n{cache_curve(longest, Console().width)}\n", None, force=False)
