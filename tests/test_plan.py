"""What a plan says of replicas, limits, workspace and weights, each figure worked out here."""

from typing import Any

import pytest

from planner.compare import changed
from planner.deployment import deploy
from planner.plan import estimate
from planner.report import Carry, Report
from planner.sharding import stages
from planner.units import GIB
from tests.scenarios import example, report, scenario, vendor_model


def activations(found: Report) -> int:
    return next(line.bytes for line in found.memory.lines if line.name == "activations")


@pytest.mark.parametrize(
    ("devices", "tp", "active", "spare", "idle"),
    [
        (8, 1, 6, 2, 0),  # 6 + ceil(1.2)
        (7, 1, 5, 1, 1),
        (1, 1, 1, 0, 0),  # the only replica is active: the spare is waived
        (13, 2, 5, 1, 1),  # 6 replicas of 2
    ],
)
def test_devices_beyond_whole_replicas_are_idle(devices: int, tp: int, active: int, spare: int, idle: int) -> None:
    carry = estimate(example("16k", {"parallelism.tp": tp}), devices).carry
    assert isinstance(carry, Carry)
    assert (carry.active_replicas, carry.spare_replicas, carry.idle_devices) == (active, spare, idle)


def test_data_parallel_ranks_multiply_what_a_replica_holds() -> None:
    lengths = {"workload.input_tokens": {"mean": 100}, "workload.output_tokens": {"mean": 50}}
    one, two = (report("llama-3.1-8b", overrides={**lengths, "parallelism.dp": dp}).capacity for dp in (1, 2))
    assert two.num_blocks == one.num_blocks  # of each rank
    assert two.requests_per_replica == 2 * one.requests_per_replica
    assert two.requests_per_replica_at_mean == 2 * (one.requests_per_replica_at_mean or 0) > 0
    assert two.max_concurrency == one.max_concurrency  # of each rank, as the engine logs it
    assert (one.max_num_seqs, two.max_num_seqs) == (1024, 1024)
    assert two.slots_per_replica == 2 * one.slots_per_replica


@pytest.mark.parametrize(
    ("layers", "pp", "sizes"), [(5, 4, [1, 1, 2, 1]), (30, 4, [7, 8, 8, 7]), (32, 3, [11, 11, 10]), (7, 1, [7])]
)
def test_layers_left_over_go_to_the_stages_before_the_last(layers: int, pp: int, sizes: list[int]) -> None:
    """vLLM, distributed/utils.py get_pp_indices: the last stage has the head, so it gets none of them."""
    model = vendor_model("meta-llama/Llama-3.1-8B-Instruct", num_hidden_layers=layers)
    assert [len(stage.layers) for stage in stages(deploy(scenario(model)).stack, pp)] == sizes


@pytest.mark.parametrize(
    ("concurrency", "asked", "limit"),
    [
        (12, {}, "one_replica"),
        (13, {}, "kv_memory"),
        (12, {"engine_options.max_num_seqs": 11}, "max_num_seqs"),
        (11, {"engine_options.max_num_seqs": 11}, "one_replica"),
        (13, {"engine_options.max_num_seqs": 12}, "kv_memory"),
    ],
)
def test_the_limit_that_binds(concurrency: int, asked: dict[str, Any], limit: str) -> None:
    """12 requests of 16K fit into the worked example's replica."""
    found = estimate(example("16k", {"workload.concurrency": concurrency, **asked}))
    assert found.binding_limit == limit


def test_a_comparison_says_why_another_limit_binds() -> None:
    old, new = (estimate(example("16k", {"workload.concurrency": n})) for n in (60, 1))
    why = {change.path: change.why for change in changed(old, new)}["binding_limit"]
    assert why == new.binding_reason == "one replica is the smallest fleet: 1 of its 12 slots needed"


@pytest.mark.parametrize(("tp", "warned"), [(4, False), (8, True)])
def test_only_more_ranks_than_kv_heads_are_warned_of(tp: int, warned: bool) -> None:
    warnings = report("qwen3-30b-a3b", overrides={"parallelism.tp": tp}).warnings
    assert any("key/value heads" in warning for warning in warnings) == warned


@pytest.mark.parametrize(
    ("gpu", "batched", "sequences"),
    [
        ("h100-sxm", 8192, 1024),
        ("b200-sxm", 16384, 1024),
        ("a100-sxm-80gb", 2048, 256),
        ("l40s", 2048, 256),
        ("h200-sxm", 8192, 1024),
    ],
)
def test_scheduler_defaults_follow_the_device(gpu: str, batched: int, sequences: int) -> None:
    """vLLM's API server: by memory, and A100 as the small ones (engine/arg_utils.py)."""
    deployment = deploy(scenario("llama-3.1-8b", gpu))
    assert (deployment.max_num_batched_tokens, deployment.max_num_seqs) == (batched, sequences)


def test_expert_parallel_ranks_run_whole_experts() -> None:
    """Mixtral: 14,336 wide experts of a 4,096 wide model, two per token, 8,192 tokens a step, 2 B."""
    sliced, whole = (activations(report("mixtral-8x7b", overrides={"parallelism": ranks})) for ranks in TP8_AND_EP8)
    narrow, wide = 4096 + 4096, 14336 + 2 * 14336  # max(i, h) + max(2 i, h), with i = 14,336 / 8 when sliced
    assert whole - sliced == 8192 * 2 * (wide - narrow) * 2


TP8_AND_EP8 = ({"tp": 8}, {"tp": 8, "ep": 8})


def test_a_checkpoint_of_known_size_corrects_the_weights() -> None:
    model = vendor_model("Qwen/Qwen3-8B")
    published = 2 * report(model).model.parameters
    known = {**model, "weights": {"total_bytes": published + GIB, "source": "test"}}
    computed, corrected = (
        [report(m, overrides={"parallelism.tp": tp}).memory.weights_bytes for tp in (1, 2, 4)] for m in (model, known)
    )
    assert corrected[0] == computed[0] + GIB
    for tp, before, after in zip((1, 2, 4), computed, corrected, strict=True):
        assert GIB / tp <= after - before <= GIB / tp * 1.01  # norms are on every rank
