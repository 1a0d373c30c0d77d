"""How fast a replica serves a workload: laws over load and lengths, and parts against hand-made sums."""

from decimal import Decimal
from typing import Any

import pytest

from planner.errors import InputError
from planner.latency import Mix, Speed, itl_quantile, longest_prompt, mix_of
from planner.queueing import Wait
from planner.roofline import Prompt
from planner.serving import first_token, prefill_terms, saturated_tokens_per_s, step_of, tpot
from tests.replicas import replica
from tests.scenarios import CHAT, scenario

PLAIN = {**CHAT, "input_tokens": {"mean": 1024}, "output_tokens": {"mean": 256}, "context_tokens": 4096}


def mix(workload: dict[str, Any] | None = None, **overrides: Any) -> Mix:
    return mix_of(scenario("llama-3.1-8b", overrides={"workload": workload or CHAT, **overrides}))


def speed(workload: dict[str, Any] | None = None, slots: int = 256, *, mixes: bool = True) -> Speed:
    return Speed(replica(mixes=mixes), mix(workload), slots)


def test_bands_are_the_workloads_percentiles_and_cover_all_requests() -> None:
    found = mix().bands
    assert [(band.label, band.tokens) for band in found] == [
        ("p50", 1020), ("p90", 2735), ("p95", 4083), ("p99", 4142), ("longest", 14050),
    ]  # fmt: skip
    assert sum(band.share for band in found) == pytest.approx(1)
    assert speed().p95_prefill == (4083, speed().prefill_s(4083, 0))


def test_without_percentiles_every_prompt_is_the_longest() -> None:
    found = mix(PLAIN)
    assert [(band.label, band.share, band.tokens) for band in found.bands] == [("longest", 1.0, 4096 - 256)]
    assert (found.input_tokens, found.output_tokens, found.variation) == (1024, 256, 0)


def test_another_context_moves_the_longest_prompt_alone() -> None:
    """32K: 31,744 in and 1,024 out."""
    workload = {**CHAT, "input_tokens": {"mean": 10240, "max": 15360}, "output_tokens": {"mean": 512, "max": 1024}}
    at = {
        tokens: scenario("llama-3.1-8b", overrides={"workload": workload, "context_tokens": tokens})
        for tokens in (16384, 32768)
    }
    assert [longest_prompt(found) for found in at.values()] == [15360, 31744]
    assert mix(context_tokens=32768).bands[:-1] == mix().bands[:-1]


def test_a_shared_prefix_is_found_by_its_share_of_the_prompts_that_are_longer() -> None:
    sharing = {**CHAT, "prefix": {"shared_tokens": 2000, "request_share": "0.5"}}
    found = mix(sharing)
    assert [(band.cached, band.hit_share) for band in found.bands] == [(0, 0.0), *[(2000, 0.5)] * 4]
    assert found.cached_tokens == int(0.5 * 0.5 * 2000)
    off = mix(sharing, **{"engine_options.prefix_caching": False})
    assert off.cached_tokens == 0


def test_the_prefill_that_an_objective_meets_is_of_what_is_not_cached() -> None:
    prefix = {"shared_tokens": 3000, "request_share": 1}
    long = {**PLAIN, "input_tokens": {"mean": 3500}}
    found = speed({**long, "prefix": prefix})
    assert found.p95_prefill == (3840, found.prefill_s(3840, 3000))
    some = speed({**long, "prefix": {**prefix, "request_share": "0.9"}})
    assert some.p95_prefill == (3840, some.prefill_s(3840, 0))


def test_lengths_that_nobody_gave_are_refused() -> None:
    with pytest.raises(InputError, match="gives no input_tokens and output_tokens"):
        mix({**CHAT, "input_tokens": None})


@pytest.mark.parametrize("mixes", [True, False])
def test_more_active_requests_are_slower_each_and_more_together(mixes: bool) -> None:
    found = [speed(mixes=mixes).active(n) for n in (1, 8, 32, 128)]
    for figure in ("ttft_p95_s", "ttft_mean_s", "itl_p95_s", "request_s"):
        values = [getattr(at, figure) for at in found]
        assert values == sorted(values)
    rates = [at.arrivals_per_s for at in found]
    assert rates == sorted(rates)


def test_a_request_alone_waits_for_no_prompt() -> None:
    at = speed().active(1)
    assert at.first.behind.mean_s == 0
    assert at.slot_wait == Wait(0, 0)
    step = step_of(replica(), 1, 1155 + 211 / 2).seconds
    assert at.itl_p95_s == at.tpot.decode.seconds == step
    slowest_but_one_in_twenty = prefill_terms(replica(), 4083).seconds
    server = replica().times.server_request_s
    assert at.ttft_p95_s == pytest.approx(server + step / 2 + slowest_but_one_in_twenty + step, rel=1e-6)


def test_requests_over_the_slots_queue_and_saturate() -> None:
    within, over = speed(slots=32).active(32), speed(slots=32).active(64)
    assert not within.saturated
    assert over.saturated
    assert over.ttft_mean_s == pytest.approx(within.ttft_mean_s + within.request_s, rel=0.01)


def test_arrivals_settle_where_as_many_leave() -> None:
    at = speed().arriving(8.0, 1.0)
    assert not at.saturated
    assert at.concurrency == pytest.approx(8.0 * at.request_s, rel=1e-6)
    assert at.batch - 1 < at.concurrency <= at.batch + 1e-9
    assert speed().arriving(12.0, 1.0).concurrency > at.concurrency


def test_too_many_arrivals_saturate() -> None:
    at = speed(slots=64).arriving(1000.0, 1.0)
    assert at.saturated
    assert at.concurrency == 64


def test_arrivals_at_the_saturated_rate_do_saturate_and_a_little_less_does_not() -> None:
    found = speed(PLAIN, slots=128)
    most = found.saturated_tokens_per_s / 256
    assert found.arriving(1.2 * most, 1.0).saturated
    assert not found.arriving(0.7 * most, 1.0).saturated


def test_no_more_arrives_unsaturated_than_a_replica_does_with_every_slot_in_use() -> None:
    """Prompts that share the steps of a mixture of experts delay its decodes by less than they take of the device."""
    run = Speed(replica("kimi-linear-48b-a3b"), mix({**CHAT, "output_tokens": {"mean": 128}}), 300)
    most = run.saturated_tokens_per_s / 128
    alone = tpot(run.replica, 300, 1155, 128).seconds
    assert most * 128 * alone < 300  # its slots alone would allow more
    assert run.arriving(1.001 * most, 1.0).saturated
    assert not run.arriving(0.999 * most, 1.0).saturated


@pytest.mark.parametrize(("model", "output", "mixes"), [("llama-3.1-8b", 1, False), ("kimi-linear-48b-a3b", 128, True)])
def test_active_requests_end_no_faster_than_a_replica_works(model: str, output: int, mixes: bool) -> None:
    """Of 300 prompts that are always active, each waits for most of the others' work."""
    run = Speed(replica(model, mixes=mixes), mix({**CHAT, "output_tokens": {"mean": output, "max": 1000}}), 300)
    found = run.active(300)
    assert found.arrivals_per_s * output == pytest.approx(run.saturated_tokens_per_s)
    assert found.arrivals_per_s * found.request_s == pytest.approx(300)
    assert found.ttft_p95_s > found.ttft_mean_s


def test_bursts_lengthen_waits() -> None:
    even, bursts = (speed(slots=48).arriving(13.0, z) for z in (1.0, 4.0))
    assert bursts.ttft_p95_s > even.ttft_p95_s
    assert bursts.slot_wait.mean_s > even.slot_wait.mean_s


def test_the_share_in_time_is_the_percentile_read_backwards() -> None:
    found = speed()
    at = found.active(32)
    assert at.within(at.ttft_p95_s) == pytest.approx(0.95, abs=1e-4) or at.within(at.ttft_p95_s) > 0.95
    assert at.within(at.ttft_p95_s * 0.98) < 0.95
    assert at.within(0.0) == 0
    assert at.within(100.0) == pytest.approx(1)


def test_a_cached_prefix_shortens_first_tokens() -> None:
    prefix = {"shared_tokens": 900, "request_share": "1"}
    without, having = speed().active(16), speed({**CHAT, "prefix": prefix}).active(16)
    assert having.ttft_mean_s < without.ttft_mean_s
    assert having.tpot.seconds < without.tpot.seconds


def test_rare_prompts_leave_the_gap_of_a_decode_and_frequent_ones_a_prompts() -> None:
    workload = {**PLAIN, "output_tokens": {"mean": 1000}, "context_tokens": 8192}
    step = step_of(replica(), 40, 1024 + 500).seconds
    assert itl_quantile(replica(), mix(workload), 40, step) == step  # 39 prompts in 1,000 steps
    found = itl_quantile(replica(), mix(workload), 60, step)  # 59
    assert found > 2 * step
    assert found < step + prefill_terms(replica(), 8192 - 1000).seconds
    waits = replica(mixes=False)
    assert itl_quantile(waits, mix(workload), 60, step) == pytest.approx(
        step_of(waits, 60, 1024 + 500).seconds + prefill_terms(waits, 8192 - 1000).seconds
    )


def test_a_gap_with_a_prompt_is_never_shorter_than_one_without() -> None:
    """A server that streams the tokens of many requests paces every step."""
    found = Speed(replica(), mix({**PLAIN, "input_tokens": {"mean": 16}, "context_tokens": 272}), 4096).active(4096)
    assert found.itl_p95_s >= found.tpot.decode.seconds


def test_first_tokens_wait_for_no_more_prompts_than_there_are() -> None:
    found = first_token(replica(), 2, 8192, 2)
    assert found.behind.mean_s <= found.prefill_s / 2 + 1e-9
    given = first_token(replica(), 8, 1024, 256, each=tpot(replica(), 8, 1024, 256))
    assert given == first_token(replica(), 8, 1024, 256)


def test_a_prefix_raises_what_a_saturated_replica_does() -> None:
    plain, cached = (saturated_tokens_per_s(replica(), 64, 4096, 256, prior) for prior in (0, 3072))
    assert cached > 1.2 * plain


def test_decimal_shares_are_kept() -> None:
    prefix = {"shared_tokens": 900, "request_share": Decimal("0.125")}
    assert {band.hit_share for band in mix({**CHAT, "prefix": prefix}).bands} == {0.125}


def test_a_prompt_alone_is_as_fast_however_many_ranks_share_experts_with_its_own() -> None:
    """An idle rank brings the experts no prompt: what more ranks take away is their messages' time alone."""
    speeds = [Speed(replica("qwen3-30b-a3b", dp=ranks, ep=ranks), mix(), 64) for ranks in (8, 64)]
    few, many = (each.prefill_s(4083, 0) for each in speeds)
    assert many == pytest.approx(few, rel=0.1)
    for each in speeds:
        one = each.active(1)
        assert one.first.prefill_s == pytest.approx(each.prefill_s(each.mix.input_tokens, each.mix.cached_tokens), 0.05)
        assert one.itl_p95_s == one.tpot.decode.seconds


def test_gaps_hold_the_prompts_of_all_ranks_that_share_experts() -> None:
    """Eight ranks of eight requests: one prompt in twenty-six steps of a rank, but in more than a third of all."""
    ranks = replica("qwen3-30b-a3b", dp=8, ep=8)
    lengths = mix({**PLAIN, "input_tokens": {"mean": 1000, "max": 1000}, "output_tokens": {"mean": 200, "max": 200}})
    step, kv = step_of(ranks, 64, 1100).seconds, 1100
    gap = itl_quantile(ranks, lengths, 64, step)
    assert 64 / 200 / 8 < 0.05, "by its own rank's prompts alone no gap within 95 % would be longer"
    prompt = Prompt(1000, 0)
    assert step_of(ranks, 64, kv, (prompt,), 1).seconds < gap < step_of(ranks, 64, kv, (prompt,), 8).seconds
