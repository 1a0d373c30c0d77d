"""TPOT, TTFT, throughput and concurrency: laws, and figures that follow from the steps."""

from dataclasses import replace
from math import exp

import pytest

from planner.roofline import MOST_CHUNKS, Prompt, Step
from planner.serving import (
    benchmark_ttft,
    first_token,
    prefill_terms,
    prompt_steps,
    prompts_terms,
    saturated_tokens_per_s,
    step_of,
    steps_with_prompts,
    tpot,
)
from tests.replicas import replica


def test_interference_is_the_prompts_share_of_the_steps() -> None:
    waits = replica(mixes=False)
    found = tpot(waits, 16, 2048, 256)
    assert found.decode.seconds == pytest.approx(step_of(waits, 16, 2048 + 128).seconds)
    assert found.prefill.seconds == pytest.approx(16 / 256 * prefill_terms(waits, 2048).seconds)


def test_a_shared_step_costs_less_than_one_of_its_own() -> None:
    for model in ("llama-3.1-8b", "qwen3-30b-a3b"):
        shared, apart = (tpot(replica(model, mixes=mixes), 64, 256, 256) for mixes in (True, False))
        assert 0 < shared.prefill.seconds < apart.prefill.seconds
        assert shared.decode == apart.decode


def test_requests_of_equal_length_wait_for_half_of_the_others_where_decodes_wait() -> None:
    waits = replica(mixes=False)
    steady, waves = tpot(waits, 16, 2048, 256), tpot(waits, 16, 2048, 256, in_waves=True)
    assert waves.prefill.seconds == pytest.approx(steady.prefill.seconds * 15 / 32)
    mixing = replica()
    assert tpot(mixing, 16, 2048, 256, in_waves=True) == tpot(mixing, 16, 2048, 256)


def test_more_load_is_never_faster() -> None:
    mixing = replica()
    by_batch = [tpot(mixing, batch, 1024, 512).seconds for batch in (1, 8, 64, 256)]
    by_prompt = [tpot(mixing, 32, tokens, 512).seconds for tokens in (128, 1024, 8192, 32768)]
    first = [first_token(mixing, batch, 1024, 512).seconds for batch in (1, 8, 64, 256)]
    assert by_batch == sorted(by_batch)
    assert by_prompt == sorted(by_prompt)
    assert first == sorted(first)


def test_a_cached_prefix_shortens_prefill_and_nothing_else() -> None:
    cold, warm = (tpot(replica(), 32, 4096, 256, prior) for prior in (0, 3072))
    assert warm.decode == cold.decode
    assert warm.prefill.seconds < cold.prefill.seconds / 2
    assert first_token(replica(), 32, 4096, 256, 3072).prefill_s < first_token(replica(), 32, 4096, 256).prefill_s / 2


def test_a_prompt_over_the_chunk_is_cut() -> None:
    whole, cut = (prefill_terms(replica(chunk=chunk), 16384) for chunk in (None, 2048))
    assert whole.seconds < cut.seconds < 1.5 * whole.seconds


def test_a_batch_that_fills_its_steps_is_priced_at_once_and_as_chunk_by_chunk() -> None:
    """Prompts of 8,000 tokens beside 505 decodes of 512: 1,143 chunks of 7 tokens."""
    run, kv = replica(chunk=512), 8128.0
    found = prompts_terms(run, 505, kv, step_of(run, 505, kv), 8000).seconds
    steps = [step_of(run, 505, kv, (Prompt(min(7, 8000 - done), done),)).seconds for done in range(0, 8000, 7)]
    assert found == pytest.approx(sum(steps) - len(steps) * step_of(run, 505, kv).seconds, rel=1e-3)
    assert len(list(prompt_steps(run, 511, 8000, 0, 255))) <= MOST_CHUNKS + 1  # of 2,040,000 steps


def test_saturated_throughput_by_hand() -> None:
    mixing = replica()
    decode = step_of(mixing, 128, 1024 + 256).seconds
    prompt = prefill_terms(mixing, 1024).seconds
    rate = saturated_tokens_per_s(mixing, 128, 1024, 512)
    assert rate == pytest.approx(1 / (decode / 128 + prompt / 512))
    assert rate > saturated_tokens_per_s(mixing, 32, 1024, 512)


def test_first_token_is_queue_prefill_and_step() -> None:
    found = first_token(replica(), 1, 1024, 512)
    step, prefill = step_of(replica(), 1, 1024 + 256).seconds, prefill_terms(replica(), 1024).seconds
    assert (found.underway_s, found.prefill_s, found.step_s) == pytest.approx((step / 2, prefill, step))
    assert found.seconds == pytest.approx(1.5 * step + prefill + replica().times.server_request_s)
    overlapping = replace(replica(), steps_in_flight=2)
    overlapped = first_token(overlapping, 1, 1024, 512)
    assert overlapped.underway_s == pytest.approx(1.5 * step_of(overlapping, 1, 1024 + 256).seconds)


def test_the_host_works_between_steps_unless_that_is_hidden() -> None:
    waits, hides = replica(), replace(replica(), steps_in_flight=2)
    device = waits.prices.terms(Step(64, 1024)).seconds
    assert step_of(waits, 64, 1024).seconds == pytest.approx(device + 900e-6 + 64 * 4.4e-6)
    assert step_of(hides, 64, 1024).seconds == pytest.approx(device)
    small = replace(replica("qwen3-0.6b", tp=8), steps_in_flight=2)
    assert step_of(small, 256, 1).seconds >= 900e-6 + 256 * 4.4e-6


def test_a_server_streams_the_tokens_of_a_batch_one_after_the_other() -> None:
    small = replica("qwen3-0.6b")
    assert tpot(small, 1024, 16, 1024).seconds == pytest.approx(1024 * small.times.server_token_s)
    large = replica()
    assert tpot(large, 64, 1024, 512).decode == step_of(large, 64, 1024 + 256)


def test_a_benchmarks_first_tokens_wait_for_its_burst_and_for_slots() -> None:
    mixing = replica()
    few, many = (benchmark_ttft(mixing, concurrency, 64, 1024, 512) for concurrency in (8, 64))
    assert few < many
    waiting = benchmark_ttft(mixing, 128, 64, 1024, 512)
    assert waiting > many + 512 * tpot(mixing, 64, 1024, 512).seconds


def test_one_more_request_than_ranks_share_evenly_does_not_lengthen_everyones_wait() -> None:
    waits = replica(mixes=False)
    spread = replace(waits, work=replace(waits.work, ranks=replace(waits.work.ranks, dp=8)))
    even, odd, more = (benchmark_ttft(spread, n, 64, 1024, 512, in_waves=True) for n in (16, 17, 24))
    assert even < odd < 1.1 * even < more


def test_a_burst_fills_the_stages_of_a_pipeline() -> None:
    one = replica("llama-3.1-70b", mixes=False, pp=2)
    apart, overlapping = (
        benchmark_ttft(replace(one, pipeline_share=share), 64, 64, 4096, 512, in_waves=True) for share in (1.0, 0.5)
    )
    assert 0.5 * apart < overlapping < 0.55 * apart


def test_pipeline_stages_and_data_parallel_ranks_each_take_their_share() -> None:
    one, stages = replica("llama-3.1-70b"), replica("llama-3.1-70b", pp=2)
    stages = replace(stages, pipeline_share=0.5)
    assert step_of(stages, 64, 1024).seconds == pytest.approx(step_of(one, 32, 1024).seconds, rel=0.05)
    prompt = [tpot(r, 64, 1024, 64).prefill.seconds for r in (one, stages)]
    assert prompt[1] == pytest.approx(prompt[0] / 2, rel=0.2)
    ranks = replica("qwen3-30b-a3b", dp=2, ep=2)
    assert step_of(ranks, 64, 1024).kv == pytest.approx(step_of(replica("qwen3-30b-a3b"), 32, 1024).kv)


def test_ranks_that_share_experts_have_prompts_in_more_steps_together_than_each_alone() -> None:
    assert steps_with_prompts(replica(), 0.3) == (1, None)
    ranks = replica("qwen3-30b-a3b", dp=4, ep=4)
    rare, many = steps_with_prompts(ranks, 1e-9), steps_with_prompts(ranks, 50)
    assert list(rare) == pytest.approx([4, 1])
    assert list(many) == pytest.approx([1, 4])
    some, having = steps_with_prompts(ranks, 0.5)
    own = 1 - exp(-0.5)
    assert some == pytest.approx((1 - (1 - own) ** 4) / own)
    assert some * own * (having or 0) == pytest.approx(4 * own), "each rank's share of the prompts is kept"


def test_a_prompt_alone_in_its_replica_brings_the_experts_no_other_ranks_tokens() -> None:
    ranks = replica("qwen3-30b-a3b", dp=8, ep=8)
    alone, everywhere = prefill_terms(ranks, 4096, ranks=1), prefill_terms(ranks, 4096)
    assert alone.seconds < 0.8 * everywhere.seconds
    assert prefill_terms(ranks, 4096, ranks=8) == everywhere
    assert prefill_terms(replica(), 4096, ranks=1) == prefill_terms(replica(), 4096)
    idle, loaded = (first_token(ranks, batch, 4096, 512).prefill_s for batch in (8, 256))
    assert alone.seconds <= idle < loaded < everywhere.seconds
