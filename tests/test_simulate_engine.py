"""The engine against a naive one: the same times, preemptions and hits on random loads; and what always holds."""

import random
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.simulate.engine import Engine
from planner.simulate.hashes import Hashes
from planner.simulate.requests import Request
from planner.simulate.rules import Memory, Rules
from planner.simulate.run import Run
from planner.simulate.steps import StepTimes
from tests.reference_engine import Naive, ReferenceEngine

TICK_S = 2.0**-20
"""Steps last multiples of it, so that sums of times are exact, and requests come between them."""


class EvenTimes:
    """Steps that take longer the more they do, in whole ticks."""

    def decode(self, batch: int, kv_tokens: int) -> tuple[float, float]:
        return TICK_S * (1000 + 16 * batch + 2 * kv_tokens), TICK_S * 2 * batch

    def mixed(self, batch: int, kv_tokens: int, prompts: list[tuple[int, int]]) -> float:
        more = sum(40 * new + new * (prior + new // 2) // 8 for new, prior in prompts)
        return TICK_S * (1300 + 16 * batch + 2 * kv_tokens + 10 * len(prompts) + more)


@dataclass
class Watch:
    """Remembers what an engine tells."""

    ended: dict[int, float] = field(default_factory=dict)
    dropped: dict[int, float] = field(default_factory=dict)
    gap_s: float = 0.0
    gaps: int = 0

    def steps(self, seconds: float, gaps: int) -> None:
        self.gap_s += seconds * gaps
        self.gaps += gaps

    def done(self, run: Run, end_s: float) -> None:
        assert id(run) not in self.ended
        self.ended[id(run)] = end_s

    def cancelled(self, run: Run, end_s: float) -> None:
        assert id(run) not in self.ended
        self.dropped[id(run)] = end_s


def engine_of(memory: Memory, rules: Rules, chunk_tokens: int = 0) -> tuple[Engine, Watch]:
    watch = Watch()
    hashes = Hashes(memory, chunk_tokens) if chunk_tokens else None
    return Engine(memory, rules, cast(StepTimes, EvenTimes()), watch, hashes), watch


def check(engine: Engine) -> None:
    """No block is lost or used twice; nothing in use is queued."""
    assert 0 <= engine.used_units <= engine.pool.units
    if engine.sharing is None:
        return
    pool = engine.sharing.pool
    pool.settle(engine._used(0))
    assert pool.queued == sum(span.units for span in pool.queue) == pool.units - engine.used_units
    assert all(not span.refs and 0 <= span.units - len(span.keys) * span.each for span in pool.queue)
    listed = [*pool.cached.values(), *(span for others in pool.copies.values() for span in others)]
    assert all(span in pool.queue for span in listed if not span.refs)
    assert pool.shared == sum(span.units for span in listed if span.refs)


def simulate(engine: Engine, requests: list[Request]) -> list[Run | None]:
    """The runs of requests; None where one was turned away."""
    runs = []
    for request in requests:
        engine.advance(request.arrival_s)
        check(engine)
        runs.append(engine.submit(request, request.arrival_s))
    engine.advance(float("inf"))
    check(engine)
    assert engine.requests == engine.used_units == 0
    return runs


def outcome(run: Run | None, watch: Watch) -> tuple[object, ...]:
    if run is None:
        return ("refused",)
    if id(run) in watch.dropped:
        return "cancelled", run.started_s, run.preemptions
    return "done", run.started_s, run.first_s, watch.ended[id(run)], run.preemptions


def expected(run: Naive) -> tuple[object, ...]:
    if run.outcome == "refused":
        return ("refused",)
    if run.outcome == "cancelled":
        return "cancelled", run.started_s, run.preemptions
    return run.outcome, run.started_s, run.first_s, run.end_s, run.preemptions


@st.composite
def loads(draw: st.DrawFn, most_tokens: int = 40, chunk: int = 0) -> list[Request]:
    """Requests of a few families that share the start of their prompts, in bursts or apart."""
    seed = draw(st.integers(0, 2**32))
    source = random.Random(seed)
    count = draw(st.integers(1, 40))
    apart = source.choice([0.5, 20.0, 200.0, 2000.0])
    now, requests = 0.0, []
    tree: dict[tuple[int, ...], list[int]] = {}
    for _ in range(count):
        if source.random() < 0.7:
            now += source.expovariate(1 / (apart * 1000))
        tokens = source.randint(1, most_tokens - 1)
        output = min(most_tokens - tokens, source.choice([1, 1, 2, 5, source.randint(1, 60)]))
        ids: tuple[int, ...] = ()
        while chunk and len(ids) * chunk < tokens:
            children = tree.setdefault(ids, [])
            if not children or source.random() < 0.25:
                children.append(source.getrandbits(40))
            ids = (*ids, source.choice(children))
        if chunk and tokens % chunk:  # of a last, partial chunk the id is its own
            ids = (*ids[:-1], source.getrandbits(40))
        arrival = int(now) * TICK_S + TICK_S / 16
        requests.append(Request(arrival, tokens, output, ids))
    return requests


RULES = st.builds(
    Rules,
    max_seqs=st.integers(1, 12),
    max_tokens=st.integers(12, 64),
    context_tokens=st.just(10**6),
    sees_late=st.booleans(),
    mixes=st.booleans(),
    reserves_prompt=st.booleans(),
    reserves_answer=st.sampled_from([False, False, False, True]),
    prefix_caching=st.booleans(),
    max_queue=st.sampled_from([None, None, 0, 3]),
    timeout_s=st.sampled_from([None, None, 0.01 + TICK_S / 64, 0.1 + TICK_S / 64]),
)
EXAMPLES = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


def same(memory: Memory, rules: Rules, requests: list[Request], chunk: int = 0) -> tuple[list[Run | None], list[Naive]]:
    engine, watch = engine_of(memory, rules, chunk)
    runs = simulate(engine, requests)
    naive = ReferenceEngine(memory, rules, EvenTimes(), chunk).run(requests)
    assert [outcome(run, watch) for run in runs] == [expected(run) for run in naive]
    return runs, naive


@given(loads(), RULES, st.integers(10, 30), st.sampled_from([((4, 1),), ((1, 1),), ((4, 1), (8, 1)), ((2, 1), (4, 3))]))
@EXAMPLES
def test_times_and_preemptions_are_the_naive_engines(
    requests: list[Request], rules: Rules, units: int, growing: tuple[tuple[int, int], ...]
) -> None:
    memory = Memory(units * sum(weight for _, weight in growing) * (4 // min(4, growing[0][0])), growing)
    rules = replace(rules, prefix_caching=rules.prefix_caching and growing == ((4, 1),))
    same(memory, rules, requests)


@given(loads(chunk=4), RULES, st.integers(10, 30))
@EXAMPLES
def test_hits_are_the_naive_engines_where_a_chunk_is_a_block(
    requests: list[Request], rules: Rules, units: int
) -> None:
    runs, naive = same(Memory(units, ((4, 1),)), replace(rules, prefix_caching=True), requests, 4)
    assert [run and run.cached for run in runs] == [max(0, run.cached) if run.outcome != "refused" else None for run in naive]
