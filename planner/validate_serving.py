"""Holding planner against measured serving: rows replayed as the benchmark ran them, errors slice by slice."""

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from io import StringIO
from pathlib import Path

from planner.architectures import resolve
from planner.calibrate.accuracy import percentile, summary
from planner.calibrate.shipped import calibrations_for, small_kernels
from planner.catalog import load_accelerator, load_scenario, names
from planner.deployment import Deployment, deploy
from planner.errors import InputError, PlannerError, nearest
from planner.inputs import Scenario
from planner.kernel_times import KernelTimes
from planner.offline_benchmark import (
    FREE_MEMORY_SHARE,
    Limits,
    bench_limits,
    captured_batches,
    offline_tokens_per_s,
    request_count,
    schedule,
)
from planner.origin import Origin
from planner.pool import Pool
from planner.rank import governing_rank
from planner.rank_work import ExpertSplit
from planner.replica import RESERVES, replica_of
from planner.row_models import gpu_name, has_experts, row_model
from planner.serving import Replica, benchmark_ttft, saturated_tokens_per_s, tpot
from planner.serving_rows import BACKENDS, ServingRow
from planner.units import ceil_div
from planner.validate import PRICE, check_configs
from planner.validate_logs import nearest_engine

ENGINES = {"trtllm": "tensorrt-llm-1.0", "sglang": "sglang-0.5"}
BENCH_MEMORY: dict[str, object] = {"engine.free_memory_share": FREE_MEMORY_SHARE}
ALL_MEMORY: dict[str, object] = {"memory.workspace_gib": 0, "memory.reserve_gib": 0}
"""A row was measured, so its engine was told to leave less free than it does by default; how much is not recorded."""
METRICS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "tokens_per_s": "throughput"}


@dataclass(frozen=True, slots=True)
class Slice:
    """Errors of one metric over some rows, in percent."""

    metric: str
    by: str
    value: str
    rows: int
    """Measured rows of the slice."""
    refused: int
    """Of these, those that planner does not predict: each counts as an error of 100 %."""
    median_percent: float
    p90_percent: float
    bias_percent: float
    """Median of the signed errors of predicted rows: above 0, predictions are high."""
    p10_signed_percent: float
    """10th percentile of the same: four of five predicted rows are between it and the 90th."""
    p90_signed_percent: float
    peer_rows: int
    peer_median_percent: float | None
    peer_p90_percent: float | None
    peer_bias_percent: float | None


@dataclass(slots=True)
class ServingScore:
    """What planner predicts for each row, and how far off it is."""

    rows: int = 0
    measured: int = 0
    predictions: dict[int, Mapping[str, float]] = field(default_factory=dict)
    """By place among the rows; a refused row is absent."""
    refused: dict[int, str] = field(default_factory=dict)
    tight: dict[int, str] = field(default_factory=dict)
    """Rows that ran although an engine with its defaults would hold not one request: predicted without a reserve."""
    calibrations: dict[str, str] = field(default_factory=dict)
    """GPU and engine of predicted rows -> the calibration asked first, with a word where it is another GPU's."""
    slices: list[Slice] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A replica as a row ran it."""

    replica: Replica
    pool: Pool
    max_num_seqs: int | None
    reserves_output: bool
    """The engine reserves a request's whole length (TensorRT-LLM); False: blocks on demand."""
    dp: int
    moe: bool
    limits: Limits | None = None
    """What a benchmark set, where it did."""
    tight: bool = False
    """The engine's reserve and workspace are left out, as with them not one request would fit."""

    def slots(self, isl: int, osl: int, asked: int | None) -> int:
        """Requests that run at once: by memory, at their whole or mean length, and by the scheduler.

        asked: the client's concurrency, for which its engine was set up; None: the engine's default limit
        """
        tokens = isl + osl if self.reserves_output else isl + osl // 2
        held = self.pool.decoding(tokens)
        if held < 1:
            raise InputError(f"not one request of {tokens:,} tokens fits beside the weights")
        limit = max(self.max_num_seqs or held, ceil_div(asked or 1, self.dp))
        return self.dp * min(held, limit)


def score_serving(
    rows: list[ServingRow],
    configs: Path | None,
    measured_on: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ServingScore:
    """Every row predicted, and held against what was measured.

    configs: a folder of checkpoint folders named ORG__NAME; None: shipped models only
    measured_on: the GPU whose calibration prices every row, on the row's own datasheet peaks; None: the row's GPU
    raises: InputError where there is no such folder or no such calibration
    """
    if configs is not None:
        check_configs(configs)
    if measured_on is not None:
        calibrations_for(load_accelerator(measured_on), "vllm", measured_on)
    score = ServingScore(rows=len(rows), measured=sum(bool(row.measured) for row in rows))
    kinds: dict[int, str] = {}
    for place, row in enumerate(rows):
        if progress:
            progress(place, len(rows))
        try:
            prepared = prepare(row, configs, measured_on)
            kinds[place] = "MoE" if prepared.moe else "dense"
            score.predictions[place] = predict(row, prepared)
            times = prepared.replica.times
            score.calibrations[f"{times.gpu.name} {row.backend}"] = _calibration(times)
            if prepared.tight:
                score.tight[place] = row.id
        except PlannerError as error:
            score.refused[place] = f"line {row.line}, {row.id}: refused: {error.problems[0]}"
    score.slices.extend(_slices(rows, kinds, score.predictions))
    return score


def _calibration(times: KernelTimes) -> str:
    """Its name; constants of another GPU are used for lack of its own, or because the user asked."""
    found = times.first
    stands_in = "" if found.gpu == times.gpu.name else f" (another GPU's: {found.gpu}, on this one's datasheet peaks)"
    return found.name + stands_in


def predict(row: ServingRow, prepared: Prepared) -> dict[str, float]:
    """TTFT and TPOT in ms, or tokens per second of all replicas, as the row's benchmark would measure them."""
    isl, osl = row.mean_isl, row.mean_osl
    slots = prepared.slots(isl, osl, None if row.saturated else row.concurrency)
    if row.saturated:
        return {"tokens_per_s": _saturated(row, prepared, slots) * row.replicas}
    waves = row.range_ratio == 1
    each = tpot(prepared.replica, min(row.concurrency, slots), isl, osl, in_waves=waves).seconds
    first = benchmark_ttft(prepared.replica, row.concurrency, slots, isl, osl, in_waves=waves)
    return {"ttft_ms": first * 1e3, "tpot_ms": each * 1e3}


def _saturated(row: ServingRow, prepared: Prepared, slots: int) -> float:
    """Tokens per second of one replica: over a whole run of trtllm-bench, else while its batch never runs dry."""
    replica, isl, osl = prepared.replica, row.mean_isl, row.mean_osl
    if prepared.limits is None:
        return saturated_tokens_per_s(replica, slots, isl, osl)
    tokens = prepared.limits.max_num_batched_tokens * replica.groups
    run = schedule(request_count(isl, osl), slots, tokens, isl, osl)
    captured = captured_batches(prepared.limits.max_num_seqs, row.version)
    return offline_tokens_per_s(replica, run, isl, osl, captured)


def prepare(row: ServingRow, configs: Path | None, measured_on: str | None) -> Prepared:
    """The replica that a row ran.

    raises: InputError where planner cannot run it
    """
    if not row.aggregated:
        raise InputError("prefill and decode run apart: only aggregated serving is predicted")
    if row.backend not in BACKENDS:
        raise InputError(f"backend {row.backend!r} is not known; accepted: {', '.join(BACKENDS)}")
    names_and_form = (row.model, row.precision, row.backend, row.version, gpu_name(row.gpu))
    run = Run(*names_and_form, row.tp, row.pp, row.dp, row.moe_ep, row.isl + row.osl, row.mixed_chunks)
    if row.saturated and row.backend == "trtllm":
        run = replace(run, limits=_bench(run, row, configs))
    return _prepared(run, configs, measured_on)


@dataclass(frozen=True, slots=True)
class Run:
    """What rows of one deployment have in common."""

    model: str
    precision: str
    backend: str
    version: str
    gpu: str
    tp: int
    pp: int
    dp: int
    moe_ep: int
    context: int
    mixed_chunks: bool = False
    limits: Limits | None = None
    """What a benchmark set, where it did."""


def _bench(run: Run, row: ServingRow, configs: Path | None) -> Limits:
    """The limits that trtllm-bench sets, by what fits beside the weights alone."""
    found = _deployment(run, configs, {**BENCH_MEMORY, "memory.workspace_gib": 0})
    held = governing_rank(found).pool.requests(row.mean_isl + row.mean_osl)
    return bench_limits(held, row.mean_isl, row.mean_osl, row.pp)


@lru_cache(maxsize=4096)
def _prepared(run: Run, configs: Path | None, measured_on: str | None) -> Prepared:
    limits: dict[str, object] = {}
    if run.limits:
        limits = {f"engine_options.{name}": value for name, value in asdict(run.limits).items()} | BENCH_MEMORY
    deployment = _deployment(run, configs, limits)
    tight = governing_rank(deployment).pool.requests(deployment.scenario.context) < 1
    if tight:
        deployment = _deployment(run, configs, limits | ALL_MEMORY)
    engine = deployment.scenario.engine
    moe = deployment.stack.is_moe
    if moe and run.tp * run.dp % run.moe_ep:
        raise InputError(f"experts over {run.moe_ep} ranks do not divide the replica's {run.tp * run.dp}")
    split = ExpertSplit(run.tp * run.dp // run.moe_ep, run.moe_ep) if moe and run.moe_ep > 1 else None
    replica = replica_of(deployment, _times(run.gpu, engine.kind, measured_on), run.version, split)
    replica = replace(replica, mixes=replica.mixes or run.mixed_chunks)
    pool = governing_rank(deployment).pool
    reserves = engine.kind in RESERVES
    return Prepared(replica, pool, deployment.max_num_seqs, reserves, run.dp, moe, run.limits, tight)


@lru_cache(maxsize=64)
def _times(gpu: str, kind: str, measured_on: str | None) -> KernelTimes:
    accelerator = load_accelerator(gpu)
    return KernelTimes(accelerator, calibrations_for(accelerator, kind, measured_on), small_kernels())


def _deployment(run: Run, configs: Path | None, settings: Mapping[str, object]) -> Deployment:
    """The deployment of a run; whoever measured lengths over the config's positions had let the engine go beyond.

    settings: overrides of memory and limits; what is absent is the engine's default
    """
    scenario = _scenario(replace(run, context=1, limits=None), configs, tuple(settings.items()))
    context = min(run.context, resolve(scenario.model.config, scenario.model.origin).max_positions)
    workload = scenario.workload.model_copy(update={"context_tokens": context})
    return deploy(scenario.model_copy(update={"workload": workload}))


@lru_cache(maxsize=1024)
def _scenario(run: Run, configs: Path | None, settings: tuple[tuple[str, object], ...]) -> Scenario:
    """The scenario of a run, of one token: what rows of any lengths share, whose files are then read once."""
    if run.gpu not in names("accelerator"):
        raise InputError(f"accelerator {run.gpu!r} is not shipped{nearest(run.gpu, names('accelerator'))}")
    found = row_model(run.model, run.precision, run.backend, configs)
    spread = run.moe_ep > 1 and has_experts(found)
    engine = ENGINES.get(run.backend) or nearest_engine(f"vllm-{run.version}" if run.version else None)
    overrides: dict[str, object] = {
        "accelerator": run.gpu,
        "engine": engine,
        "workload": {"name": "row", "context_tokens": run.context, "concurrency": 1, "source": "a measured row"},
        "price": PRICE,
        "parallelism.tp": run.tp,
        "parallelism.pp": run.pp,
        "parallelism.dp": run.dp,
        "parallelism.ep": run.tp * run.dp if spread else 1,
        **dict(settings),
    }
    fields: dict[str, object] = {"name": found.name, "config": found.config, "source": found.source}
    if found.hf_quant_config:
        fields["hf_quant_config"] = found.hf_quant_config
    return load_scenario({"model": fields}, Origin("row"), overrides)


def _slices(
    rows: list[ServingRow], kinds: Mapping[int, str], predictions: Mapping[int, Mapping[str, float]]
) -> Iterator[Slice]:
    for metric in METRICS:
        places = [place for place, row in enumerate(rows) if metric in row.measured]
        if not places:
            continue
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        for place in places:
            row, kind = rows[place], kinds.get(place, "unknown")
            groups["all", ""].append(place)
            for by, value in (
                ("kind", kind),
                ("engine", row.backend),
                ("GPU", gpu_name(row.gpu)),
                ("source", row.source),
                ("kind and source", f"{kind}, {row.source}" if row.source else ""),
                ("model", row.model),
            ):
                if value:
                    groups[by, value].append(place)
        for (by, value), members in sorted(groups.items(), key=lambda item: _ORDER.index(item[0][0])):
            yield _slice(metric, by, value, [(rows[p], predictions.get(p)) for p in members])


_ORDER = ("all", "kind", "kind and source", "engine", "GPU", "source", "model")


def _slice(metric: str, by: str, value: str, rows: list[tuple[ServingRow, Mapping[str, float] | None]]) -> Slice:
    ours = [p[metric] / row.measured[metric] - 1 for row, p in rows if p and metric in p]
    refused = len(rows) - len(ours)
    theirs = [row.peer[metric] / row.measured[metric] - 1 for row, _ in rows if metric in row.peer]
    errors = summary([*ours, *[-1.0] * refused])
    peer = summary(theirs) if theirs else None
    return Slice(
        metric,
        by,
        value,
        len(rows),
        refused,
        errors.median_percent,
        errors.p90_percent,
        summary(ours).bias_percent if ours else 0.0,
        _signed(ours, 0.1),
        _signed(ours, 0.9),
        len(theirs),
        peer.median_percent if peer else None,
        peer.p90_percent if peer else None,
        peer.bias_percent if peer else None,
    )


def _signed(errors: list[float], share: float) -> float:
    """A percentile of signed errors [%]; 0 where no row is predicted."""
    return round(100 * percentile(sorted(errors), share), 2) if errors else 0.0


def lines(score: ServingScore) -> Iterator[str]:
    """The score as text: a line per slice."""
    counts = f"predicted {len(score.predictions):,}, refused {len(score.refused):,}"
    yield f"rows {score.rows:,}, measured {score.measured:,}, {counts}"
    for where, name in score.calibrations.items():
        yield f"{where} by calibration {name}"
    if score.tight:
        first = next(iter(score.tight.values()))
        yield f"rows that fit without the engine's reserve only: {len(score.tight):,}, first {first}"
    if score.slices:
        yield _line("metric", "slice", "rows", "refused", "median", "p90", "bias", "peer rows", "median", "p90", "bias")
    for each in score.slices:
        ours = (f"{each.median_percent:.1f} %", f"{each.p90_percent:.1f} %", f"{each.bias_percent:+.1f} %")
        theirs = (each.peer_median_percent, each.peer_p90_percent)
        bias = "-" if each.peer_bias_percent is None else f"{each.peer_bias_percent:+.1f} %"
        shown = ("-" if value is None else f"{value:.1f} %" for value in theirs)
        counted = f"{each.rows:,}", f"{each.refused:,}"
        yield _line(METRICS[each.metric], each.value or each.by, *counted, *ours, f"{each.peer_rows:,}", *shown, bias)


def _line(*cells: str) -> str:
    widths = (10, 34, 6, 8, 8, 8, 8, 10, 8, 8, 8)
    left = [cell[:width].ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
    right = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
    return " ".join((*left, *right)).rstrip()


def predictions_csv(rows: Iterable[ServingRow], score: ServingScore, columns: Mapping[str, str]) -> str:
    """A line for each predicted row, in the file's order: its id, and its figures under these names."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("id", *columns.values()))
    for place, row in enumerate(rows):
        if place in score.predictions:
            writer.writerow((row.id, *(f"{score.predictions[place][name]:.4f}" for name in columns)))
    return text.getvalue()


def fields(score: ServingScore) -> dict[str, object]:
    """The score as plain data."""
    return {
        "rows": score.rows,
        "measured": score.measured,
        "predicted": len(score.predictions),
        "refused": list(score.refused.values()),
        "tight": list(score.tight.values()),
        "calibrations": score.calibrations,
        "slices": [asdict(each) for each in score.slices],
    }
