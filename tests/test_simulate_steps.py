"""Tables of step times against the prices that they are filled from."""

import random
from functools import cache

import pytest

from planner.deployment import deploy
from planner.replica import replica_of, times_of
from planner.roofline import Prompt
from planner.serving import Replica, step_of
from planner.simulate.steps import StepTimes
from tests.scenarios import scenario

WITHIN = 0.01
"""Error of linear interpolation that a table may have."""
SERVED = [
    ("llama-3.1-8b", "h100-sxm", 1, "vllm-0.33"),
    ("llama-3.1-8b", "l40s", 1, "vllm-0.19"),
    ("llama-3.1-70b-fp8", "h200-sxm", 4, "vllm-0.33"),
    ("mixtral-8x7b", "h100-sxm", 2, "vllm-0.33"),  # experts
    ("gpt-oss-20b", "h100-sxm", 1, "vllm-0.33"),  # experts, half of the layers windowed
    ("gemma-3-4b", "a100-sxm-80gb", 1, "vllm-0.33"),  # five of six layers windowed
    ("deepseek-r1", "h200-sxm", 8, "vllm-0.33"),  # latent attention
    ("nemotron-3-nano-30b-a3b", "h100-sxm", 1, "vllm-0.33"),  # states beside attention
    ("llama-3.1-8b", "h100-sxm", 1, "sglang-0.5"),
]


@cache
def replica(model: str, gpu: str, tp: int, engine: str) -> Replica:
    deployment = deploy(scenario(model, gpu, {"parallelism.tp": tp, "engine": engine}))
    return replica_of(deployment, times_of(deployment))


def off(found_s: float, each: Replica, batch: int, kv_tokens: int, prompts: tuple[Prompt, ...] = ()) -> float:
    """Relative error against the step's price, or the time in which the server streams its tokens if that is longer."""
    price_s = step_of(each, batch, kv_tokens / max(1, batch), prompts).seconds
    return abs(found_s / max(price_s, each.times.server_token_s * (batch + len(prompts))) - 1)


@pytest.mark.parametrize("served", SERVED, ids=lambda served: f"{served[0]}-{served[1]}-{served[3]}")
def test_steps_are_priced_within_one_percent(served: tuple[str, str, int, str]) -> None:
    """Decodes, prompts beside them, and prompts alone: chunks of any length after any number of cached tokens."""
    each = replica(*served)
    times, source = StepTimes(each), random.Random(1)  # noqa: S311 - no secret
    for _ in range(150):
        batch = source.choice([1, 2, 7, source.randint(1, 512)])
        kv_tokens = batch * source.choice([source.randint(1, 2000), source.randint(1, 16000)]) + source.randrange(batch)
        assert off(times.decode(batch, kv_tokens)[0], each, batch, kv_tokens) < WITHIN
        chunks = []
        for _ in range(source.choice([1, 1, 2, 4])):
            new = source.choice([source.randint(1, 300), source.randint(1, 8192)])
            chunks.append((new, source.choice([0, source.randint(0, 60000)])))
        prompts = tuple(Prompt(new, prior) for new, prior in chunks)
        assert off(times.mixed(batch, kv_tokens, chunks), each, batch, kv_tokens, prompts) < WITHIN
        assert off(times.mixed(0, 0, chunks), each, 0, 0, prompts) < WITHIN


@pytest.mark.parametrize("model", ["deepseek-r1", "qwen3-30b-a3b"])
@pytest.mark.parametrize("ranks", [1.0, 3.0, 8.0])
def test_experts_see_the_tokens_of_the_ranks_that_have_prompts(model: str, ranks: float) -> None:
    deployment = deploy(scenario(model, "h200-sxm", {"parallelism.dp": 8, "parallelism.ep": 8}))
    each = replica_of(deployment, times_of(deployment))
    times, source = StepTimes(each), random.Random(2)  # noqa: S311 - no secret
    for _ in range(50):
        batch, kv, new = source.randint(1, 200), source.randint(1, 9000), source.randint(1, 8192)
        everywhere = 8 * batch + round(ranks * new)
        price_s = step_of(each, 8 * batch, kv, (Prompt(new, 0),), ranks).seconds
        price_s = max(price_s, each.times.server_token_s * (batch + 1))
        assert times.mixed(batch, batch * kv, [(new, 0)], everywhere) == pytest.approx(price_s, rel=WITHIN)


def test_a_decode_step_says_how_much_longer_the_next_one_takes() -> None:
    times = StepTimes(replica(*SERVED[0]))
    first, more = times.decode(100, 100 * 1000)
    second, _ = times.decode(100, 100 * 1001)
    assert more > 0
    assert second - first == pytest.approx(more, rel=1e-6)


def test_pipeline_stages_are_refused() -> None:
    deployment = deploy(scenario("llama-3.1-8b", "h100-sxm", {"parallelism.pp": 2}))
    with pytest.raises(ValueError, match="pipeline stages overlap"):
        StepTimes(replica_of(deployment, times_of(deployment)))
