"""`planner search`: arguments -> one call -> print."""

from typing import Annotated

import typer

from planner import catalog
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
    PriceOption,
    QuantizationOption,
    ScenarioArgument,
    SettingsOption,
    TtftOption,
    WorkloadOption,
    dated,
    overrides_of,
)
from planner.cli_results import write
from planner.console import (
    DONE,
    NOT_FEASIBLE,
    ForceOption,
    OutputOption,
    ResultFormatOption,
    check_output,
    counting,
    hub_cache,
    stopping_when_terminated,
)
from planner.errors import InputError
from planner.input_types import MOST_COUNTED, MOST_RANKS


def _degrees(what: str) -> object:
    return typer.Option(min=1, max=MOST_RANKS, help=f"{what}; repeat to try several.")


def search(
    scenario: ScenarioArgument = None,
    model: ModelOption = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(help="Accelerator: shipped name or YAML; repeat. Default: all with a listed price."),
    ] = None,
    workload: WorkloadOption = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="Engine profile; repeat to try several. Default: the newest vLLM.")
    ] = None,
    price: PriceOption = None,
    context: Annotated[int | None, typer.Option(min=1, help="Longest request, input and output together.")] = None,
    concurrency: ConcurrencyOption = None,
    arrivals: ArrivalsOption = None,
    ttft_p95: TtftOption = None,
    itl_p95: ItlOption = None,
    availability: AvailabilityOption = None,
    calibration: CalibrationOption = None,
    tp: Annotated[list[int] | None, _degrees("Tensor parallel ranks, by default 1, 2, 4 and 8")] = None,
    pp: Annotated[list[int] | None, _degrees("Pipeline stages, by default 1")] = None,
    dp: Annotated[list[int] | None, _degrees("Data parallel ranks within a replica, by default 1")] = None,
    ep: Annotated[
        list[int] | None, _degrees("Expert parallel ranks, by default 1, and tp x dp for models with experts")
    ] = None,
    kv_dtype: Annotated[
        list[str] | None, typer.Option(help="KV cache dtype, such as auto or fp8; repeat to try several.")
    ] = None,
    block_tokens: BlockTokensOption = None,
    gpu_memory_utilization: GpuMemoryOption = None,
    max_num_batched_tokens: Annotated[
        list[int] | None,
        typer.Option(min=1, max=MOST_COUNTED, help="Tokens of one engine step; repeat to try several."),
    ] = None,
    max_num_seqs: Annotated[
        list[int] | None,
        typer.Option(min=1, max=MOST_COUNTED, help="Requests the engine runs at once; repeat to try several."),
    ] = None,
    dtype: DtypeOption = None,
    quantization: QuantizationOption = None,
    settings: SettingsOption = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="Candidates to print, by default 10; YAML and JSON hold all.")
    ] = None,
    rejected: Annotated[
        bool, typer.Option("--rejected", "--all", help="Print every rejected choice, not one of each kind.")
    ] = False,
    mix: Annotated[
        bool, typer.Option("--mix", help="Also mix choices by size of request; needs arrivals, and the extra mix.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, max=1024, help="Processes that plan.")] = 1,
    output_format: ResultFormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    brief: Annotated[bool, typer.Option("--brief", help="Text without assumptions.")] = False,
) -> None:
    """Which GPU, parallelism, cache dtype and limits serve a workload cheapest, and why the others do not."""
    from planner.render.search import DEFAULT_TOP, Shown
    from planner.search import search as search_space  # neither is needed by any other command's start-up
    from planner.search_inputs import load_search

    overrides = overrides_of(
        settings,
        model=model,
        workload=workload,
        price=price,
        context=context,
        concurrency=concurrency,
        arrivals=arrivals,
        ttft_p95=ttft_p95,
        itl_p95=itl_p95,
        availability=availability,
        calibration=calibration,
        block_tokens=block_tokens,
        gpu_memory_utilization=gpu_memory_utilization,
        dtype=dtype,
        quantization=quantization,
    )
    choices = {
        "accelerators": gpu,
        "engines": engine,
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "ep": ep,
        "kv_dtypes": kv_dtype,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs,
    }
    check_output(output, force=force)
    path = None if scenario is None else catalog.find_scenario(scenario)
    loaded, space = load_search(path, overrides, choices, hub_cache())
    if loaded.commitment and (mix or len(space.offers) > 1):
        raise InputError(
            "commitment: its price is of one device: a search with a commitment takes one --gpu and no --mix"
        )
    with counting("choices") as step, stopping_when_terminated():
        result = search_space(dated(loaded), space, jobs=jobs, mix=mix, step=step)
    write(result, output_format, output, force=force, brief=brief, shown=Shown(top or DEFAULT_TOP, rejected=rejected))
    raise typer.Exit(DONE if result.candidates else NOT_FEASIBLE)
