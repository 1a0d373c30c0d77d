"""The engine against a naive one: the same times, preemptions and hits on random loads; and what always holds."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.simulate.engine import Engine
from planner.simulate.hashes import Hashes
from planner.simulate.lockstep import Lockstep
from planner.simulate.quantiles import Gaps
from planner.simulate.requests import Request
from planner.simulate.rules import Memory, Rules
from planner.simulate.run import Run
from tests.reference_engine import Naive, ReferenceEngine, run_together

TICK_S = 2.0**-20
"""Steps last multiples of it, so that sums of times are exact, and requests come between them."""


class EvenTimes:
    """Steps that take longer the more they do, in whole ticks."""

    def decode(self, batch: int, kv_tokens: int) -> tuple[float, float]:
        return TICK_S * (1000 + 16 * batch + 2 * kv_tokens), TICK_S * 2 * batch

    def mixed(self, batch: int, kv_tokens: int, prompts: list[tuple[int, int]], everywhere: int | None = None) -> float:
        more = sum(40 * new + new * (prior + new // 2) // 8 for new, prior in prompts) + 7 * (everywhere or 0)
        return TICK_S * (1300 + 16 * batch + 2 * kv_tokens + 10 * len(prompts) + more)


@dataclass
class Watch:
    """Remembers what an engine tells."""

    ended: dict[int, float] = field(default_factory=dict)
    dropped: dict[int, float] = field(default_factory=dict)
    gaps: Gaps = field(default_factory=lambda: Gaps(round(1 / TICK_S)))

    def done(self, runs: list[Run]) -> None:
        for run in runs:
            assert id(run) not in self.ended
            self.ended[id(run)] = run.end_s

    def cancelled(self, run: Run) -> None:
        assert id(run) not in self.ended
        self.dropped[id(run)] = run.end_s


def engine_of(memory: Memory, rules: Rules, chunk_tokens: int = 0) -> tuple[Engine, Watch]:
    watch = Watch()
    hashes = Hashes(memory, chunk_tokens) if chunk_tokens else None
    return Engine(memory, rules, EvenTimes(), watch, hashes), watch


def check(engine: Engine) -> None:
    """No block is lost or used twice; nothing in use is queued."""
    used = engine.units_now()
    assert used in range(engine.pool.units + 1)
    if engine.sharing is None:
        return
    pool = engine.sharing.pool
    pool.settle(engine.used(engine.growth.units(0)))
    assert pool.queued == pool.units - used
    assert sum(span.units for span in pool.queue) == pool.queued
    assert all(not span.refs and span.units >= len(span.keys) * span.each for span in pool.queue)
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
    assert engine.requests == engine.units_now() == 0
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
    source = draw(st.randoms(use_true_random=True))
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
    max_queue=st.sampled_from([None, None, 1, 3]),
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


@given(loads(), RULES, st.integers(10, 500))
@EXAMPLES
def test_times_are_the_naive_engines_however_far_ahead_requests_are_sent(
    requests: list[Request], rules: Rules, units: int
) -> None:
    rules = replace(rules, sees_late=True, mixes=True, max_queue=None, timeout_s=None)
    memory = Memory(units, ((4, 1),))
    _, naive = same(memory, rules, requests)
    engine, watch = engine_of(memory, rules)
    ahead = [engine.submit(request, request.arrival_s) for request in requests]
    engine.advance(float("inf"))
    check(engine)
    assert [outcome(run, watch) for run in ahead] == [expected(run) for run in naive]


@given(loads(), RULES, st.integers(10, 200), st.integers(1, 3), st.randoms(use_true_random=True))
@EXAMPLES
def test_ranks_that_share_experts_step_together_as_naive_ones_do(
    requests: list[Request], rules: Rules, units: int, count: int, source: Random
) -> None:
    memory = Memory(units, ((4, 1),))
    made = [engine_of(memory, rules) for _ in range(count)]
    together = Lockstep([engine for engine, _ in made])
    loads: list[list[Request]] = [[] for _ in made]
    runs: list[list[Run | None]] = [[] for _ in made]
    for request in requests:
        place = source.randrange(count)
        engine, _ = made[place]
        engine.advance(request.arrival_s)
        loads[place].append(request)
        runs[place].append(engine.submit(request, request.arrival_s))
        check(engine)
    together.advance(float("inf"))
    naive = [ReferenceEngine(memory, rules, EvenTimes()) for _ in made]
    run_together(naive, loads)
    for (engine, watch), each, other in zip(made, runs, naive, strict=True):
        assert engine.requests == engine.units_now() == 0
        assert [outcome(run, watch) for run in each] == [expected(run) for run in other.all]


@given(loads(chunk=4), RULES, st.integers(10, 30))
@EXAMPLES
def test_hits_are_the_naive_engines_where_a_chunk_is_a_block(requests: list[Request], rules: Rules, units: int) -> None:
    runs, naive = same(Memory(units, ((4, 1),)), replace(rules, prefix_caching=True), requests, 4)
    assert [run.cached for run in runs if run] == [max(0, run.cached) for run in naive if run.outcome != "refused"]


@given(loads(chunk=8), RULES)
@EXAMPLES
def test_hits_are_the_same_where_a_chunk_is_several_blocks_and_none_is_evicted(
    requests: list[Request], rules: Rules
) -> None:
    """Under eviction, or after a request that was cancelled within a chunk, they may differ: the engine finds a chunk
    whole or not at all, vLLM its first blocks too."""
    rules = replace(rules, prefix_caching=True, timeout_s=None)
    runs, naive = same(Memory(400, ((4, 1),)), rules, [r for r in requests if r.input_tokens % 8], 8)
    assert [run.cached for run in runs if run] == [max(0, run.cached) for run in naive if run.outcome != "refused"]


@given(loads(chunk=8), RULES, st.sampled_from([((4, 1),), ((4, 3), (8, 5)), ((16, 1),), ((1, 1),)]), st.integers(0, 3))
@EXAMPLES
def test_nothing_is_lost_and_nobody_starves(
    requests: list[Request], rules: Rules, growing: tuple[tuple[int, int], ...], state: int
) -> None:
    """Several groups, windows and states, chunks of several blocks or parts of one, ids that are not chained."""
    memory = Memory(1, growing, ((4, 2, 3),) if state == 1 else (), state)
    memory = replace(memory, units=memory.whole(60))
    for request in requests:
        request.hash_ids = tuple(each % 5 for each in request.hash_ids) if state == 2 else request.hash_ids
    engine, watch = engine_of(memory, replace(rules, prefix_caching=state != 3), 8)
    runs = simulate(engine, requests)
    taken = [run for run in runs if run is not None]
    assert len(watch.ended) + len(watch.dropped) == len(taken)
    assert all(run.end_s >= 0 for run in taken)
    if not watch.dropped and not any(run.preemptions for run in taken):
        assert watch.gaps.count == sum(run.request.output_tokens - 1 for run in taken)
        ticks = sum(length * count for length, count in watch.gaps.counts.items())
        assert ticks * TICK_S == sum(run.end_s - run.first_s for run in taken)


SMALL = Rules(max_seqs=4, max_tokens=32, context_tokens=100, prefix_caching=False)


def test_a_failure_loses_what_runs_and_waits_and_the_cache() -> None:
    engine, watch = engine_of(Memory(20, ((4, 1),)), replace(SMALL, prefix_caching=True), 4)
    requests = [Request(0.0, 20, 30, (1, 2, 3, 4, 5)) for _ in range(6)]
    runs = [engine.submit(request, 0.0) for request in requests]
    engine.advance(0.01)
    assert engine.requests == 6
    assert engine.cached_tokens(requests[0]) == 20
    assert set(engine.fail()) == set(runs)
    assert (engine.requests, engine.units_now(), engine.cached_tokens(requests[0])) == (0, 0, 0)
    assert engine.now >= 0.01
    again = [engine.submit(request, engine.now) for request in requests]
    engine.advance(float("inf"))
    assert [id(run) in watch.ended for run in again] == [True] * 6
    assert not any(id(run) in watch.ended for run in runs)


def test_a_request_longer_than_the_pool_or_the_context_is_refused() -> None:
    engine, _ = engine_of(Memory(20, ((4, 1),)), SMALL)
    assert engine.longest == 80
    longest, longer = Request(0.0, 79, 1), Request(0.0, 80, 1)
    assert (engine.takes(longest), engine.takes(longer)) == (True, False)
    assert engine.submit(longer, 0.0) is None
    assert engine.submit(longest, 0.0) is not None
    assert engine_of(Memory(2000, ((4, 1),)), SMALL)[0].longest == 100


def test_a_bounded_queue_takes_more_once_a_step_has_started_some() -> None:
    engine, _ = engine_of(Memory(200, ((4, 1),)), replace(SMALL, max_queue=2))
    taken = [engine.submit(Request(0.0, 4, 10), 0.0) for _ in range(4)]
    assert [run is not None for run in taken] == [True, True, False, False]
    engine.advance(TICK_S)
    assert engine.submit(Request(TICK_S, 4, 10), TICK_S) is not None


def test_an_answer_that_is_reserved_is_never_preempted() -> None:
    requests = [Request(TICK_S * i, 8, 40) for i in range(8)]
    on_demand, _ = engine_of(Memory(30, ((4, 1),)), replace(SMALL, max_seqs=8))
    reserving, _ = engine_of(Memory(30, ((4, 1),)), replace(SMALL, max_seqs=8, reserves_answer=True))
    assert sum(run.preemptions for run in simulate(on_demand, requests) if run) > 0
    assert sum(run.preemptions for run in simulate(reserving, requests) if run) == 0


def test_decodes_wait_for_prompts_where_they_do_not_share_steps() -> None:
    """The gap of those who decode is then a prompt's step and their own."""
    times = EvenTimes()
    requests = [Request(0.0, 16, 20), Request(TICK_S * 3000, 16, 1)]
    for mixes, longest in (
        (True, times.mixed(1, 17, [(16, 0)])),
        (False, times.mixed(0, 0, [(16, 0)]) + times.decode(1, 17)[0]),
    ):
        engine, watch = engine_of(Memory(30, ((4, 1),)), replace(SMALL, mixes=mixes, sees_late=False))
        simulate(engine, requests)
        assert max(watch.gaps.counts) * TICK_S == pytest.approx(longest, rel=0.1)
