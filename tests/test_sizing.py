"""Fleets sized by memory, throughput and latency: the largest need, each with its reason, or why none is enough."""

import re
from typing import Any

import pytest

from planner.catalog import load_scenario
from planner.errors import InputError
from planner.origin import Origin
from planner.plan import estimate
from planner.queueing import concurrency_quantile
from planner.report import Report
from planner.units import show_number
from tests.scenarios import CHAT, report, scenario, vendor_model


def planned(
    model: str = "llama-3.1-8b", gpu: str = "h100-sxm", overrides: dict[str, Any] | None = None, **workload: Any
) -> Report:
    asked = {name: value for name, value in {**CHAT, **workload}.items() if value is not None}
    return report(model, gpu, {"workload": asked, **(overrides or {})})


def needs(found: Report) -> dict[str, int | None]:
    return {need.limit: need.replicas for need in found.needs}


def test_without_objectives_memory_sizes_the_fleet_and_says_so() -> None:
    found = planned()
    assert needs(found) == {"kv_memory": 3}
    assert found.fleet is not None
    assert found.fleet.active_replicas == 3
    assert found.meets_objectives
    assert "No latency is asked for" in found.warnings[0]


def test_the_months_requests_are_the_least_that_must_be_done() -> None:
    found = planned(requests_per_month=300_000_000)
    assert found.latency is not None
    rate = 300_000_000 / (730 * 3600)
    each = found.latency.saturated_tokens_per_s.best / 211
    assert needs(found)["throughput"] == -(-rate // each)
    assert found.binding_limit == "throughput"
    assert found.binding_reason.startswith("300,000,000 requests a month are 114 a second on average")


def test_the_largest_need_is_the_fleet_and_binds() -> None:
    found = planned(objectives={"ttft_p95_s": "0.135"})
    assert found.fleet is not None
    assert found.latency is not None
    assert found.fleet.active_replicas == needs(found)["ttft_p95"] > needs(found)["kv_memory"]  # type: ignore[operator]
    assert found.binding_limit == "ttft_p95"
    assert found.latency.ttft_p95_s.best <= 0.135
    fewer = planned(objectives={"ttft_p95_s": "0.135"}, concurrency=64 * 2)
    assert fewer.fleet is not None
    assert fewer.fleet.active_replicas > found.fleet.active_replicas


def test_bursts_of_a_fleet_are_thinned_over_its_replicas() -> None:
    """Bursts of more requests than a replica has slots do not mean that no fleet serves them."""
    found = planned(concurrency=None, arrivals_per_s="0.1", burstiness=50, overrides={"engine_options.max_num_seqs": 4})
    counts = needs(found)
    assert counts["throughput"] is not None
    assert 1 < counts["throughput"] < 100
    more = needs(
        planned(concurrency=None, arrivals_per_s=40, burstiness=9, overrides={"engine_options.max_num_seqs": 4})
    )
    even = needs(planned(concurrency=None, arrivals_per_s=40, overrides={"engine_options.max_num_seqs": 4}))
    assert more["throughput"] > even["throughput"]  # type: ignore[operator]


@pytest.mark.parametrize("requests", [1, 7, 64, 199])
def test_littles_law_holds_where_replicas_share_active_requests_unevenly(requests: int) -> None:
    found = planned(concurrency=requests, objectives={"ttft_p95_s": "0.135"})
    assert found.latency is not None
    assert found.latency.concurrency_mean == requests
    assert found.latency.arrivals_per_s == pytest.approx(requests / found.latency.request_s.best, rel=1e-4)


@pytest.mark.parametrize("load", [{"concurrency": 64}, {"concurrency": None, "arrivals_per_s": 5}])
def test_where_no_fleet_is_enough_none_has_a_load(load: dict[str, Any]) -> None:
    """What is active at once is still known, and so is what given devices carry."""
    asked = {**CHAT, **load, "objectives": {"ttft_p95_s": "0.01"}}
    workload = {name: value for name, value in asked.items() if value is not None}
    found = estimate(scenario("llama-3.1-8b", overrides={"workload": workload}), devices=4)
    assert found.fleet is None
    assert found.latency is not None
    assert found.latency.batch == 1
    part = found.latency
    assert [part.arrivals_per_s, part.utilisation, part.concurrency_mean, part.concurrency_p99] == [None] * 4
    assert found.scenario.concurrency in (64, 16)
    assert found.carry is not None
    assert found.carry.misses


@pytest.mark.parametrize("objectives", [{}, {"ttft_p95_s": 2, "itl_p95_s": "0.05", "success_share": "0.95"}])
def test_devices_that_cannot_keep_up_are_said_to_queue_without_end(objectives: dict[str, Any]) -> None:
    """Gaps between tokens have an end all the same, and shares of requests are not times."""
    asked = {**CHAT, "arrivals_per_s": 200, "concurrency": 64, "objectives": objectives}
    found = estimate(scenario("llama-3.1-8b", overrides={"workload": asked}), devices=2).carry
    assert found is not None
    assert found.ttft_p95_s is None
    assert found.misses[0].startswith("200 requests a second are more than the 1 active replica of these devices")
    assert [miss.split(" is ")[0] for miss in found.misses[1:]] == ["p95 of the gaps between tokens"] * bool(objectives)
    assert not any("is without end" in miss for miss in found.misses)


def test_a_request_is_as_uncertain_as_its_parts() -> None:
    """An answer of one token is its first."""
    short, long = (planned(output_tokens={"mean": tokens, "max": 1000}).latency for tokens in (1, 211))
    assert short is not None
    assert long is not None
    assert short.request_s == short.ttft_mean_s
    one = planned(output_tokens={"mean": 1, "max": 1000})
    assert any(line.startswith("answers are one token long on average: TPOT") for line in one.assumptions)
    for end in ("low", "best", "high"):
        parts = getattr(long.ttft_mean_s, end) + 210 * getattr(long.tpot_s, end)
        assert getattr(long.request_s, end) == pytest.approx(parts, rel=1e-5)


def test_memorys_need_says_how_many_are_active_with_fewer_replicas() -> None:
    """27 fit into one replica, and fewer than 27 are active in two: one replica is slower, and holds more."""
    found = planned(concurrency=None, arrivals_per_s=10, requests_per_month=None)
    assert needs(found)["kv_memory"] == 2
    assert found.scenario.concurrency is not None
    assert found.scenario.concurrency <= 27
    text = re.fullmatch(r"KV memory holds 27 .* with 2 replicas; with 1 it is (\d+)", found.needs[0].text)
    assert text is not None
    assert int(text[1]) > 27
    overloaded = planned(concurrency=None, arrivals_per_s=200, overrides={"engine_options.kv_cache_bytes": 10**13})
    assert overloaded.needs[0].text.endswith("with 8 the queue grows without end")


def test_large_rates_are_written_out() -> None:
    found = planned(concurrency=None, arrivals_per_s=5000)
    assert "5,000 requests a second arrive" in found.needs[1].text
    assert str(planned(concurrency=None, arrivals_per_s="1e3").scenario.arrivals_per_s) == "1000"
    assert not any("e+" in line.text for line in found.derivations if line.path.startswith("latency."))
    assert [show_number(value) for value in (999.4, 999.6, 12345.6, 0.38051)] == ["999", "1,000", "12,346", "0.381"]


def test_devices_hold_what_their_own_replicas_keep_active() -> None:
    """Fewer and slower replicas keep more requests active than the fleet that was sized."""
    asked = {**CHAT, "arrivals_per_s": 10, "concurrency": None, "objectives": {}}
    one = scenario("llama-3.1-8b", overrides={"workload": {k: v for k, v in asked.items() if v is not None}})
    found = estimate(one, devices=2)
    assert found.carry is not None
    assert found.fleet is not None
    assert (found.carry.active_replicas, found.fleet.active_replicas) == (1, 2)
    assert found.carry.running_requests == 27 < found.carry.running_requests + found.carry.queued_requests


def test_the_99th_percentile_is_of_the_arrivals_whatever_concurrency_is_given() -> None:
    found = planned(concurrency=64, arrivals_per_s=5)
    assert found.latency is not None
    assert found.latency.concurrency_mean is not None
    assert found.latency.concurrency_p99 == concurrency_quantile(found.latency.concurrency_mean, 0.99) < 64
    assert found.scenario.concurrency == 64


def test_a_pool_of_a_billion_slots_is_sized_at_once() -> None:
    """An engine without max_num_seqs, 100 TB of cache and requests of two tokens."""
    overrides = {
        "engine": "generic",
        "memory": {"workspace_gib": 1, "reserve_gib": 1},
        "engine_options.kv_cache_bytes": 10**14,
    }
    lengths: dict[str, Any] = {"input_tokens": {"mean": 1}, "output_tokens": {"mean": 1}, "context_tokens": 512}
    found = planned(overrides=overrides, concurrency=None, arrivals_per_s=10**6, burstiness="0.01", **lengths)
    assert found.latency is not None
    assert found.latency.saturated_batch > 10**7


def test_burstiness_has_bounds() -> None:
    for outside in ("0.001", "10001"):
        with pytest.raises(InputError, match="burstiness"):
            planned(concurrency=None, arrivals_per_s=1, burstiness=outside)


@pytest.mark.parametrize("load", [{"concurrency": 64}, {"concurrency": None, "arrivals_per_s": 30}])
def test_a_stricter_objective_never_takes_fewer_replicas(load: dict[str, Any]) -> None:
    for name, limits in (("ttft_p95_s", ("2", "0.2", "0.15", "0.135")), ("itl_p95_s", ("0.05", "0.02", "0.0085"))):
        fleets = [planned(**load, objectives={name: limit}).fleet for limit in limits]
        counts = [fleet.active_replicas for fleet in fleets if fleet]
        assert counts == sorted(counts)
        assert len(counts) == len(limits)


def test_more_arrivals_never_take_fewer_replicas() -> None:
    counts = []
    for rate in (0.01, 1, 5, 20, 60, 200, 1000):
        found = planned(concurrency=None, arrivals_per_s=rate, objectives={"ttft_p95_s": 1, "itl_p95_s": "0.05"})
        assert found.fleet is not None
        counts.append(found.fleet.active_replicas)
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] > 20


def test_arrivals_say_how_many_are_active_and_the_fleet_holds_them() -> None:
    found = planned(concurrency=None, arrivals_per_s=40)
    assert found.latency is not None
    assert found.fleet is not None
    assert found.scenario.concurrency == found.latency.concurrency_p99 <= found.fleet.slots  # type: ignore[operator]
    assert found.latency.concurrency_mean == pytest.approx(40 * found.latency.request_s.best, rel=1e-4)
    assert found.latency.utilisation is not None
    assert 0 < found.latency.utilisation < 1
    assert set(needs(found)) == {"kv_memory", "throughput"}
    given = planned(concurrency=500, arrivals_per_s=40)
    assert given.scenario.concurrency == 500


def test_bursts_need_more_memory() -> None:
    even, bursts = (planned(concurrency=None, arrivals_per_s=40, burstiness=z) for z in (1, 9))
    assert needs(bursts)["kv_memory"] > needs(even)["kv_memory"]  # type: ignore[operator]


def test_what_no_fleet_meets_is_an_answer_with_its_number() -> None:
    """The README's question: a long prompt cannot start within two seconds on one small GPU."""
    workload: dict[str, Any] = {
        "input_tokens": {"mean": 10240, "max": 31744},
        "output_tokens": {"mean": 512, "max": 1024},
    }
    found = planned(gpu="l40s", **workload, context_tokens=32768, concurrency=8, objectives={"ttft_p95_s": 2})
    assert (found.fits, found.meets_objectives, found.fleet, found.cost) == (True, False, None, None)
    assert found.binding_limit == "ttft_p95"
    assert found.binding_reason.startswith("31,744-token prompts cannot meet 2 s: ")
    assert found.binding_reason.endswith(" s of prefill alone")
    assert found.latency is not None
    assert found.latency.longest_prefill_s > 2
    assert any("can be met with --tp" in warning or "meets every objective" in warning for warning in found.warnings)


def test_a_gap_below_a_decode_step_is_refused_with_the_step() -> None:
    found = planned(objectives={"itl_p95_s": "0.001"})
    assert found.fleet is None
    assert "even alone in a replica; 1 ms is asked for" in found.binding_reason


def test_a_share_that_requests_do_not_reach_by_themselves_is_no_fleets_fault() -> None:
    found = planned(success_share="0.9", objectives={"success_share": "0.95"})
    assert found.fleet is None
    assert found.binding_reason == "90% of the requests end well whatever the fleet, and 95% are asked for"


def test_the_share_in_time_can_ask_for_more_than_its_p95() -> None:
    p95 = planned(objectives={"ttft_p95_s": "0.2"})
    share = planned(objectives={"ttft_p95_s": "0.2", "success_share": "0.985"})
    assert needs(share)["success_share"] is None or needs(share)["success_share"] > needs(p95)["ttft_p95"]  # type: ignore[operator]
    assert p95.latency is not None
    assert p95.latency.ttft_attained_share is not None
    assert p95.latency.ttft_attained_share >= 0.95


def test_a_limit_within_the_range_only_is_warned_of() -> None:
    found = planned(objectives={"ttft_p95_s": "0.2"})
    assert any("by the best estimate only" in warning for warning in found.warnings)


def test_longer_prompts_are_slower_and_bands_ascend() -> None:
    latency = planned().latency
    assert latency is not None
    prefills = [band.prefill_s for band in latency.bands]
    assert prefills == sorted(prefills)
    assert latency.longest_prefill_s == prefills[-1]
    for found in (latency.tpot_s, latency.ttft_p95_s, latency.request_s, latency.saturated_tokens_per_s):
        assert found.low < found.best < found.high
    parts = latency.step
    whole = (
        parts.weights_s + parts.kv_s + parts.compute_s + parts.activations_s + parts.communication_s + parts.launch_s
    )
    assert whole == pytest.approx(parts.seconds, rel=1e-4)


def test_more_ranks_start_sooner() -> None:
    one, four = (planned("qwen3-32b", overrides={"parallelism.tp": tp}).latency for tp in (1, 4))
    assert one is not None
    assert four is not None
    assert four.longest_prefill_s < one.longest_prefill_s / 2
    assert four.step.communication_s > 0 == one.step.communication_s


@pytest.mark.parametrize(
    ("overrides", "workload", "reason"),
    [
        ({"memory.weights_gib": 15}, {}, "the weights are given in memory.weights_gib"),
        ({}, {"input_tokens": None}, "gives no input_tokens and output_tokens"),
        ({"engine_options.dtype": "float32"}, {}, "no calibration holds float32 kernels"),
    ],
)
def test_what_is_not_predicted_is_said_and_objectives_then_refused(
    overrides: dict[str, Any], workload: dict[str, Any], reason: str
) -> None:
    found = planned(overrides=overrides, **workload)
    assert found.latency is None
    assert any(reason in warning for warning in found.warnings)
    assert found.warnings[0].startswith("This is a memory ceiling")
    for asked in ({"objectives": {"ttft_p95_s": 2}}, {"arrivals_per_s": 3}):
        with pytest.raises(InputError, match="speed cannot be predicted"):
            planned(overrides=overrides, **workload, **asked)


def test_a_gpu_that_nobody_measured_is_priced_by_one_of_its_architecture_or_not_at_all() -> None:
    alike = planned(gpu="h100-nvl").latency
    assert alike is not None
    assert alike.calibration == "h100-sxm-vllm on h100-nvl's datasheet peaks"
    assert any("nobody measured a h100-nvl" in warning for warning in planned(gpu="h100-nvl").warnings)
    assert planned(gpu="tpu-v6e").latency is None
    assert any("no calibration of tpu-v6e" in warning for warning in planned(gpu="tpu-v6e").warnings)
    borrowed = planned(gpu="tpu-v6e", overrides={"calibration": "h100-sxm-vllm"}).latency
    assert borrowed is not None


def test_an_encoder_decoder_is_not_timed() -> None:
    whisper = vendor_model("openai/whisper-large-v3")
    found = report(
        whisper,
        overrides={
            "workload": {**CHAT, "context_tokens": 448, "input_tokens": {"mean": 4}, "output_tokens": {"mean": 200}}
        },
    )
    assert found.latency is None


def test_a_worse_calibration_widens_the_range() -> None:
    h100, a100 = (planned("qwen3-30b-a3b", gpu).latency for gpu in ("h100-sxm", "a100-sxm-80gb"))
    assert h100 is not None
    assert a100 is not None
    assert a100.tpot_s.high / a100.tpot_s.best > h100.tpot_s.high / h100.tpot_s.best


@pytest.mark.parametrize("rate", ["1e14", "100000000"])
def test_a_load_that_no_fleet_serves_is_refused(rate: str) -> None:
    with pytest.raises(InputError, match="do not serve this load"):
        planned(concurrency=None, arrivals_per_s=rate)


def test_some_load_is_needed() -> None:
    with pytest.raises(InputError, match="concurrency or arrivals_per_s is needed"):
        planned(concurrency=None)


def test_more_active_than_arrivals_keep_is_what_was_given() -> None:
    found = planned(concurrency=500, arrivals_per_s=1)
    assert found.scenario.concurrency == 500
    assert found.needs[0].text == "KV memory holds 27 requests per replica and 500 are active"


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({"mean": 100, "p50": 90, "p95": 80}, "p95 80 is below p50 90"),
        ({"mean": 100, "p99": 900, "max": 800}, "max 800 is below p99 900"),
        ({"mean": 900, "max": 800}, "mean 900 is over max 800"),
    ],
)
def test_percentiles_that_fall_are_refused(lengths: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        planned(input_tokens=lengths)


def test_kernels_that_a_calibration_lacks_are_named_with_their_lender() -> None:
    found = planned("qwen3-30b-a3b", "gb200").latency
    assert found is not None
    assert any(line.startswith("moe of bfloat16 by ") for line in found.borrowed)
    own = planned("qwen3-30b-a3b").latency
    assert own is not None
    assert own.borrowed == ()


def test_bursts_without_arrivals_are_said_to_be_unused() -> None:
    assert any("burstiness counts only" in warning for warning in planned(burstiness=3).warnings)


def test_what_a_flag_replaces_is_no_assumption_of_the_profile() -> None:
    named = {"model": "llama-3.1-8b", "accelerator": "h100-sxm", "workload": "chat"}
    given = load_scenario({}, Origin("test"), {**named, "workload.concurrency": 9})
    assert given.workload.assumed == ("requests_per_month", "success_share")
