"""Two real runs of vLLM replayed: errors, what a fit recovers, and what the command does with any file."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import astuple, replace
from math import log
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from planner import validate_replay
from planner.calibrate.shipped import calibrations_for
from planner.catalog import load_accelerator
from planner.cli import app
from planner.errors import InputError
from planner.kernel_times import Terms
from planner.replay_meta import read_meta
from planner.replay_rows import Served, read_run
from planner.replay_series import compare_series, read_series
from planner.replay_setup import Prepared, prepare
from planner.simulate.measures import Point
from planner.simulate.replay_fit import ACROSS, ALONE, Bounds, Factors, fit
from planner.validate_replay import BAR_PERCENT, figures, score_replay
from tests.scenarios import ORACLES

TRACES = ORACLES / "traces"
RTX_4090, RTX_PRO = "vllm_truth_RTX4090_Llama-3.1-8B", "vllm_truth_RTXPRO6000_Llama-3.1-8B"
GPUS = {RTX_4090: None, RTX_PRO: "rtx-pro-6000-server"}
RUNNER = CliRunner()
ROW = {
    "request_id": "a",
    "input_toks": 300,
    "output_toks": 11,
    "arrival_time": 1_700_000_000.5,
    "queued_ts": 100.0,
    "scheduled_ts": 100.25,
    "first_token_ts": 101.0,
    "last_token_ts": 102.0,
}
META: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "vllm_version": "0.19.0",
    "engine_kwargs": {"max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_model_len": 8192},
}


def prepared(name: str, **changes: object) -> Prepared:
    text = (TRACES / f"{name}.jsonl").read_text("utf-8")
    meta = read_meta(TRACES / f"{name}.meta.json")
    if changes:
        model = changes.pop("model", meta.model)
        kwargs = meta.engine_kwargs.model_copy(update=changes)
        meta = meta.model_copy(update={"model": model, "engine_kwargs": kwargs})
    return prepare(read_run(text, name), meta, name, model=None, gpu=GPUS[name], configs=None)


def lines(*rows: dict[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def meta_file(folder: Path, change: Callable[[dict[str, Any]], object] = lambda _: None) -> Path:
    meta = deepcopy(META)
    change(meta)
    path = folder / "meta.json"
    path.write_text(json.dumps(meta, indent=1), "utf-8")
    return path


def error_of(run: Prepared, factors: Factors) -> float:
    found = figures(run.served, run.run(factors).times)
    return sum(abs(each.error_percent) for each in found) / len(found)


def residuals_of(run: Prepared, factors: Factors) -> list[float]:
    return [log(each.simulated_s / each.measured_s) for each in figures(run.served, run.run(factors).times)]


@pytest.mark.parametrize("name", GPUS)
def test_the_calibration_alone_keeps_the_bar_on_both_runs(name: str) -> None:
    run = prepared(name)
    found = figures(run.served, run.run(Factors()).times)
    assert [(each.metric, each.of) for each in found] == [
        (metric, of) for metric in ("TTFT", "TPOT", "E2E") for of in ("mean", "p50", "p90", "p99")
    ]
    assert error_of(run, Factors()) < 3
    assert max(abs(each.error_percent) for each in found) < 12


@pytest.mark.parametrize("name", GPUS)
def test_the_datasheet_alone_is_far_off_and_always_too_fast(name: str) -> None:
    run = prepared(name)
    found = figures(run.served, run.run_at_peaks().times)
    assert all(each.error_percent < 0 for each in found)
    assert sum(abs(each.error_percent) for each in found) / len(found) > 10


def test_preemptions_happen_where_the_recorded_pool_is_small() -> None:
    small, large = (prepared(name).run(Factors()) for name in (RTX_4090, RTX_PRO))
    assert small.preemptions > 100
    assert large.preemptions == 0


def test_fitting_is_never_worse_in_sample_and_is_scored_on_requests_that_it_did_not_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validate_replay, "MOST_REPLAYED", 0)
    run = prepared(RTX_PRO)
    run = replace(run, served=run.served[:80], requests=run.requests[:80])
    score = score_replay(run)
    assert score.fitted.error_percent <= score.calibrated.error_percent
    assert (score.fitted.requests, score.held_out.requests, score.unseen.requests) == (80, 40, 40)
    assert score.unseen.factors == Factors()
    assert score.within == (score.fitted.error_percent <= BAR_PERCENT)
    assert score_replay(run) == score


def test_a_fit_recovers_planted_factors() -> None:
    run = prepared(RTX_PRO)
    planted = Factors(memory=0.8, compute=0.9, overhead=1.2)
    times = run.run(planted).times
    served = tuple(replace(s, first_s=first, last_s=last) for s, (first, last) in zip(run.served, times, strict=True))
    run = replace(run, served=served)
    assert error_of(run, planted) == 0
    assert error_of(run, Factors()) > 8
    found = fit(lambda factors: residuals_of(run, factors), most=200)
    assert error_of(run, found) < 0.5
    assert found.memory == pytest.approx(planted.memory, rel=0.05)
    assert found.compute == pytest.approx(planted.compute, rel=0.05)


@given(st.lists(st.floats(0.1, 20), min_size=3, max_size=3), st.sampled_from([ALONE, ACROSS]))
def test_a_fit_stays_within_its_bounds_and_finds_the_bottom_of_a_bowl(bottom: list[float], bounds: Bounds) -> None:
    def bowl(factors: Factors) -> list[float]:
        return [log(factor / at) for factor, at in zip(astuple(factors), bottom, strict=True)]

    found = fit(bowl, 1000, bounds=bounds)
    for factor, at, (least, most) in zip(astuple(found), bottom, bounds, strict=True):
        assert least <= factor <= most
        assert factor == pytest.approx(min(most, max(least, at)), rel=0.02)


@pytest.mark.parametrize("most", [1, 4, 7, 40])
def test_a_fit_takes_no_more_replays_than_it_may(most: int) -> None:
    calls: list[Factors] = []

    def counted(factors: Factors) -> list[float]:
        calls.append(factors)
        return [log(factors.memory / 1.9), log(factors.compute / 0.6), log(factors.overhead * factors.compute)]

    fit(counted, most)
    assert len(calls) <= max(1, most)
    assert len(set(calls)) == len(calls)


def test_what_a_factor_does_not_change_stays_as_it_is() -> None:
    found = fit(lambda factors: [log(factors.memory / 1.5)], most=200)
    assert found.memory == pytest.approx(1.5, rel=0.02)
    assert (found.compute, found.overhead) == (1.0, 1.0)


def test_factors_weigh_each_term_once() -> None:
    terms = Terms(weights=1, kv=2, compute=4, activations=8, communication=16, launch=32)
    assert Factors().seconds(terms) == terms.seconds
    assert Factors(memory=2).seconds(terms) - terms.seconds == 1 + 2 + 8
    assert Factors(compute=2).seconds(terms) - terms.seconds == 4
    assert Factors(overhead=2).seconds(terms) - terms.seconds == 16 + 32


def test_figures_are_those_of_the_definitions() -> None:
    served = [Served(1, 0.0, 10, 11, 1.0, 3.0), Served(2, 1.0, 10, 1, 3.0, 3.0)]
    found = {(each.metric, each.of): each for each in figures(served, [(2.0, 3.0), (3.0, 3.0)])}
    assert found["TTFT", "mean"].measured_s == 1.5
    assert found["TTFT", "p90"].measured_s == pytest.approx(1.9)
    assert found["TPOT", "p99"].measured_s == pytest.approx(0.2)  # one output token has no TPOT
    assert found["TPOT", "mean"].simulated_s == pytest.approx(0.1)
    assert found["TPOT", "mean"].error_percent == pytest.approx(-50)
    assert found["E2E", "mean"].measured_s == 2.5
    assert {metric for metric, _ in ((e.metric, e.of) for e in figures(served[1:], [(3.0, 3.0)]))} == {"TTFT", "E2E"}


def test_arrivals_are_set_by_the_quickest_request_to_be_queued() -> None:
    later = ROW | {
        "arrival_time": 1_700_000_001.5,
        "queued_ts": 101.25,
        "scheduled_ts": 101.25,
        "first_token_ts": 102.0,
    }
    run = read_run(lines(later | {"last_token_ts": 103.0}, ROW), "run")
    assert [each.line for each in run.requests] == [2, 1]
    assert [each.arrival_s for each in run.requests] == [0.0, 1.0]
    assert [each.first_s for each in run.requests] == [1.0, 2.0]
    assert run.queue_delay_s == pytest.approx(0.125)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "Qwen/Qwen3-30B-A3B"},
        {"model": "Qwen/Qwen3-30B-A3B-FP8", "tensor_parallel_size": 2},
        {"model": "Qwen/Qwen3-30B-A3B", "data_parallel_size": 2, "enable_expert_parallel": True},
        {"model": "Qwen/Qwen3-32B", "tensor_parallel_size": 2},
        {"model": "Qwen/Qwen3-32B", "tensor_parallel_size": 2, "kv_cache_dtype": "fp8"},
        {"model": "google/gemma-3-4b-it"},
    ],
    ids=str,
)
def test_other_models_and_parallelism_replay(changes: dict[str, object]) -> None:
    run = prepared(RTX_PRO, **changes)
    times = run.run(Factors()).times
    assert len(times) == 300
    assert all(s.arrival_s < first < last for s, (first, last) in zip(run.served, times, strict=True))


def test_what_a_record_resolved_goes_before_what_was_asked_for_and_before_defaults(tmp_path: Path) -> None:
    def change(meta: dict[str, Any]) -> None:
        meta["hardware"] = {"device_name": "NVIDIA GeForce RTX 4090"}
        meta["kv_cache"] = {"num_gpu_blocks": 2000, "enable_prefix_caching": False}
        scheduler = {"async_scheduling": False, "scheduler_reserve_full_isl": False, "max_num_seqs": 64}
        meta["resolved_config"] = {"scheduler_config": scheduler}

    meta = read_meta(meta_file(tmp_path, change))
    run = prepare(read_run(lines(ROW), "run"), meta, "meta", model=None, gpu=None, configs=None)
    rules = run.machine.rules
    assert run.machine.memory.units == 1999  # less the null block
    assert (rules.max_seqs, rules.max_tokens, rules.context_tokens) == (64, 2048, 8192)
    assert (rules.sees_late, rules.reserves_prompt, rules.prefix_caching) == (False, False, False)
    assert run.replica.steps_in_flight == 1
    plain = prepare(
        read_run(lines(ROW), "run"), read_meta(meta_file(tmp_path)), "meta", model=None, gpu="rtx-4090", configs=None
    )
    assert (plain.machine.rules.sees_late, plain.machine.rules.reserves_prompt) == (True, True)
    assert plain.replica.steps_in_flight == 2


def test_ranks_are_read_from_what_the_record_resolved_too(tmp_path: Path) -> None:
    def change(meta: dict[str, Any]) -> None:
        parallel = {"tensor_parallel_size": 1, "data_parallel_size": 2, "enable_expert_parallel": True}
        meta["resolved_config"] = {"parallel_config": parallel}
        meta["model"] = meta["engine_kwargs"]["model"] = "Qwen/Qwen3-30B-A3B"

    meta = read_meta(meta_file(tmp_path, change))
    run = prepare(read_run(lines(ROW), "run"), meta, "meta", model=None, gpu="h100-sxm", configs=None)
    assert (run.machine.ranks, run.machine.together, run.replica.work.ranks.ep) == (2, True, 2)


def test_the_rtx_4090_borrows_from_the_board_most_like_it() -> None:
    assert next(calibrations_for(load_accelerator("rtx-4090"), "vllm")).gpu == "rtx-pro-6000-server"
    assert next(calibrations_for(load_accelerator("l4"), "vllm")).gpu == "a100-sxm-80gb"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"input_toks": None}, "input_toks: missing, and needed"),
        ({"output_toks": 0}, "output_toks: 0 is not a whole number from 1"),
        ({"input_toks": 10**400}, "input_toks: an integer of a hundred digits or more is not a whole number"),
        ({"input_toks": True}, "input_toks: True is not a whole number"),
        ({"input_toks": 1.5}, "input_toks: 1.5 is not a whole number"),
        ({"queued_ts": "5"}, "queued_ts: '5' is not a number of seconds"),
        ({"queued_ts": -1}, "queued_ts: -1 is not a number of seconds"),
        ({"arrival_time": 1e300}, "arrival_time: 1e+300 is not a number of seconds"),
        ({"first_token_ts": 99.0}, "first_token_ts: 99.0 is before scheduled_ts, 100.25"),
        ({"last_token_ts": 100.5}, "last_token_ts: 100.5 is before first_token_ts, 101.0"),
        ({"last_token_ts": 101.0}, "last_token_ts: no time passed"),
    ],
)
def test_a_bad_row_is_refused_by_line_and_field(change: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read_run(lines(ROW, ROW | change), "run.jsonl")
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(f"run.jsonl:2: {problem}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "run.jsonl: is empty; a line for each request is needed, with input_toks, output_toks"),
        ("\n \n", "run.jsonl: is empty"),
        ("a,b,c\n1,2,3\n", "run.jsonl:1: is not JSON"),
        ('{"timestamp": 0, "input_length": 1}\n', "run.jsonl:1: input_toks, output_toks, arrival_time, queued_ts"),
        ("[1, 2]\n", "run.jsonl:1: '[1, 2]' is not one JSON object"),
        (lines(ROW).replace("100.0", "NaN"), "run.jsonl:1: holds NaN, which is not a number"),
        (lines(ROW).replace("100.0", "Infinity"), "run.jsonl:1: holds Infinity, which is not a number"),
        (lines(ROW).replace("100.0", "1e999"), "run.jsonl:1: queued_ts: inf is not a number of seconds"),
        ("[" * 100_000 + "\n", "run.jsonl:1: "),
    ],
)
def test_a_file_that_holds_no_run_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read_run(text, "run.jsonl")
    assert caught.value.problems[0].startswith(problem)


def test_a_run_of_one_request_has_no_half_to_hold_out(tmp_path: Path) -> None:
    run = tmp_path / "run.jsonl"
    run.write_text((TRACES / f"{RTX_4090}.jsonl").read_text("utf-8").partition("\n")[0])
    result = RUNNER.invoke(app, ["validate", "replay", str(run), "--meta", str(TRACES / f"{RTX_4090}.meta.json")])
    assert result.exit_code == 2
    assert "the run holds one request; two are needed" in result.stderr


def test_problems_are_bounded_and_so_is_a_run() -> None:
    with pytest.raises(InputError) as caught:
        read_run("x\n" * 1000, "run")
    assert len(caught.value.problems) == 20
    with pytest.raises(InputError, match="run:10001: more than 10,000 requests"):
        read_run(lines(ROW) * 10_001, "run")


@given(
    st.dictionaries(st.sampled_from(list(ROW)), st.one_of(st.none(), st.integers(), st.floats(), st.text()), min_size=1)
)
def test_any_row_is_read_or_refused(change: dict[str, object]) -> None:
    try:
        run = read_run(lines(ROW | change), "run")
    except InputError:
        return
    assert run.requests[0].first_s > run.requests[0].arrival_s == 0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: m.pop("model"), "meta.json:1: model: missing"),
        (lambda m: m.pop("engine_kwargs"), "meta.json:1: engine_kwargs: missing"),
        (lambda m: m.update(vllm_version="0.6.3"), "meta.json:3: vllm_version: '0.6.3' has another scheduler"),
        (
            lambda m: m.update(vllm_version="nightly"),
            "meta.json:3: vllm_version: a version such as 0.19.0 is needed, not 'nightly'",
        ),
        (lambda m: m.update(vllm_version="9" * 5000), "meta.json:3: vllm_version: "),
        (lambda m: m["engine_kwargs"].update(speculative_config={"model": "x"}), "engine_kwargs.speculative_config: "),
        (lambda m: m["engine_kwargs"].update(warp_speed=9), "engine_kwargs.warp_speed: "),
        (lambda m: m["engine_kwargs"].update(pipeline_parallel_size=2), "engine_kwargs.pipeline_parallel_size: "),
        (lambda m: m["engine_kwargs"].update(enforce_eager=True), "engine_kwargs.enforce_eager: "),
        (lambda m: m["engine_kwargs"].update(max_num_seqs=0), "engine_kwargs.max_num_seqs: "),
        (lambda m: m["engine_kwargs"].update(max_num_seqs=10**30), "engine_kwargs.max_num_seqs: "),
        (lambda m: m.update(kv_cache={"num_gpu_blocks": "many"}), "kv_cache.num_gpu_blocks: "),
        (
            lambda m: m.update(resolved_config={"scheduler_config": {"policy": "priority"}}),
            "resolved_config.scheduler_config.policy: ",
        ),
        (
            lambda m: m.update(resolved_config={"parallel_config": {"pipeline_parallel_size": 2}}),
            "resolved_config.parallel_config.pipeline_parallel_size: ",
        ),
        (
            lambda m: m["engine_kwargs"].update(enable_expert_parallel="yes"),
            "engine_kwargs.enable_expert_parallel: ",
        ),
    ],
)
def test_a_bad_record_is_refused_by_field(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_meta(meta_file(tmp_path, change))
    assert problem in caught.value.problems[0]
    assert str(tmp_path / "meta.json") in caught.value.problems[0]


def test_a_record_that_names_no_gpu_is_refused_with_those_that_its_files_name_speaks_of(tmp_path: Path) -> None:
    run, meta = read_run(lines(ROW), "run"), read_meta(meta_file(tmp_path))
    for file, hint in (
        ("vllm_truth_RTXPRO6000.json", "; the file's name speaks of rtx-pro-6000-server or rtx-pro-6000-workstation"),
        ("runs/L40S/h200.json", "; the file's name speaks of h200-sxm"),
        ("meta.json", "which accelerator ran it"),
    ):
        with pytest.raises(InputError) as caught:
            prepare(run, meta, file, model=None, gpu=None, configs=None)
        assert caught.value.problems[0].endswith(hint)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (dict.copy, "meta: hardware.device_name: missing, and needed: say with --gpu"),
        (
            lambda m: m.update(hardware={"device_name": "NVIDIA RTX 4080"}),
            "meta: hardware.device_name: 'NVIDIA RTX 4080' is no accelerator that ships; give --gpu; nearest known: ",
        ),
        (lambda m: m.update(model="acme/secret-13b"), "meta: no config is known for 'acme/secret-13b'"),
        (lambda m: m["engine_kwargs"].update(tensor_parallel_size=3), "meta: parallelism: "),
        (lambda m: m["engine_kwargs"].update(kv_cache_dtype="fp7"), "meta: kv_cache.dtype: "),
        (lambda m: m.update(kv_cache={"num_gpu_blocks": 1}), "meta: llama-3.1-8b has no cache with num_gpu_blocks 1"),
        (lambda m: m.update(kv_cache={"num_gpu_blocks": 5}), "meta: line 1 of the run has 311 tokens"),
        (lambda m: m["engine_kwargs"].update(max_model_len=310), "meta: line 1 of the run has 311 tokens"),
        (
            lambda m: m["engine_kwargs"].update(max_num_batched_tokens=1, max_num_seqs=1),
            "meta: with max_num_batched_tokens 1 the run's prompts take 60,000 steps",
        ),
    ],
)
def test_a_run_that_cannot_be_replayed_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    def with_device(meta: dict[str, Any]) -> None:
        if "device_name: missing" not in problem:
            meta["hardware"] = {"device_name": "NVIDIA GeForce RTX 4090"}
        change(meta)

    run = read_run(lines(ROW) * (200 if "steps" in problem else 1), "run")
    with pytest.raises(InputError) as caught:
        prepare(run, read_meta(meta_file(tmp_path, with_device)), "meta", model=None, gpu=None, configs=None)
    assert caught.value.problems[0].startswith(problem)


def test_a_run_over_time_is_compared_by_mean_and_most() -> None:
    measured = read_series("t,running,waiting,kv_cache_pct\n1,2,0,0\n2,4,1,0\n", "series")
    points = [Point(0.0, 1, 0, 0.5, 1, 0), Point(1.0, 3, 0, 0.5, 1, 0)]
    running, waiting = compare_series(measured, points)  # the cache was not logged
    assert (running.measured_mean, running.simulated_mean, running.measured_most, running.simulated_most) == (
        3,
        2,
        4,
        3,
    )
    assert (waiting.measured_mean, waiting.simulated_most) == (0.5, 0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "series:1: columns missing: running, waiting, kv_cache_pct"),
        ("t,running,waiting,kv_cache_pct\n", "series: holds no rows"),
        ("running,waiting,kv_cache_pct\n1,nan,2\n", "series:2: waiting: 'nan' is not a number"),
        ("running,waiting,kv_cache_pct\n1\n", "series:2: waiting: '' is not a number"),
        ("running,waiting,kv_cache_pct\n1,2,1e999\n", "series:2: kv_cache_pct: '1e999' is not a number"),
    ],
)
def test_a_bad_series_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read_series(text, "series")
    assert caught.value.problems[0].startswith(problem)


def test_the_command_prints_both_columns_and_says_what_is_in_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate_replay, "MOST_REPLAYED", 0)
    files = [str(TRACES / f"{RTX_PRO}.jsonl"), "--meta", str(TRACES / f"{RTX_PRO}.meta.json")]
    series = ["--timeseries", str(TRACES / f"{RTX_PRO}.timeseries.csv")]
    result = RUNNER.invoke(app, ["validate", "replay", *files, *series, "--gpu", "rtx-pro-6000-server"])
    assert result.exit_code == 0, result.output
    for part in (
        "calibration: nothing is fitted on this run",
        "fitted, in-sample",
        "held out: ",
        "within the bar of 5 %",
    ):
        assert part in result.stdout
    assert "running: mean 94.9 measured" in result.stdout
    result = RUNNER.invoke(app, ["validate", "replay", *files, "--gpu", "h100-sxm", "--format", "json"])
    fields = json.loads(result.stdout)
    assert (result.exit_code, fields["within"]) == (3, False)  # another GPU than ran it: no factor from 0.5 to 2 helps
    assert fields["fitted"]["mean_absolute_error_percent"] > BAR_PERCENT
    assert len(fields["calibration"]["figures"]) == 12


def test_the_command_refuses_with_exit_code_2(tmp_path: Path) -> None:
    run = str(TRACES / f"{RTX_PRO}.jsonl")
    meta = str(meta_file(tmp_path))
    for arguments, message in (
        ([run, "--meta", meta], "hardware.device_name: missing"),
        ([run, "--meta", meta, "--gpu", "h1000"], "h1000"),
        ([run, "--meta", meta, "--gpu", "l4", "--model", "llama-9"], "llama-9"),
        ([run, "--meta", run, "--gpu", "l4"], "is not JSON"),
        ([str(tmp_path), "--meta", meta], "is a directory"),
        ([run, "--meta", meta, "--gpu", "l4", "--format", "yaml"], "--format"),
        ([run, "--meta", meta, "--gpu", "l4", "--configs", str(tmp_path / "none")], "none: no such folder"),
    ):
        result = RUNNER.invoke(app, ["validate", "replay", *arguments])
        assert result.exit_code == 2, result.output
        assert message in result.stderr
