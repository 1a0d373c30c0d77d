"""A search: every choice planned or rejected with its reason, cheapest first, the same however many workers plan."""

import itertools
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cache
from typing import Any

import pytest

from planner import space as space_module
from planner.errors import InputError
from planner.plan import estimate
from planner.report import Range
from planner.search import ranked, search
from planner.search_inputs import load_search
from planner.search_report import Candidate, SearchResult
from tests.scenarios import EXAMPLES, example, vendor_model

BASE = {"model": "llama-3.1-8b", "workload": "chat"}
GPUS = ("h100-sxm", "l40s", "l4", "mi300x")
WIDE: dict[str, Any] = {
    "accelerators": GPUS,
    "kv_dtypes": ("auto", "bfloat16", "fp8"),
    "tp": (1, 2, 3),
    "max_num_seqs": (128, 1024),
}


def found(overrides: Mapping[str, Any] | None = None, jobs: int | None = 1, **choices: Any) -> SearchResult:
    """A search of a space for the chat workload, but for what `overrides` says."""
    return search(*load_search(None, {**BASE, **(overrides or {})}, choices), jobs=jobs)


@cache
def wide() -> SearchResult:
    return found(**WIDE)


def times(candidate: Candidate) -> tuple[float, float, float] | None:
    """Monthly cost, TPOT and p95 TTFT, where they are known."""
    if candidate.tpot_s is None or candidate.ttft_p95_s is None:
        return None
    return float(candidate.monthly_usd), candidate.tpot_s.best, candidate.ttft_p95_s.best


# Laws


def test_candidates_are_ranked_by_cost_then_devices() -> None:
    keys = [(each.monthly_usd, each.devices) for each in wide().candidates]
    assert len(keys) > 10
    assert keys == sorted(keys)


def test_the_front_holds_exactly_what_nothing_dominates() -> None:
    known = [(each, at) for each in wide().candidates if (at := times(each))]
    for candidate, at in known:
        dominated = any(other != at and all(a <= b for a, b in zip(other, at, strict=True)) for _, other in known)
        assert candidate.pareto is not dominated
    assert not any(each.pareto for each in wide().candidates if times(each) is None)


def made(usd: int, tpot: float, ttft: float) -> Candidate:
    tpot_s, ttft_s = (Range(low=at, best=at, high=at) for at in (tpot, ttft))
    figures = {"monthly_usd": Decimal(usd), "tpot_s": tpot_s, "ttft_p95_s": ttft_s}
    return wide().candidates[0].model_copy(update=figures)


def test_the_front_of_every_small_grid_holds_exactly_what_nothing_dominates() -> None:
    grid = [made(*point) for point in itertools.product((1, 2, 3), repeat=3)]
    for step in (1, 2, 5, 7):
        points = grid[::step]
        for each in ranked(points):
            better = [p for p in points if times(p) != times(each) and _all_at_most(p, each)]
            assert each.pareto is not bool(better)


def _all_at_most(one: Candidate, other: Candidate) -> bool:
    return all(a <= b for a, b in zip(times(one) or (), times(other) or (), strict=True))


def test_every_choice_is_a_candidate_or_rejected_or_the_same_as_another() -> None:
    result = wide()
    assert result.tried == 4 * 3 * 3 * 2
    assert result.tried == len(result.candidates) + len(result.rejected) + result.merged
    choices = [*(each.choice for each in result.candidates), *(each.choice for each in result.rejected)]
    assert len(set(choices)) == len(choices)


def test_choices_that_come_to_the_same_deployment_are_merged() -> None:
    once, twice = found(accelerators=["l4"]), found(accelerators=["l4"], kv_dtypes=["auto", "bfloat16"])
    assert (once.merged, twice.merged) == (0, once.tried)
    assert twice.candidates == once.candidates


def test_a_price_twice_as_high_costs_twice_as_much_in_the_same_order() -> None:
    one, two = (
        found({"price": {"usd_per_hour": usd}}, accelerators=GPUS, kv_dtypes=["auto", "fp8"]) for usd in ("1.5", "3")
    )
    assert [each.choice for each in two.candidates] == [each.choice for each in one.candidates]
    assert [each.monthly_usd for each in two.candidates] == [2 * each.monthly_usd for each in one.candidates]


def test_another_device_never_makes_the_cheapest_dearer() -> None:
    least = [found(accelerators=GPUS[:count]).candidates[0].monthly_usd for count in range(1, len(GPUS) + 1)]
    assert least == sorted(least, reverse=True)


def test_a_stricter_objective_is_never_cheaper() -> None:
    limits = ("10", "1", "0.4", "0.2", "0.1")
    costs = []
    for limit in limits:
        result = found({"workload.objectives.ttft_p95_s": limit}, accelerators=["h100-sxm", "l40s"])
        assert all((at := times(each)) and at[2] <= float(limit) for each in result.candidates)
        costs.append(result.candidates[0].monthly_usd)
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]


def test_a_candidate_is_what_an_estimate_says() -> None:
    scenario, space = load_search(None, BASE, WIDE)
    for candidate in wide().candidates[:8]:
        choice = candidate.choice
        trial = next(
            each
            for each in space.trials(experts=False)
            if (each.offer.accelerator.name, each.parallelism.tp, each.max_num_seqs)
            == (choice.accelerator, choice.tp, choice.max_num_seqs)
        )
        limits = {"max_num_seqs": choice.max_num_seqs, "max_num_batched_tokens": choice.max_num_batched_tokens}
        report = estimate(
            scenario.model_copy(
                update={
                    "accelerator": trial.offer.accelerator,
                    "parallelism": trial.parallelism,
                    "kv_cache": scenario.kv_cache.model_copy(update={"dtype": choice.kv_dtype}),
                    "engine_options": scenario.engine_options.model_copy(update=limits),
                    "price": trial.offer.price_of(choice.tp),
                }
            )
        )
        assert report.fleet
        assert report.cost
        assert candidate.devices == report.fleet.devices
        assert candidate.monthly_usd == report.cost.monthly_usd
        assert candidate.ttft_p95_s == (report.latency.ttft_p95_s if report.latency else None)
        assert candidate.price == report.scenario.price


# Workers


def test_two_processes_find_what_one_finds() -> None:
    assert found(jobs=2, **WIDE) == wide()


@pytest.mark.parametrize("backend", ["threading", "multiprocessing", "sequential"])
def test_joblib_chooses_the_workers_where_nobody_does(backend: str) -> None:
    import joblib

    with joblib.parallel_config(backend=backend, n_jobs=2):
        assert found(jobs=None, **WIDE) == wide()


def test_a_dask_cluster_finds_what_one_process_finds() -> None:
    import joblib

    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        assert found(jobs=None, **WIDE) == wide()


def test_progress_ends_with_every_choice() -> None:
    steps: list[tuple[int, int]] = []
    result = search(*load_search(None, BASE, WIDE), step=lambda done, total: steps.append((done, total)))
    assert steps == sorted(steps)
    assert steps[-1] == (result.tried, result.tried)


# Reasons


def reasons(result: SearchResult) -> dict[str, str]:
    return {each.limit: each.reason for each in reversed(result.rejected)}


def test_every_rejected_choice_says_why_with_its_number() -> None:
    asked = {"model": "qwen3-14b", "workload.objectives.ttft_p95_s": "0.1"}
    choices: dict[str, Any] = {"accelerators": ["h100-sxm", "l4", "tpu-v5e"], "tp": [1, 2, 3]}
    why = reasons(found(asked, **choices))
    assert "tp 3 does not divide the model's 40 attention heads" in why["parallelism"]
    assert why["price"].startswith("accelerator tpu-v5e has no listed price")
    assert "-token prompts cannot meet 100 ms: " in why["ttft_p95"]
    assert "the model does not fit: weights, workspace and reserve take " in why["device_memory"]
    narrow = {"model": "qwen3-14b", "context_tokens": 40960, "engine_options.gpu_memory_utilization": "0.85"}
    why = reasons(found(narrow, accelerators=["a100-sxm-40gb"]))
    assert "not one request of 40,960 tokens fits" in why["kv_memory"]
    assert "the longest context that fits is " in why["kv_memory"]


def test_a_device_that_the_engine_has_no_rules_of_is_rejected_or_left_out() -> None:
    why = reasons(found({"engine": "tensorrt-llm-1.0"}, accelerators=["h100-sxm", "mi300x"]))
    assert why == {"engine": "the rules of tensorrt-llm-1.0 are of nvidia devices, not amd"}
    _, space = load_search(None, BASE | {"engine": "tensorrt-llm-1.0"}, {})
    assert {offer.accelerator.vendor for offer in space.offers} == {"nvidia"}
    _, space = load_search(None, BASE, {})
    assert {offer.accelerator.vendor for offer in space.offers} == {"nvidia", "amd"}
    _, space = load_search(None, BASE | {"engine": "generic"}, {})
    assert "google" in {offer.accelerator.vendor for offer in space.offers}


def test_what_no_choice_can_change_is_an_error() -> None:
    with pytest.raises(InputError, match=r"context_tokens: 200,000 is over the 131,072 positions"):
        found({"context_tokens": 200_000}, accelerators=["h100-sxm", "l4"])
    with pytest.raises(InputError, match=r"engine vllm-0\.33 does not serve mpt: its model code left"):
        found({"model": vendor_model("mosaicml/mpt-7b")}, accelerators=["h100-sxm"])
    assert found(accelerators=["h100-sxm"], tp=[3]).candidates == ()


def test_a_device_whose_speed_is_not_predicted_is_a_candidate_without_times() -> None:
    result = found(accelerators=["mi300x"], tp=[1])
    assert [each.tpot_s for each in result.candidates] == [None]
    asked = found({"workload.objectives.ttft_p95_s": "1"}, accelerators=["mi300x", "h100-sxm"], tp=[1])
    assert "speed cannot be predicted" in reasons(asked)["workload.objectives"]


def test_constants_of_another_device_are_said_to_be() -> None:
    stood_in = {each.choice.accelerator: each.stood_in for each in found(accelerators=["h100-sxm", "a10"]).candidates}
    assert stood_in == {"h100-sxm": False, "a10": True}


# Spaces


def test_models_with_experts_are_tried_with_expert_parallelism() -> None:
    for model, expected in (("qwen3-30b-a3b", {(1, 1), (2, 1), (2, 2)}), ("qwen3-4b", {(1, 1), (2, 1)})):
        result = found({"model": model}, accelerators=["h200-sxm"], tp=[1, 2])
        assert {(each.choice.tp, each.choice.ep) for each in result.candidates} == expected
    given = found({"model": "qwen3-30b-a3b"}, accelerators=["h200-sxm"], tp=[2], ep=[2])
    assert [each.choice.ep for each in given.candidates] == [2]


def test_every_value_is_tried_once() -> None:
    twice: dict[str, Any] = {
        "accelerators": ["l4", "l4"],
        "tp": [1, 1, 2],
        "kv_dtypes": ["auto", "auto"],
        "max_num_seqs": [64, 64],
    }
    assert found(**twice).tried == 2


def test_a_space_beyond_the_limit_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    many: dict[str, Any] = {
        "tp": range(1, 4097),
        "pp": range(1, 4097),
        "dp": range(1, 4097),
        "max_num_seqs": range(1, 1000),
    }
    with pytest.raises(InputError, match=r"4,096 --tp x 4,096 --pp x .* choices, and a search tries at most 100,000"):
        found(accelerators=GPUS, **many)
    monkeypatch.setattr(space_module, "MOST_CHOICES", 3)
    with pytest.raises(InputError, match="4 --tp = 4 choices, and a search tries at most 3"):
        found(accelerators=["l4"])


def test_absurd_degrees_are_rejected_and_not_tried_for_long() -> None:
    result = found({"model": "qwen3-30b-a3b"}, accelerators=["l4"], tp=[4096], dp=[1, 4096], pp=[1, 4096])
    assert {each.limit for each in result.rejected} == {"parallelism"}
    with pytest.raises(InputError, match=r"command line: tp\.0: Input should be less than or equal to 4096, not 5000"):
        found(tp=[5000])


def prices(**keywords: Any) -> Iterator[tuple[str, int, str]]:
    """(accelerator, tp, price) of every candidate."""
    for each in found(**keywords).candidates:
        yield each.choice.accelerator, each.choice.tp, each.price


def test_each_device_has_the_lowest_price_of_an_instance_that_holds_the_replica() -> None:
    by_choice = {(gpu, tp): price for gpu, tp, price in prices(accelerators=["h100-sxm", "l40s"], tp=[1, 8])}
    assert "crusoe" in by_choice["h100-sxm", 1]
    assert "p5.48xlarge" in by_choice["h100-sxm", 8]
    named = found({"price": "aws/p5.48xlarge/reserved_3y"}, accelerators=["h100-sxm", "l40s"], tp=[1])
    assert ["reserved_3y" in each.price for each in named.candidates] == [True]
    assert "price 'aws/p5.48xlarge/reserved_3y' is not listed for l40s" in reasons(named)["price"]


def test_a_scenario_files_price_is_that_of_its_own_device(tmp_path: Any) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("model: llama-3.1-8b\naccelerator: l4\nworkload: chat\nprice: 0.125\nparallelism: {tp: 16}\n")
    scenario, space = load_search(path, {}, {})
    by_name = {offer.accelerator.name: offer for offer in space.offers}
    assert space.offers[0].accelerator.name == "l4"
    assert by_name["l4"].price_of(1).usd_per_hour == Decimal("0.125")
    assert by_name["h100-sxm"].price is None
    assert (space.tp, scenario.context) == ((1, 2, 4, 8, 16), 16384)
    _, space = load_search(path, {"price": {"usd_per_hour": 7}}, {"accelerators": ["h100-sxm", "l4"]})
    assert [offer.price_of(8).usd_per_hour for offer in space.offers] == [7, 7]
    path.write_text("model: llama-3.1-8b\nworkload: chat\nprice: 0.125\n")
    _, space = load_search(path, {}, {"accelerators": ["h100-sxm", "l4"]})
    assert [offer.price_of(8).usd_per_hour for offer in space.offers] == [Decimal("0.125")] * 2


def test_memory_given_for_one_deployment_is_not_taken_for_others() -> None:
    with pytest.raises(InputError, match=r"memory\.device_gib: is one deployment's figure, and several are tried"):
        search(*load_search(EXAMPLES / "16k.yaml", {}, {}))
    alone: dict[str, Any] = {"accelerators": ["a100-sxm-80gb"], "tp": [1], "pp": [1], "dp": [1]}
    (candidate,) = search(*load_search(EXAMPLES / "16k.yaml", {}, alone)).candidates
    report = estimate(example("16k"))
    assert report.cost
    assert candidate.monthly_usd == report.cost.monthly_usd


@pytest.mark.parametrize("field", ["accelerator.memory_mib", "accelerator", "price.usd_per_hour", "engine.null_blocks"])
def test_figures_of_one_device_or_engine_are_not_set_for_all(field: str) -> None:
    with pytest.raises(InputError, match=f"--set {field}: a search takes it from --"):
        load_search(None, BASE | {field: 1}, {"engines": ["vllm-0.33"]})


def test_every_unknown_device_is_named_at_once() -> None:
    with pytest.raises(InputError) as error:
        load_search(None, BASE, {"accelerators": ["h100-sxm", "h1000", "l44"]})
    assert len(error.value.problems) == 2
