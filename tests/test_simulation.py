"""`simulation.simulate`: the fleet under a load, held against laws, the formulas, and itself."""

import gc
import json
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import simulation
from planner.errors import InputError
from planner.report import Report
from planner.report_simulation import Simulation
from planner.simulate import cluster, measures
from planner.simulate.asked import Asked, load_of
from planner.simulate.loads import ClosedLoop, Listed, Load
from planner.simulate.requests import Request
from planner.simulation import MOST_TRIED, Fleet, Task, _least, simulate, simulate_all
from tests.scenarios import CHAT, ORACLES, scenario

AZURE = ORACLES / "traces" / "azure2023_conv_head.csv"
MOONCAKE = ORACLES / "traces" / "mooncake_conversation_head.jsonl.gz"
ARRIVING = {**CHAT, "concurrency": None, "arrivals_per_s": 10}
FEW = 2000
DEFAULT, ONE = Asked(requests=FEW), Fleet(replicas=1)
SAME_LENGTHS = {
    "name": "same",
    "context_tokens": 1300,
    "input_tokens": {"mean": 1000},
    "output_tokens": {"mean": 100},
    "concurrency": 16,
    "source": "test",
}


def reported(
    workload: dict[str, Any] = ARRIVING,
    asked: Asked = DEFAULT,
    fleet: Fleet = ONE,
    **overrides: Any,
) -> Report:
    model, gpu = overrides.pop("model", "llama-3.1-8b"), overrides.pop("gpu", "h100-sxm")
    planned = scenario(model, gpu, {"workload": workload, **overrides})
    return simulate(planned, load_of(planned, asked), fleet)


def seen(*arguments: Any, **overrides: Any) -> Simulation:
    found = reported(*arguments, **overrides).simulation
    assert found is not None
    return found


@cache
def overloaded() -> Simulation:
    """Three times what a replica can do."""
    return seen(ARRIVING, Asked(rate_per_s=70, requests=FEW))


def objectives(**asked: Any) -> dict[str, Any]:
    return {**ARRIVING, "objectives": asked}


# Conservation


@pytest.mark.parametrize(
    ("asked", "fleet"),
    [
        (Asked(requests=FEW), Fleet(replicas=1)),
        (Asked(requests=FEW, rate_per_s=80), Fleet(replicas=2, max_queue=5)),
        (Asked(requests=FEW, rate_per_s=80), Fleet(replicas=1, timeout_s=3.0)),
        (Asked(requests=FEW, users=40, think_s=0.5), Fleet(replicas=2)),
        (Asked(requests=FEW, users=400), Fleet(replicas=2, timeout_s=5.0)),
        (Asked(trace=AZURE, rate_per_s=60), Fleet(replicas=3, routing="least-loaded", max_queue=2, timeout_s=2.0)),
        (Asked(trace=MOONCAKE), Fleet(replicas=2, routing="prefix-aware")),
    ],
)
def test_every_request_is_accounted_for(asked: Asked, fleet: Fleet) -> None:
    found = seen(ARRIVING, asked, fleet)
    assert found.submitted == (1000 if asked.trace == MOONCAKE else FEW)
    assert found.submitted == found.completed + found.too_long + found.turned_away + found.cancelled
    assert found.completed > 0
    assert (found.too_long > 0) == (asked.trace == MOONCAKE)  # its prompts are longer than the workload's context


def test_requests_longer_than_the_context_are_refused_and_said() -> None:
    found = seen(ARRIVING, Asked(trace=MOONCAKE))
    assert any("too long" in miss for miss in found.misses)
    assert not next(check for check in found.checks if check.what == "requests too long").holds
    whole = seen(ARRIVING, Asked(trace=MOONCAKE), Fleet(replicas=4), context_tokens=131072)
    assert whole.too_long == 0


# Laws


def test_little() -> None:
    """Of N users who do not think, N = X T at any time (Little 1961): in a long run of a closed loop."""
    found = seen(SAME_LENGTHS, Asked(users=32, requests=4 * FEW))
    assert found.e2e_s is not None
    assert found.completed_per_s * found.e2e_s.mean == pytest.approx(32, rel=0.02)
    thinking = seen(SAME_LENGTHS, Asked(users=32, think_s=2.0, requests=4 * FEW))
    assert thinking.e2e_s is not None
    assert thinking.completed_per_s * (thinking.e2e_s.mean + 2.0) == pytest.approx(32, rel=0.02)


def test_the_formulas_and_the_simulation_agree_where_nothing_queues() -> None:
    """A steady batch: what serving.tpot has in closed form. Answers differ in length, else all would end together."""
    answers = {"mean": 100, "p50": 90, "max": 300}
    for users in (1, 8, 32):
        report = reported({**SAME_LENGTHS, "output_tokens": answers, "concurrency": users}, Asked(requests=FEW))
        latency, found = report.latency, report.simulation
        assert latency is not None
        assert found is not None
        assert found.tpot_s is not None
        assert found.tpot_s.mean == pytest.approx(latency.tpot_s.best, rel=0.06)
        assert latency.arrivals_per_s is not None
        assert found.completed_per_s == pytest.approx(latency.arrivals_per_s, rel=0.08)


@pytest.mark.parametrize(
    ("model", "ranks", "rate"),
    [("qwen3-30b-a3b", 2, 10), ("qwen3-30b-a3b", 4, 30), ("deepseek-r1", 8, 3), ("deepseek-r1", 8, 6)],
)
@pytest.mark.parametrize("engine", ["vllm-0.33", "sglang-0.5"])
def test_they_agree_where_data_parallel_ranks_share_experts(model: str, ranks: int, rate: int, engine: str) -> None:
    """Every rank waits for every other's prompts: without that the formulas are twice too fast at the last of these."""
    split: dict[str, Any] = {"parallelism.dp": ranks, "parallelism.ep": ranks, "engine": engine}
    lengths = {"input_tokens": {"mean": 1000}, "output_tokens": {"mean": 200, "p50": 190, "max": 400}}
    report = reported({**ARRIVING, **lengths, "arrivals_per_s": rate}, model=model, gpu="h200-sxm", **split)
    latency, found = report.latency, report.simulation
    assert latency is not None
    assert found is not None
    assert found.tpot_s is not None
    assert found.ttft_s is not None
    assert found.tpot_s.mean == pytest.approx(latency.tpot_s.best, rel=0.15)
    assert found.ttft_s.mean == pytest.approx(latency.ttft_mean_s.best, rel=0.2)


def test_more_replicas_are_never_slower_and_more_load_never_faster() -> None:
    times = [seen(ARRIVING, Asked(rate_per_s=rate, requests=FEW)).ttft_s for rate in (2, 8, 20, 70)]
    means = [each.mean for each in times if each is not None]
    assert means == sorted(means)
    fleets = [seen(ARRIVING, Asked(rate_per_s=70, requests=FEW), Fleet(replicas=count)).e2e_s for count in (1, 2, 4, 8)]
    means = [each.mean for each in fleets if each is not None]
    assert means == sorted(means, reverse=True)


def test_the_same_seed_gives_the_same_bytes() -> None:
    asked, fleet = Asked(requests=FEW, seed=7), Fleet(replicas=2, routing="least-loaded", seed=7)
    once, again = (reported(ARRIVING, asked, fleet).model_dump_json() for _ in range(2))
    assert once == again
    other = seen(ARRIVING, Asked(requests=FEW, seed=8), fleet)
    assert other.ttft_s != reported(ARRIVING, asked, fleet).simulation.ttft_s  # type: ignore[union-attr]


def test_overload_is_said() -> None:
    found = overloaded()
    assert found.saturated
    assert not found.met
    assert found.misses[0].startswith("the queue grows without end: ")
    assert found.waiting_max > 100
    idle = seen(ARRIVING, Asked(rate_per_s=1, requests=200))
    assert not idle.saturated
    assert idle.met


def test_percentiles_ascend_and_goodput_is_part_of_the_throughput() -> None:
    for times in (overloaded().ttft_s, overloaded().tpot_s, overloaded().itl_s, overloaded().e2e_s):
        assert times is not None
        assert 0 < times.p50 <= times.p90 <= times.p95 <= times.p99
    found = seen(objectives(ttft_p95_s=Decimal("0.05")))
    assert found.in_time_share is not None
    assert 0 < found.goodput_per_s < found.completed_per_s
    assert found.goodput_per_s == pytest.approx(found.completed_per_s * found.in_time_share, rel=1e-4)


# Caches and routing


def test_a_shared_prefix_is_found_and_faster() -> None:
    prefix = {**ARRIVING, "prefix": {"shared_tokens": 800, "request_share": 1}}
    plain, shared = seen(ARRIVING), seen(prefix)
    assert plain.hit_share is None
    assert shared.hit_share is not None
    assert shared.hit_share > 0.4
    assert plain.ttft_s is not None
    assert shared.ttft_s is not None
    assert shared.ttft_s.mean < plain.ttft_s.mean
    off = seen(prefix, **{"engine_options.prefix_caching": False})
    assert off.ttft_s == plain.ttft_s


def test_tenants_with_scopes_of_their_own_find_less() -> None:
    same = {**ARRIVING, **SAME_LENGTHS, "concurrency": None, "prefix": {"shared_tokens": 800, "request_share": 1}}
    shared, apart = (
        seen({**same, "tenants": {"count": 400, "cache_scope": scope}}) for scope in ("shared", "per_tenant")
    )
    assert shared.hit_share == pytest.approx(0.8, abs=0.01)
    assert apart.hit_share is not None
    assert apart.hit_share < 0.7
    assert apart.hits[0].scope.startswith("tenant ")


def test_what_is_found_cached_is_a_share_of_all_prompts() -> None:
    """Half of the prompts begin with the same half: a quarter of all tokens, as the formulas count them."""
    prefix = {**ARRIVING, **SAME_LENGTHS, "concurrency": None, "prefix": {"shared_tokens": 496, "request_share": "0.5"}}
    found = seen(prefix)
    assert found.hit_share == pytest.approx(0.25, abs=0.01)
    assert [(each.scope, each.requests, each.hit_share) for each in found.hits] == [("", FEW, found.hit_share)]
    assert next(check for check in found.checks if check.what == "prompt tokens found cached").holds


def test_routing_by_prefix_finds_no_less_than_round_robin() -> None:
    def share(routing: str) -> float:
        fleet = Fleet(replicas=4, routing=routing)
        found = seen(ARRIVING, Asked(trace=MOONCAKE), fleet, context_tokens=131072).hit_share
        assert found is not None
        return found

    assert share("prefix-aware") > 1.2 * share("round-robin")


# Failures


def test_nodes_that_fail_lose_their_requests_to_others() -> None:
    failing = {
        "workload": objectives(availability=Decimal("0.9")),
        "spares": {
            "failures": {
                "device_hours_per_failure": Decimal("0.01"),
                "mttr_hours": Decimal("0.002"),
                "source": "test",
            }
        },
    }
    planned = scenario("llama-3.1-8b", "h100-sxm", failing)
    report = simulate(planned, load_of(planned, Asked(requests=FEW)), Fleet(replicas=3, fails=True))
    found = report.simulation
    assert found is not None
    assert found.node_failures > 0
    assert found.restarted > 0
    assert 0 < found.down_share < 1
    assert found.submitted == found.completed + found.turned_away
    assert report.fleet is not None
    assert found.replicas == 3 + report.fleet.spare_replicas


def test_nodes_that_fail_before_any_request_can_end_are_refused() -> None:
    failing = {
        "workload": objectives(availability=Decimal("0.5")),
        "spares.failures": {"device_hours_per_failure": "0.0001", "mttr_hours": "0.00001", "source": "test"},
    }
    planned = scenario("llama-3.1-8b", "h100-sxm", failing)
    asked, fleet = load_of(planned, Asked(requests=20)), Fleet(replicas=1, fails=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cluster, "MOST_FAILURES", 10)
        with pytest.raises(
            InputError, match=r"^--failures: more than 10 nodes fail .* each node every 360 ms on average"
        ):
            simulate(planned, asked, fleet)


def test_failures_need_a_rate() -> None:
    with pytest.raises(InputError, match=r"spares\.failures is missing"):
        seen(ARRIVING, fleet=Fleet(replicas=2, fails=True))


# The fleet, confirmed or corrected


def test_a_fleet_that_memory_alone_sized_is_corrected() -> None:
    report = reported(objectives(ttft_p95_s=1), fleet=Fleet())
    found = report.simulation
    assert found is not None
    assert report.fleet is not None
    assert found.replicas == report.fleet.active_replicas > 1
    assert found.least_replicas == 1
    assert found.verdict.startswith(f"Corrected: 1 replica is enough, not {found.replicas} as the formulas say.")


def test_a_fleet_too_small_for_a_trace_is_corrected_with_the_assumption_that_failed() -> None:
    found = seen(objectives(ttft_p95_s=1), Asked(trace=AZURE, rate_per_s=80), Fleet())
    assert found.least_replicas is not None
    assert found.least_replicas > 1
    broken = [check.what for check in found.checks if not check.holds]
    assert "requests per second" in broken
    enough = seen(objectives(ttft_p95_s=1), Asked(trace=AZURE, rate_per_s=80), Fleet(replicas=found.least_replicas))
    fewer = seen(objectives(ttft_p95_s=1), Asked(trace=AZURE, rate_per_s=80), Fleet(replicas=found.least_replicas - 1))
    assert enough.met
    assert not fewer.met


def test_a_fleet_that_is_given_is_judged() -> None:
    assert overloaded().verdict.startswith("1 replica is not enough: the queue grows without end")
    assert overloaded().least_replicas is None


def test_without_a_fleet_there_is_nothing_to_simulate() -> None:
    report = reported(objectives(ttft_p95_s=Decimal("0.0001")), fleet=Fleet())
    assert report.fleet is None
    assert report.simulation is None


@given(least=st.integers(1, 300), first=st.integers(1, 300))
def test_the_least_that_is_enough_is_found_or_nothing(least: int, first: int) -> None:
    asked: list[int] = []

    def enough(count: int) -> bool:
        asked.append(count)
        return count >= least

    found = _least(enough, first, lambda few, many: few < many, 10**6)
    assert len(asked) <= MOST_TRIED
    assert found is None or found >= least
    if abs(least - first) <= 8:
        assert found == least


@given(first=st.integers(1, 300), useless=st.integers(1, 600))
def test_where_twice_as_many_are_no_better_no_more_are_tried(first: int, useless: int) -> None:
    asked: list[int] = []

    def enough(count: int) -> bool:
        asked.append(count)
        return False

    assert _least(enough, first, lambda few, _: few < useless, 10**6) is None
    assert max(asked) < 16 * max(first, useless), "4 times to twice as many as the last that helped, and as much again"


def test_no_more_engines_are_tried_than_a_simulation_keeps() -> None:
    asked: list[int] = []
    assert _least(lambda count: bool(asked.append(count)), 3, lambda _few, _many: True, 40) is None  # type: ignore[func-returns-value]
    assert asked == [3, 4, 6, 10, 18, 34, 40]


def test_no_fleet_is_fast_enough_for_prompts_longer_than_the_formulas_know() -> None:
    code = {"input_tokens": {"mean": 6000}, "output_tokens": {"mean": 20}, "arrivals_per_s": 5}
    planned = scenario("llama-3.1-8b", overrides={"workload": objectives(ttft_p95_s=Decimal("0.15"))})
    load = load_of(scenario("llama-3.1-8b", overrides={"workload": {**ARRIVING, **code}}), Asked(requests=300))
    asked: list[int] = []
    with pytest.MonkeyPatch.context() as patched:
        run = simulation._run

        def asking(*arguments: Any, **more: Any) -> Any:
            asked.append(arguments[3])
            return run(*arguments, **more)

        patched.setattr(simulation, "_run", asking)
        found = simulate(planned, load, Fleet()).simulation
    assert found is not None
    assert found.least_replicas is None
    assert "nor is any fleet tried" in found.verdict
    assert asked == [2, 3, 5, 9, 17]


# Loads


def test_what_nobody_asked_for_follows_from_the_workload() -> None:
    closed = load_of(scenario("llama-3.1-8b", overrides={"workload": CHAT}), Asked())
    assert isinstance(closed, ClosedLoop)
    assert closed.users == 64
    opened = load_of(scenario("llama-3.1-8b", overrides={"workload": ARRIVING}), Asked(requests=100))
    assert not isinstance(opened, ClosedLoop)
    times = [request.arrival_s for request in opened.requests()]
    assert len(times) == 100
    assert 5 < times[-1] < 20


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Asked(speed=2.0), "--speed: needs a --trace"),
        (Asked(skip_bad=True), "--skip-bad: needs a --trace"),
        (Asked(form="azure"), "--trace-format: needs a --trace"),
        (Asked(trace=AZURE, arrivals="poisson"), "--arrival-law: a trace has its own arrivals"),
        (Asked(trace=AZURE, rate_per_s=1.0, speed=2.0), "--rate and --speed"),
        (Asked(users=3, rate_per_s=1.0), "--rate: in a closed loop answers decide"),
        (Asked(arrivals="closed", rate_per_s=1.0), "--rate: in a closed loop answers decide"),
        (Asked(variation=2.0), "--variation: needs --arrival-law gamma"),
        (Asked(think_s=2.0), "--think: needs a closed loop"),
        (Asked(users=3, arrivals="fixed"), "--arrival-law fixed: in a closed loop answers decide"),
        (Asked(trace=AZURE, arrivals="closed"), "--arrival-law closed: a trace says no number of users"),
    ],
)
def test_options_that_do_not_go_together_are_refused(asked: Asked, said: str) -> None:
    with pytest.raises(InputError) as error:
        load_of(scenario("llama-3.1-8b", overrides={"workload": ARRIVING}), asked)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("fleet", "said"),
    [
        (Fleet(replicas=2, fails=True), "--failures"),
        (Fleet(replicas=2, max_queue=3), "--max-queue"),
        (Fleet(replicas=2, routing="least-loaded"), "--routing"),
    ],
)
def test_what_no_closed_loop_has_is_refused(fleet: Fleet, said: str) -> None:
    with pytest.raises(InputError, match=said):
        seen(CHAT, Asked(users=3), fleet)


def test_a_workload_without_lengths_or_a_rate_is_refused() -> None:
    plain = {"name": "plain", "context_tokens": 512, "concurrency": 3, "source": "test"}
    with pytest.raises(InputError, match="input_tokens and output_tokens are needed"):
        seen(plain)
    with pytest.raises(InputError, match="says no rate of arrivals"):
        seen(CHAT, Asked(arrivals="poisson"))


# Engines


@pytest.mark.parametrize("engine", ["vllm-0.19", "vllm-0.33", "sglang-0.5", "tensorrt-llm-1.0"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b"])
def test_every_engine_serves_a_light_load(engine: str, model: str) -> None:
    found = seen(ARRIVING, Asked(rate_per_s=2, requests=200), model=model, engine=engine)
    assert found.completed == 200
    assert found.met
    assert 0 < found.kv_used_max < 1


def test_data_parallel_ranks_are_engines() -> None:
    found = seen(
        ARRIVING,
        Asked(rate_per_s=4, requests=300),
        Fleet(replicas=2),
        model="qwen3-30b-a3b",
        **{"parallelism.dp": 4, "parallelism.ep": 4},
    )
    assert (found.replicas, found.engines) == (2, 8)
    assert found.completed == 300


def test_a_model_that_does_not_fit_is_not_simulated() -> None:
    report = reported(model="llama-3.1-70b", workload=ARRIVING)
    assert report.simulation is None
    assert report.binding_limit == "device_memory"


def test_pipeline_stages_are_refused() -> None:
    with pytest.raises(InputError, match=r"parallelism\.pp: a simulation has no pipeline stages"):
        seen(ARRIVING, **{"parallelism.pp": 2})


# What is said of a load


def test_no_engine_is_sent_more_ahead_than_a_few_requests() -> None:
    """However long the load is and whichever engines the requests' numbers fall to, memory stays flat."""
    waited: list[int] = []

    class Watched(cluster.Cluster):
        def run(self, load: Load, _: Any = None) -> cluster.Result:
            return super().run(load, lambda _: waited.append(max(len(each.waiting) for each in self.engines)))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cluster, "TOLD", 511)
        patched.setattr(
            measures, "MOST_POINTS", 4
        )  # whose taking brings engines up to date, as seldom as in a long load
        patched.setattr(simulation, "Cluster", Watched)
        seen(ARRIVING, Asked(rate_per_s=1, requests=6000), Fleet(replicas=2))
    assert len(waited) > 10
    assert max(waited) <= cluster.SENT_AHEAD


def test_a_load_too_short_to_tell_is_not_said_to_wait_for_nothing() -> None:
    found = seen(ARRIVING, Asked(rate_per_s=1e6, requests=300))
    assert not found.saturated
    assert found.saturation.startswith("not told: all requests come within ")
    assert max(point.running + point.waiting for point in found.series) > 250


def test_a_request_alone_runs_nearly_all_of_its_time() -> None:
    found = seen(ARRIVING, Asked(requests=1))
    assert found.running_mean > 0.97
    assert found.load_facts[0].startswith("1 request of ")
    assert len(found.load_facts) == 1


def test_a_short_queue_that_turns_away_does_not_grow() -> None:
    found = seen(ARRIVING, Asked(rate_per_s=70, requests=FEW), Fleet(replicas=1, max_queue=5))
    assert found.saturated
    assert found.misses[0].startswith("too much was turned away: ")


# Several at once


def test_several_simulations_are_the_same_in_processes_of_their_own() -> None:
    planned = scenario("llama-3.1-8b", overrides={"workload": ARRIVING})
    tasks = [Task(Asked(requests=200), Fleet(), rate, count) for rate in (2.0, 20.0) for count in (1, 2)]
    told: list[tuple[int, int | None]] = []
    here = simulate_all(planned, tasks)
    apart = simulate_all(planned, tasks, jobs=2, step=lambda done, of: told.append((done, of)))
    assert here == apart
    assert told[-1] == (4, 4)
    offered = [report.simulation.offered_per_s for report in here if report.simulation]
    assert offered[0] == offered[1] != offered[2]


def test_the_garbage_collector_is_left_as_it_was(tmp_path: Path) -> None:
    planned = scenario("llama-3.1-8b", overrides={"workload": ARRIVING})
    before = gc.get_freeze_count()
    simulate(planned, load_of(planned, Asked(requests=FEW)), Fleet(replicas=1))
    assert gc.get_freeze_count() == before
    trace = tmp_path / "bad.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 60, "output_length": 2}\nnot a line\n')
    with pytest.raises(InputError, match="JSON"):
        simulate(planned, load_of(planned, Asked(trace=trace)), Fleet(replicas=1))
    assert gc.get_freeze_count() == before


def test_replicas_are_the_same_in_processes_of_their_own() -> None:
    planned = scenario("llama-3.1-8b", overrides={"workload": ARRIVING})
    for asked in (Asked(requests=FEW, rate_per_s=40), Asked(trace=MOONCAKE)):
        load, fleet = load_of(planned, asked), Fleet(replicas=3)
        here, apart = (simulate(planned, load, fleet, jobs=jobs).simulation for jobs in (1, 2))
        assert here is not None
        assert apart == here


SHARED_EXPERTS = {"model": "qwen3-30b-a3b", "parallelism.dp": 2, "parallelism.ep": 2}


@pytest.mark.parametrize(
    ("asked", "fleet"),
    [
        (Asked(requests=FEW, rate_per_s=60), Fleet(replicas=2, max_queue=3, timeout_s=3.0)),
        (Asked(requests=FEW, rate_per_s=60), Fleet(replicas=2, routing="least-loaded")),
        (Asked(requests=FEW, users=60), Fleet(replicas=2, timeout_s=5.0)),
        (Asked(trace=MOONCAKE), Fleet(replicas=2, routing="prefix-aware")),
    ],
)
def test_ranks_that_share_experts_serve_every_request_too(asked: Asked, fleet: Fleet) -> None:
    found = seen(ARRIVING, asked, fleet, **SHARED_EXPERTS)
    assert found.engines == 4
    assert found.submitted == found.completed + found.too_long + found.turned_away + found.cancelled
    assert found.completed > 0


def test_a_rank_waits_for_the_prompts_of_those_that_share_its_experts() -> None:
    """The second rank answers one long request, while the first gets prompts."""
    requests = [Request(0.0, 10, 1), Request(0.0, 10, 400)]
    for turn in range(1, 11):
        requests += [Request(0.2 * turn, 8000, 1), Request(0.2 * turn, 1, 1)]
    shared = simulate(
        scenario("qwen3-30b-a3b", overrides={"workload": ARRIVING, "parallelism.dp": 2, "parallelism.ep": 2}),
        Listed(requests), ONE,
    ).simulation  # fmt: skip
    dense = simulate(
        scenario("llama-3.1-8b", overrides={"workload": ARRIVING, "parallelism.dp": 2}), Listed(requests), ONE
    ).simulation
    assert shared is not None
    assert dense is not None
    assert shared.itl_s is not None
    assert dense.itl_s is not None
    assert shared.itl_s.p99 > 10 * shared.itl_s.p50
    assert dense.itl_s.p99 < 2 * dense.itl_s.p50


def test_replicas_whose_ranks_share_experts_are_the_same_in_processes_of_their_own() -> None:
    planned = scenario("qwen3-30b-a3b", overrides={"workload": ARRIVING, "parallelism.dp": 2, "parallelism.ep": 2})
    load, fleet = load_of(planned, Asked(requests=FEW, rate_per_s=60)), Fleet(replicas=3)
    here, apart = (simulate(planned, load, fleet, jobs=jobs).simulation for jobs in (1, 2))
    assert here is not None
    assert apart == here


def test_parts_of_a_fleet_count_the_same_scopes_and_bad_lines(tmp_path: Path) -> None:
    """More scopes than are counted one by one: which are is the load's order, whoever simulates them."""
    same = {"output_length": 2, "hash_ids": [1]}
    lines = [{"timestamp": 100 * i, "input_length": 600 + i % 7, "scope": f"of {i % 90}", **same} for i in range(400)]
    trace = tmp_path / "scopes.jsonl"
    trace.write_text("\n".join([*map(json.dumps, lines), "not a line"]))
    planned = scenario("llama-3.1-8b", overrides={"workload": ARRIVING})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(measures, "MOST_SCOPES", 40)
        patched.setattr(simulation, "each_done", lambda work, parts, _: map(work, parts))
        load = load_of(planned, Asked(trace=trace, skip_bad=True))
        here, apart = (simulate(planned, load, Fleet(replicas=3), jobs=jobs).simulation for jobs in (1, 2))
    assert here is not None
    assert apart == here
    assert here.hits[0].scope == measures.OTHER_SCOPES
    assert "bad lines, left out: 1 (401)" in here.load_facts


def test_bad_lines_are_told_of_where_others_read_them(tmp_path: Path) -> None:
    trace = tmp_path / "bad.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 60, "output_length": 2}\n' * 4 + "not a line\n")
    planned = scenario("llama-3.1-8b", overrides={"workload": ARRIVING})
    found = simulate(planned, load_of(planned, Asked(trace=trace, skip_bad=True)), Fleet(replicas=2), jobs=2).simulation
    assert found is not None
    assert "bad lines, left out: 1 (5)" in found.load_facts
