"""A replica's speed as the report holds it: times with their ranges, bands of lengths, and where each comes from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.accuracy import kernel_p90, ranged, rounded, spread_of
from planner.calibrate.serving_errors import Kind, Spread
from planner.calibration import Calibration, FittedKernel
from planner.deployment import Deployment
from planner.derive_cache import line
from planner.inputs import Scenario
from planner.kernel_times import GEMM_KEYS, Terms
from planner.latency import PERCENTILE, Performance, Speed
from planner.queueing import wait_quantile_s
from planner.report import Derivation, Latency, LengthBand, Range, StepTime
from planner.serving import Replica
from planner.sizing import Sizing, active_at_most
from planner.units import counted, show_number, show_seconds

CONTINUOUS = "Yu et al. 2022, Orca (continuous batching)"
ROOFLINE = "Williams et al. 2009, doi:10.1145/1498765.1498785, by a calibration"
LITTLE = "Little 1961, doi:10.1287/opre.9.3.383"
NO_FLEET: dict[str, Any] = {
    "arrivals_per_s": None,
    "utilisation": None,
    "concurrency_mean": None,
    "concurrency_p99": None,
}
PARTS = {"kv": "KV reads", "launch": "launches"}
"""Parts of a step that text names otherwise."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Measured errors of every metric, for one kind of model and the calibration in use."""

    tpot: Spread
    ttft: Spread
    throughput: Spread
    kernels_percent: float

    @property
    def basis(self) -> str:
        """Which errors they are."""
        parts = (
            f"{name} {each.p10_percent:+.0f} to {each.p90_percent:+.0f} % ({each.rows} {each.kind} rows"
            f"{'' if each.own_constants else ', another GPU' + chr(39) + 's constants'})"
            for name, each in (("TPOT", self.tpot), ("TTFT", self.ttft), ("throughput", self.throughput))
        )
        return (
            f"10th to 90th percentile of predicted over measured: {', '.join(parts)}; at least the "
            f"{self.kernels_percent:.0f} % that the kernels' own fits miss at their 90th percentile"
        )


def ranges_of(deployment: Deployment, speed: Speed) -> Ranges:
    """The errors that the ranges of this deployment reflect."""
    times = speed.replica.times
    kind: Kind = "MoE" if deployment.stack.is_moe else "dense"
    own = times.first.gpu == times.gpu.name
    return Ranges(
        spread_of("tpot", kind, own_constants=own),
        spread_of("ttft", kind, own_constants=own),
        spread_of("throughput", kind, own_constants=own),
        kernel_p90([entry for _, entry in _fits(speed.replica)]),
    )


def _fits(replica: Replica) -> Iterator[tuple[Calibration, FittedKernel]]:
    """The fits that price this replica's large kernels, and the calibrations that they are from."""
    work, times = replica.work, replica.times
    cache = ("fp8", "bfloat16") if work.rules.fp8 else ("bfloat16",)
    forms = {matrix.form for layer in work.layers for matrix in layer.matrices} | {work.head.form}
    asked = {("gemm", GEMM_KEYS[form]) for form in forms}
    asked |= {("moe", GEMM_KEYS[layer.experts.form]) for layer in work.layers if layer.experts}
    asked |= {("decode_attention", cache), ("prefill_attention", ("bfloat16",))}
    for family, keys in sorted(asked):
        calibration, entry, _ = times.entry(family, keys)
        yield calibration, entry


def _borrowed(replica: Replica) -> Iterator[str]:
    """'moe of fp8_block by h100-sxm-vllm' for each that the calibration asked first does not hold."""
    for calibration, entry in _fits(replica):
        if calibration is not replica.times.first:
            yield f"{entry.family} of {entry.key} by {calibration.name}"


def latency_part(scenario: Scenario, speed: Speed, sizing: Sizing, ranges: Ranges) -> Latency | None:
    """The report's part; None where no load was sized."""
    found, mix = sizing.performance, speed.mix
    if found is None:
        return None
    limit = scenario.workload.objectives.ttft_p95_s
    saturated = ranges_around(speed.saturated_tokens_per_s, ranges.throughput, ranges)
    tpot = ranges_around(found.tpot.seconds, ranges.tpot, ranges)
    first = ranges_around(found.ttft_mean_s, ranges.ttft, ranges)
    return Latency(
        calibration=calibration_name(speed),
        borrowed=tuple(_borrowed(speed.replica)),
        batch=found.batch,
        input_tokens=mix.input_tokens,
        output_tokens=mix.output_tokens,
        cached_tokens=mix.cached_tokens,
        step=_step(found.tpot.decode),
        tpot_s=tpot,
        itl_p95_s=ranges_around(found.itl_p95_s, ranges.tpot, ranges),
        ttft_mean_s=first,
        ttft_p95_s=ranges_around(found.ttft_p95_s, ranges.ttft, ranges),
        request_s=_request_range(first, tpot, mix.output_tokens),
        longest_prefill_s=rounded(speed.prefill_s(mix.bands[-1].tokens, 0)),
        bands=tuple(_bands(speed, found)),
        saturated_batch=speed.slots,
        saturated_tokens_per_s=saturated,
        saturated=found.saturated,
        slot_wait_p95_s=rounded(found.slot_wait.quantile_s(PERCENTILE)),
        ttft_attained_share=None if limit is None else rounded(found.within(float(limit))),
        range_basis=ranges.basis,
        **_fleet_load(scenario, speed, sizing, found),
    )


def _request_range(first: Range, each: Range, output_tokens: int) -> Range:
    """Of a whole request: the ends of its parts' ranges together."""
    low, best, high = (
        rounded(getattr(first, end) + (output_tokens - 1) * getattr(each, end)) for end in ("low", "best", "high")
    )
    return Range(low=low, best=best, high=high)


def _fleet_load(scenario: Scenario, speed: Speed, sizing: Sizing, found: Performance) -> dict[str, Any]:
    """What the whole fleet does; nothing where no number of replicas meets every need.

    rate = L / T by Little's law where L requests are active;  L = rate x T where requests arrive
    """
    workload, replicas = scenario.workload, sizing.replicas
    if replicas is None:
        return NO_FLEET
    if scenario.arrivals_per_s is None:
        mean, p99 = float(sizing.concurrency or 0), None
        per_s = mean / found.request_s
    else:
        mean, per_s = found.concurrency * replicas, float(scenario.arrivals_per_s)
        p99 = active_at_most(workload, mean)
    return {
        "arrivals_per_s": rounded(per_s),
        "utilisation": rounded(per_s / replicas * speed.mix.output_tokens / speed.saturated_tokens_per_s),
        "concurrency_mean": rounded(mean),
        "concurrency_p99": p99,
    }


def ranges_around(best: float, spread: Spread, ranges: Ranges) -> Range:
    """An estimate with its range."""
    return ranged(best, spread, ranges.kernels_percent)


def calibration_name(speed: Speed) -> str:
    """Of the constants asked first; another device's are said to be."""
    times = speed.replica.times
    first = times.first
    return first.name if first.gpu == times.gpu.name else f"{first.name} on {times.gpu.name}'s datasheet peaks"


def _step(terms: Terms) -> StepTime:
    return StepTime(
        seconds=rounded(terms.seconds),
        weights_s=rounded(terms.weights),
        kv_s=rounded(terms.kv),
        compute_s=rounded(terms.compute),
        activations_s=rounded(terms.activations),
        communication_s=rounded(terms.communication),
        launch_s=rounded(terms.launch),
        binds=PARTS.get(terms.binds, terms.binds),
    )


def _bands(speed: Speed, found: Performance) -> Iterator[LengthBand]:
    """The workload's bands; the last one ends with the longest prompt that the context allows."""
    waited = wait_quantile_s(found.first.behind, found.slot_wait, PERCENTILE)
    for band in speed.mix.bands:
        prefill = speed.prefill_s(band.tokens, 0)
        yield LengthBand(
            label=band.label,
            share=rounded(band.share),
            input_tokens=band.tokens,
            prefill_s=rounded(prefill),
            ttft_p95_s=rounded(found.first.unloaded_s + waited + prefill),
        )


def latency_lines(scenario: Scenario, speed: Speed, sizing: Sizing, latency: Latency) -> Iterator[Derivation]:
    """How each figure came about."""
    found, mix = sizing.performance, speed.mix
    if found is None:
        return
    step, prompts = latency.step, found.tpot.prefill.seconds
    parts = _sum(
        (
            (step.weights_s, "weights"),
            (step.kv_s, "KV cache"),
            (step.compute_s, "compute"),
            (step.activations_s, "activations"),
            (step.communication_s, "communication"),
            (step.launch_s, "launches and host"),
        )
    )
    kv = mix.input_tokens + mix.output_tokens // 2
    text = f"{counted(found.batch, 'request')} of {kv:,} cached tokens: {parts} = {show_seconds(step.seconds)}"
    yield line("latency.step.seconds", text, source=f"{latency.calibration}; {ROOFLINE}")
    text = f"{show_seconds(step.seconds)} + {show_seconds(prompts)} of other requests' prompts = "
    yield line("latency.tpot_s", text + show_seconds(found.tpot.seconds), source=CONTINUOUS)
    text = (
        f"{show_seconds(found.ttft_mean_s)} + ({mix.output_tokens:,} - 1) x {show_seconds(found.tpot.seconds)} = "
        f"{show_seconds(found.request_s)}"
    )
    yield line("latency.request_s", text)
    yield from _first_token_lines(speed, found)
    prompt = show_seconds(speed.prefill_s(mix.input_tokens, mix.cached_tokens))
    rate = f"{speed.saturated_tokens_per_s:,.0f} tokens/s of one replica"
    text = f"{counted(speed.slots, 'request')} decode, {prompt} a prompt: {rate}"
    yield line("latency.saturated_tokens_per_s", text, source=CONTINUOUS)
    yield from _load_lines(scenario, speed, sizing, latency)


def _load_lines(scenario: Scenario, speed: Speed, sizing: Sizing, latency: Latency) -> Iterator[Derivation]:
    if latency.arrivals_per_s is None:
        return
    each, request = speed.saturated_tokens_per_s / latency.output_tokens, show_seconds(latency.request_s.best)
    rate = f"{show_number(latency.arrivals_per_s)} requests/s"
    if latency.concurrency_p99 is None:
        text = f"{counted(sizing.concurrency or 0, 'active request')} / {request} = {rate}"
        yield line("latency.arrivals_per_s", text, source=LITTLE)
    text = f"{rate} / ({sizing.replicas:,} x {show_number(each)}) = {latency.utilisation:.1%}"
    yield line("latency.utilisation", text)
    if latency.concurrency_p99 is not None:
        mean = show_number(latency.concurrency_mean or 0)
        text = f"{rate} x {request} = {mean} active on average; 99th percentile of "
        text += f"{_law(scenario)}: {latency.concurrency_p99:,}"
        yield line("latency.concurrency_p99", text, source=LITTLE)


def _sum(parts: Sequence[tuple[float, str]]) -> str:
    """Times and what each is of, those of nothing left out."""
    return " + ".join(f"{show_seconds(seconds)} {what}" for seconds, what in parts if show_seconds(seconds) != "0 s")


def _law(scenario: Scenario) -> str:
    bursts = scenario.workload.burstiness
    return "Poisson" if bursts == 1 else f"a normal law with variance {bursts} x mean"


def _first_token_lines(speed: Speed, found: Performance) -> Iterator[Derivation]:
    first = found.first
    parts = (
        (first.server_s, "in the server"),
        (first.underway_s, "of steps under way"),
        (first.behind.mean_s, "behind other prompts"),
        (found.slot_wait.mean_s, "for a slot"),
        (first.prefill_s, "prefill"),
        (first.step_s, "step"),
    )
    mean = f"{_sum(parts)} = {show_seconds(found.ttft_mean_s)}"
    source = "Pollaczek-Khinchine; Kingman 1961, doi:10.1017/S0305004100036094; Erlang C"
    yield line("latency.ttft_mean_s", mean, source=source)
    cases = len(speed.prefills)
    text = (
        f"over {counted(cases, 'kind')} of prompts (by length, prefix found or not), each as slow as its longest, with "
        f"exponential waits: 95 % within {show_seconds(found.ttft_p95_s)}"
    )
    yield line("latency.ttft_p95_s", text, source=source)
    text = (
        f"gaps of all requests pooled; {show_seconds(found.tpot.decode.seconds)} without another's prompt in it: 95 % "
        f"within {show_seconds(found.itl_p95_s)}"
    )
    yield line("latency.itl_p95_s", text, source="Agrawal et al. 2024, arXiv:2403.02310")
