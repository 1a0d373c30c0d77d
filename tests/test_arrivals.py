"""Made loads: the laws of arrivals and lengths, and that a seed says everything; and what changes a load."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from itertools import islice, pairwise
from random import Random
from statistics import fmean, pvariance
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.documents import load_mapping, validate
from planner.errors import InputError
from planner.origin import Origin
from planner.simulate.arrivals import (
    PREFIX_CHUNK_TOKENS,
    Arrivals,
    Generated,
    arrivals_of,
    gap_variation,
    generated,
)
from planner.simulate.changes import Changed, at_rate, mean_rate_per_s
from planner.simulate.lengths import SHARES, gini, law_of
from planner.simulate.loads import ClosedLoop
from planner.simulate.requests import Request
from planner.simulate.traces import open_trace
from planner.workload_inputs import Lengths, Prefix, Tenants, Workload
from tests.scenarios import ROOT

MOONCAKE = ROOT / "tests/oracles/traces/mooncake_conversation_head.jsonl.gz"
PROFILES = sorted(path.stem for path in (ROOT / "profiles/workloads").glob("*.yaml"))


def workload(name: str = "chat", changes: dict[str, Any] | None = None) -> Workload:
    path = ROOT / f"profiles/workloads/{name}.yaml"
    return validate(Workload, load_mapping(path), Origin(str(path))).model_copy(update=changes or {})


def load(arrivals: Arrivals | None = None, count: int = 1000, seed: int = 1, **changes: Any) -> Generated:
    return generated(workload(changes=changes), count, seed, arrivals)


def digest(made: Generated) -> str:
    text = "".join(f"{r.arrival_s!r},{r.input_tokens},{r.output_tokens},{r.hash_ids}\n" for r in made.requests())
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("variation", "known"),
    [
        (0.0, "066d7c2f"),
        (1.0, "7632e638"),
        (4.0, "40e50557"),
    ],
)
def test_a_seed_gives_the_same_bytes_everywhere(variation: float, known: str) -> None:
    """The digests are of what this code first made: a seed in someone's notes must go on meaning the same load."""
    arrivals = Arrivals(3.7, variation)
    prefix = Prefix(shared_tokens=512, request_share=Decimal("0.5"))
    assert digest(load(arrivals, prefix=prefix)) == digest(load(arrivals, prefix=prefix))
    assert digest(load(arrivals, prefix=prefix)).startswith(known)
    assert digest(load(arrivals, seed=2)) != digest(load(arrivals))


def test_times_lengths_and_prefixes_are_drawn_apart() -> None:
    lengths: Callable[[Generated], list[tuple[int, int]]] = lambda made: [  # noqa: E731
        (r.input_tokens, r.output_tokens) for r in made.requests()
    ]
    assert lengths(load(Arrivals(1.0))) == lengths(load(Arrivals(9.0, 4.0))) == lengths(load(None))


@pytest.mark.parametrize("variation", [0.0, 0.25, 1.0, 4.0])
def test_gaps_have_their_rate_and_their_variation(variation: float) -> None:
    rate, count = 12.5, 200_000
    times = list(islice(Arrivals(rate, variation).times_s(Random(7)), count))  # noqa: S311
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0
    error = math.sqrt(variation / count)  # of the mean, relative
    assert fmean(gaps) * rate == pytest.approx(1, abs=4 * error + 1e-9)
    spread = math.sqrt((2 + 6 * variation) / count)  # of the variance's estimate, from a gamma law's kurtosis 3 + 6 c2
    assert pvariance(gaps) * rate**2 == pytest.approx(variation, rel=4 * spread, abs=1e-9)


def test_the_number_active_is_as_bursty_as_asked() -> None:
    """Against the simulated number of requests active in M/G/infinity and G/G/infinity."""
    burstiness, mean_s, rate = 3.0, 10.0, 20.0
    random = Random(3)  # noqa: S311
    arrivals = Arrivals(rate, gap_variation(burstiness, 0.5))  # exponential times have a Gini coefficient of 1/2
    events = []
    for at in islice(arrivals.times_s(Random(5)), 400_000):  # noqa: S311
        events += [(at, 1), (at + random.expovariate(1 / mean_s), -1)]
    events.sort()
    active, first, second, total = 0, 0.0, 0.0, 0.0
    for (at, change), (until, _) in pairwise(events):
        active += change
        if 100 < at < 400_000 / rate:
            total += until - at
            first += active * (until - at)
            second += active**2 * (until - at)
    mean = first / total
    assert mean == pytest.approx(rate * mean_s, rel=0.02)
    assert (second / total - mean**2) / mean == pytest.approx(burstiness, rel=0.1)


def test_burstiness_is_the_variation_of_gaps_where_all_take_the_same_time() -> None:
    assert gap_variation(1.0, 0.4) == 1.0
    assert gap_variation(3.0, 0.0) == 3.0
    assert gap_variation(3.0, 0.5) == 5.0
    assert gap_variation(0.1, 0.5) == 0.0
    assert arrivals_of(workload(), 5.0) == Arrivals(5.0, 1.0)
    assert arrivals_of(workload(changes={"burstiness": 2}), 5.0).variation > 2
    assert gini(lambda share: -math.log(1 - share)) == pytest.approx(0.5, abs=1e-3)
    assert gini(lambda _: 7.0) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", PROFILES)
def test_lengths_have_the_percentiles_and_the_mean_of_every_shipped_workload(name: str) -> None:
    of = workload(name)
    for lengths in (of.input_tokens, of.output_tokens):
        assert lengths is not None
        law = law_of(lengths, of.context_tokens, name)
        steps = 100_000
        drawn = [law.at((step + 0.5) / steps) for step in range(steps)]
        assert fmean(drawn) == pytest.approx(lengths.mean, rel=1e-3)
        assert drawn == sorted(drawn)
        assert drawn[0] >= 1
        for share, value in ((SHARES[key], getattr(lengths, key)) for key in SHARES):
            if value is not None and share < 1:
                assert law.at(share) == value
        assert lengths.max is None or drawn[-1] <= lengths.max


@given(st.lists(st.integers(1, 5000), min_size=20, max_size=60), st.sets(st.sampled_from(sorted(SHARES))))
def test_what_a_sample_says_of_itself_is_drawn_again(sample: list[int], known: set[str]) -> None:
    sample.sort()
    given = {key: sample[min(len(sample) - 1, int(SHARES[key] * len(sample)))] for key in known}
    lengths = Lengths(mean=round(fmean(sample)), **given)
    try:
        law = law_of(lengths, 10_000, "here")
    except InputError as error:
        assert "no lengths have these percentiles" in str(error)  # noqa: PT017
        return
    drawn = [law.at((step + 0.5) / 20_000) for step in range(20_000)]
    assert fmean(drawn) == pytest.approx(lengths.mean, rel=0.01, abs=1)
    assert min(drawn) >= 1
    assert all(law.at(SHARES[key]) == value for key, value in given.items() if key != "max")


def test_lengths_that_cannot_be_are_refused() -> None:
    with pytest.raises(
        InputError,
        match=r"here: no lengths have these percentiles and the mean 900; with them it is over 60 and under 330",
    ):
        law_of(Lengths(mean=900, p50=100, p90=200, max=2000), 4096, "here")
    assert {law_of(Lengths(mean=70), 4096, "here").at(share) for share in (0, 0.3, 0.999)} == {70}
    assert {law_of(Lengths(mean=70, p50=70, max=70), 4096, "here").at(share) for share in (0, 0.3, 0.999)} == {70}


def test_a_request_fits_the_context_and_begins_with_the_prefix() -> None:
    prefix = Prefix(shared_tokens=8000, request_share=Decimal("0.8"))
    made = load(Arrivals(1.0), count=5000, prefix=prefix, context_tokens=2000)
    requests = list(made.requests())
    assert len(requests) == 5000
    assert max(r.input_tokens + r.output_tokens for r in requests) <= 2000
    assert min(r.output_tokens for r in requests) >= 1
    assert made.chunk_tokens == PREFIX_CHUNK_TOKENS
    every = tuple(range(8000 // PREFIX_CHUNK_TOKENS))
    assert all(r.hash_ids in ((), every[: math.ceil(r.input_tokens / PREFIX_CHUNK_TOKENS)]) for r in requests)
    assert sum(bool(r.hash_ids) for r in requests) / 5000 == pytest.approx(0.8, abs=0.03)
    assert load(Arrivals(1.0)).chunk_tokens == 0
    with pytest.raises(InputError, match="input_tokens and output_tokens are needed"):
        load(output_tokens=None)


def test_prompts_that_begin_with_a_prefix_are_as_long_as_it_where_enough_are() -> None:
    made = load(Arrivals(1.0), count=5000, prefix=Prefix(shared_tokens=512, request_share=Decimal("0.3")))
    sharing = [r for r in made.requests() if r.hash_ids]
    assert len(sharing) / 5000 == pytest.approx(0.3, abs=0.03)
    assert min(r.input_tokens for r in sharing) >= 512
    assert {len(r.hash_ids) for r in sharing} == {32}


def test_tenants_ask_with_their_scopes_and_prefixes_as_often_as_they_are_popular() -> None:
    prefix = Prefix(shared_tokens=64, request_share=Decimal(1))
    weights = tuple(map(Decimal, (6, 3, 1)))
    for scope, scopes in (("shared", {""}), ("per_tenant", {"tenant 1", "tenant 2", "tenant 3"})):
        fields = {"count": 3, "cache_scope": scope, "prefixes": 2, "popularity": weights}
        who = Tenants.model_validate(fields)
        made = load(Arrivals(1.0), count=5000, prefix=prefix, tenants=who)
        requests = [r for r in made.requests() if r.input_tokens >= 64]
        assert {r.scope for r in requests} == scopes
        assert {r.hash_ids for r in requests} == {(0, 1, 2, 3), (4, 5, 6, 7)}
        assert sum(r.hash_ids[0] == 0 for r in requests) / len(requests) == pytest.approx(0.5, abs=0.05)
        if scope == "per_tenant":
            assert sum(r.scope == "tenant 1" for r in requests) / len(requests) == pytest.approx(0.6, abs=0.05)


def test_a_closed_loop_has_users_and_no_times() -> None:
    loop = ClosedLoop(load(None, count=50), users=8, think_s=1.5)
    requests = list(loop.requests())
    assert len(requests) == 50
    assert {r.arrival_s for r in requests} == {0.0}
    assert (loop.name, loop.chunk_tokens) == ("8 users, chat", 0)
    assert loop.facts()[0] == "closed loop: 8 users, 1.5 s from an answer to the next request"
    replayed = ClosedLoop(open_trace(MOONCAKE), users=4)
    assert {r.arrival_s for r in replayed.requests()} == {0.0}
    assert replayed.chunk_tokens == 512


def test_a_load_is_sped_up_cut_short_and_capped() -> None:
    trace = open_trace(MOONCAKE)
    plain = list(trace.requests())
    assert list(Changed(trace).requests()) == plain
    assert list(Changed(trace, most_requests=10).requests()) == plain[:10]
    fast = list(Changed(trace, speed=4.0).requests())
    assert [r.arrival_s for r in fast] == [r.arrival_s / 4 for r in plain]
    assert [replace(r, arrival_s=0.0) for r in fast] == [replace(r, arrival_s=0.0) for r in plain]
    short = Changed(trace, most_input_tokens=1000, most_output_tokens=50)
    for request, was in zip(short.requests(), plain, strict=True):
        assert request.input_tokens == min(was.input_tokens, 1000)
        assert request.output_tokens == min(was.output_tokens, 50)
        assert request.hash_ids == was.hash_ids[: math.ceil(request.input_tokens / 512)]
    assert short.facts()[1:] == ("inputs of at most 1000 tokens", "outputs of at most 50 tokens")
    assert Changed(trace, 2.0, 5).facts()[1:] == ("arrivals 2 times as fast", "the first 5 requests")


def test_a_load_is_brought_to_a_rate() -> None:
    trace = Changed(open_trace(MOONCAKE), most_requests=500)
    faster = at_rate(trace, 50.0)
    assert mean_rate_per_s(faster) == pytest.approx(50.0)
    assert mean_rate_per_s(load(Arrivals(2.0, 0.0))) == pytest.approx(2.0)
    assert at_rate(faster, 50.0).speed == pytest.approx(faster.speed)
    with pytest.raises(InputError, match="no time passes"):
        mean_rate_per_s(ClosedLoop(trace, users=2))


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, 1e300])
def test_numbers_that_make_no_load_are_refused(wrong: float) -> None:
    trace = open_trace(MOONCAKE)
    made: tuple[Callable[[], object], ...] = (
        lambda: Arrivals(wrong),
        lambda: Arrivals(1.0, wrong or -1.0),
        lambda: Changed(trace, speed=wrong),
        lambda: Changed(trace, most_requests=0),
        lambda: Changed(trace, most_output_tokens=0),
        lambda: at_rate(Changed(trace), wrong),
        lambda: ClosedLoop(trace, users=0),
        lambda: ClosedLoop(trace, users=1, think_s=wrong or -1.0),
        lambda: load(None, count=0),
    )
    for make in made:
        with pytest.raises(InputError, match="is not a number from"):
            make()


def test_a_request_is_small() -> None:
    assert not hasattr(Request(0.0, 1, 1), "__dict__")
