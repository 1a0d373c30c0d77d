"""TensorRT-LLM's offline benchmark: its limits, the steps of a run, and the rate of one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.offline_benchmark import (
    GRAPH_BATCHES,
    Limits,
    bench_limits,
    captured_batches,
    offline_tokens_per_s,
    request_count,
    schedule,
)
from planner.serving import prompts_terms, saturated_tokens_per_s, step_of
from tests.replicas import replica


@pytest.mark.parametrize(
    ("held", "lengths", "limits"),
    [
        (27, (128, 2048), Limits(64, 2048)),
        (265, (128, 2048), Limits(384, 2048)),
        (1763, (1000, 1000), Limits(1792, 3584)),
        (1763, (2048, 128), Limits(1792, 30720)),
        (9000, (128, 128), Limits(4096, 8192)),
        (20, (20000, 2000), Limits(64, 20064)),
    ],
)
def test_limits_by_hand(held: float, lengths: tuple[int, int], limits: Limits) -> None:
    """bench/build/tuning.py's finetune_setting, worked out by hand."""
    assert bench_limits(held, *lengths) == limits
    assert bench_limits(2 * held, *lengths, 2).max_num_seqs == limits.max_num_seqs or held > 4096


def test_lengths_that_the_overview_does_not_list_take_the_nearest_count() -> None:
    assert request_count(128, 128) == 30_000
    assert request_count(1024, 2048) == request_count(1000, 2000) == 1_500


def test_a_graph_of_the_limit_itself_is_captured_from_0_21() -> None:
    assert captured_batches(768, "0.20") == (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512)
    assert captured_batches(768, "1.0") == captured_batches(768, "") == (*captured_batches(768, "0.20.0"), 768)
    assert captured_batches(8192, "1.0") == GRAPH_BATCHES


def test_a_run_by_hand() -> None:
    """Five requests of four tokens in two slots, one prompt a step: prompts in steps 0, 1, 4, 5 and 8."""
    run = schedule(5, 2, 19, 10, 4)
    assert (run.shared, run.decodes) == (5, (0 + 1 + 1 + 1 + 1) / 5)
    assert dict(run.alone) == {2: 4, 1: 3}
    assert run.steps == 12


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 60), st.integers(1, 50), st.integers(0, 2000))
def test_every_token_of_every_request_takes_one_place_in_a_step(
    requests: int, slots: int, isl: int, osl: int, spare: int
) -> None:
    run = schedule(requests, slots, isl + slots + spare, isl, osl)
    decodes = sum(batch * steps for batch, steps in run.alone.items()) + run.decodes * run.shared
    assert decodes == pytest.approx(requests * (osl - 1))
    assert max(run.alone, default=0) <= slots
    assert run.steps >= requests * osl / slots
    assert schedule(requests + 1, slots, isl + slots + spare, isl, osl).steps >= run.steps


def test_the_rate_by_hand() -> None:
    mixing = replica()
    run = schedule(2, 2, 4096, 1024, 100)
    assert (dict(run.alone), run.shared) == ({2: 99}, 1)
    step, kv = step_of(mixing, 2, 1024 + 50).seconds, 1024 + 50
    decode = step_of(mixing, 0, kv)
    prompts = prompts_terms(mixing, 0, kv, decode, 1024, count=2).seconds + decode.seconds
    assert offline_tokens_per_s(mixing, run, 1024, 100, (1, 2)) == pytest.approx(200 / (99 * step + prompts))


def test_padding_costs_and_many_requests_come_near_the_saturated_rate() -> None:
    mixing = replica()
    run = schedule(20_000, 100, 8192, 1024, 512)
    exact, padded = (offline_tokens_per_s(mixing, run, 1024, 512, sizes) for sizes in (tuple(range(1, 101)), (256,)))
    assert padded < exact
    assert exact == pytest.approx(saturated_tokens_per_s(mixing, 100, 1024, 512), rel=0.05)
    short = offline_tokens_per_s(mixing, schedule(150, 100, 8192, 1024, 512), 1024, 512, tuple(range(1, 101)))
    assert short < 0.9 * exact
