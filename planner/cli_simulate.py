"""`planner simulate`: arguments -> one call -> print."""

from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from planner.cli_options import (
    ArrivalsOption,
    CalibrationOption,
    ConcurrencyOption,
    ItlOption,
    ModelOption,
    OwnPriceOption,
    PricedOnOption,
    ScenarioArgument,
    SettingsOption,
    TtftOption,
    WorkloadOption,
    loaded,
    overrides_of,
)
from planner.cli_results import write
from planner.compare import compare
from planner.console import (
    DONE,
    NOT_FEASIBLE,
    ForceOption,
    OutputOption,
    ResultFormatOption,
    check_output,
    counting,
    emit,
    prints_text,
    stopping_when_terminated,
)
from planner.errors import InputError
from planner.report import Report

FROM_ESTIMATE = "from-estimate"
MOST_REQUESTS = 10**9


class Law(StrEnum):
    """How requests come."""

    poisson = "poisson"
    gamma = "gamma"
    fixed = "fixed"
    closed = "closed"


class Routing(StrEnum):
    """Which replica a request goes to."""

    round_robin = "round-robin"
    least_loaded = "least-loaded"
    prefix_aware = "prefix-aware"


def simulate(
    scenario: ScenarioArgument = None,
    model: ModelOption = None,
    gpu: Annotated[str | None, typer.Option(help="Accelerator: shipped name or YAML.")] = None,
    workload: WorkloadOption = None,
    engine: Annotated[str | None, typer.Option(help="Engine profile; default: the newest vLLM.")] = None,
    price: OwnPriceOption = None,
    priced_on: PricedOnOption = None,
    context: Annotated[int | None, typer.Option(min=1, help="Longest request, input and output together.")] = None,
    concurrency: ConcurrencyOption = None,
    arrivals: ArrivalsOption = None,
    ttft_p95: TtftOption = None,
    itl_p95: ItlOption = None,
    calibration: CalibrationOption = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor parallel ranks.")] = None,
    dp: Annotated[int | None, typer.Option(min=1, help="Data parallel ranks within a replica.")] = None,
    ep: Annotated[int | None, typer.Option(min=1, help="Expert parallel ranks: 1, or tp x dp.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV cache dtype, such as auto, bfloat16 or fp8.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of one engine step.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="Requests the engine runs at once.")] = None,
    settings: SettingsOption = None,
    fleet: Annotated[
        list[str] | None,
        typer.Option(help="Replicas, or from-estimate, which is confirmed or corrected; repeat to compare."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Requests to replay: Azure, Mooncake, BurstGPT or vLLM/AIPerf form; .gz too.")
    ] = None,
    trace_format: Annotated[str | None, typer.Option(help="Form of the trace; default: by its first line.")] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out bad lines of a trace and count them.")
    ] = False,
    rate: Annotated[
        list[str] | None, typer.Option(help="Requests per second, of a trace its clock set so; repeat to compare.")
    ] = None,
    speed: Annotated[str | None, typer.Option(help="Times as fast as the trace was recorded.")] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_REQUESTS, help="Requests: of a trace its first; default: all, or 10,000."),
    ] = None,
    arrival_law: Annotated[
        Law | None, typer.Option(help="How requests come; default: as bursty as the workload.")
    ] = None,
    variation: Annotated[str | None, typer.Option(help="Squared coefficient of variation of gamma gaps.")] = None,
    users: Annotated[int | None, typer.Option(min=1, help="A closed loop of so many users.")] = None,
    think: Annotated[str | None, typer.Option(help="Seconds from an answer to its user's next request.")] = None,
    most_input_tokens: Annotated[int | None, typer.Option(min=1, help="Longer prompts are cut.")] = None,
    most_output_tokens: Annotated[int | None, typer.Option(min=1, help="Longer answers are cut.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    routing: Annotated[Routing, typer.Option(help="Which replica a request goes to.")] = Routing.round_robin,
    failures: Annotated[
        bool, typer.Option("--failures", help="Nodes fail as spares.failures says; spare replicas serve too.")
    ] = False,
    max_queue: Annotated[int | None, typer.Option(min=1, help="Requests that may wait at a replica.")] = None,
    timeout: Annotated[
        str | None, typer.Option(help="Seconds after which a request that has not ended is cancelled.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=1024, help="Processes that simulate, where there are several.")] = 1,
    output_format: ResultFormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    brief: Annotated[bool, typer.Option("--brief", help="Text of the simulation alone.")] = False,
    plot: Annotated[
        bool, typer.Option("--plot", help="Also plot running, waiting and KV use over time (text only).")
    ] = False,
) -> None:
    """The estimate's fleet tried against arrivals or a trace on a model of the engine's scheduler and block pool."""
    from planner.simulate.asked import Asked
    from planner.simulation import Fleet, Task, simulate_all  # neither is needed by any other command's start-up

    overrides = overrides_of(
        settings,
        model=model,
        gpu=gpu,
        workload=workload,
        engine=engine,
        price=price,
        priced_on=priced_on,
        context=context,
        concurrency=concurrency,
        arrivals=arrivals,
        ttft_p95=ttft_p95,
        itl_p95=itl_p95,
        calibration=calibration,
        tp=tp,
        dp=dp,
        ep=ep,
        kv_dtype=kv_dtype,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
    )
    check_output(output, force=force)
    asked = Asked(
        trace=trace,
        form=trace_format,
        skip_bad=skip_bad,
        arrivals=arrival_law.value if arrival_law else None,
        variation=_number("--variation", variation),
        speed=_number("--speed", speed, least=1e-6),
        requests=requests,
        users=users,
        think_s=_number("--think", think) or 0.0,
        most_input_tokens=most_input_tokens,
        most_output_tokens=most_output_tokens,
        seed=seed,
    )
    served = Fleet(
        routing=routing.value,
        fails=failures,
        max_queue=max_queue,
        timeout_s=_number("--timeout", timeout, least=1e-3),
        seed=seed,
    )
    rates = [_number("--rate", each, least=1e-6) for each in rate or ()] or [None]
    counts = [_replicas(each) for each in fleet or (FROM_ESTIMATE,)]
    tasks = [Task(asked, served, per_s, count) for per_s, count in product(rates, counts)]
    with counting("requests") as step, stopping_when_terminated():
        reports = simulate_all(loaded(scenario, overrides), tasks, jobs=jobs, step=step)
    result = reports[0] if len(reports) == 1 else compare(reports)
    write(result, output_format, output, force=force, brief=brief)
    _plot(reports, wanted=plot and prints_text(output_format, output))
    raise typer.Exit(DONE if all(each.simulation and each.simulation.met for each in reports) else NOT_FEASIBLE)


def _number(name: str, given: str | None, least: float = 0.0, most: float = 1e9) -> float | None:
    if given is None:
        return None
    try:
        number = float(given)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise InputError(f"{name}: {given!r} is not accepted; a number from {least:g} to {most:g} is")
    return number


def _replicas(given: str) -> int | None:
    if given == FROM_ESTIMATE:
        return None
    if not (given.isascii() and given.isdecimal() and 1 <= len(given) <= 6 and int(given)):
        raise InputError(f"--fleet: {given!r} is not accepted; {FROM_ESTIMATE} or a number of replicas is")
    return int(given)


def _plot(reports: list[Report], *, wanted: bool) -> None:
    if wanted:
        from rich.console import Console

        from planner.render.plot import simulation_curves  # not needed by any other command's start-up

        for report in reports:
            if report.simulation:
                emit(f"\n{simulation_curves(report.simulation, Console().width)}\n", None, force=False)
