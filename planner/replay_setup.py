"""A recorded run of vLLM -> the replica, pool and scheduler that replay it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from planner.architectures import resolve
from planner.catalog import load_accelerator, load_model, load_scenario, names
from planner.datasheet_times import datasheet_times
from planner.deployment import Deployment, deploy
from planner.errors import InputError, PlannerError, nearest
from planner.inputs import Model
from planner.origin import Origin
from planner.printable import shown
from planner.rank import governing_rank
from planner.replay_meta import Meta
from planner.replay_rows import Recorded, Served
from planner.replica import replica_of, times_of
from planner.row_models import gpu_name, has_experts, row_model
from planner.serving import Replica
from planner.simulate.replay import Machine, Replayed, replay
from planner.simulate.replay_fit import Factors
from planner.simulate.requests import Request
from planner.simulate.setting import memory_of, rules_of
from planner.simulate.steps import StepTimes
from planner.units import GIB, ceil_div
from planner.validate import PRICE, check_configs
from planner.validate_logs import nearest_engine

MOST_CHUNKS = 50_000
"""Chunks of a run's prompts: a replay takes time for each."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run ready to be replayed."""

    served: tuple[Served, ...]
    requests: tuple[Request, ...]
    machine: Machine
    replica: Replica
    peak: Replica
    """The same with every kernel at the datasheet's peaks."""
    facts: tuple[str, ...]
    """What the replay runs, in words."""

    @property
    def chunks(self) -> int:
        """Chunks that its prompts are computed in, at least."""
        return _chunks(self.served, self.machine)

    def run(self, factors: Factors) -> Replayed:
        """Once, with factors on the calibration's times."""
        return replay(self.requests, self.machine, StepTimes(self.replica, factors.seconds))

    def run_at_peaks(self) -> Replayed:
        """Once, as the datasheet alone would have it."""
        return replay(self.requests, self.machine, StepTimes(self.peak))


def prepare(
    run: Recorded, meta: Meta, file: str, *, model: str | None, gpu: str | None, configs: Path | None
) -> Prepared:
    """The replay of a run.

    file: the record's, for messages
    model: shipped name or path; None: the one that the record names
    gpu: shipped name or path; None: the device that the record names
    configs: a folder of checkpoint folders named ORG__NAME; None: shipped models only
    raises: InputError where planner cannot replay it, each problem with the record's name
    """
    if configs is not None:
        check_configs(configs)
    chosen = None if model is None else load_model(model)
    if gpu is not None:
        load_accelerator(gpu)  # so that a wrong name is not taken for a fault of the record
    try:
        chosen = chosen or row_model(meta.model, meta.quantization or "", "vllm", configs)
        deployment = _deployment(meta, chosen, gpu or _gpu(meta, file))
        machine, replica = _machine(deployment, meta)
    except PlannerError as error:
        raise InputError(*(f"{file}: {problem}" for problem in error.problems)) from None
    _check_lengths(run, machine, file)
    requests = tuple(Request(each.arrival_s, each.input_tokens, each.output_tokens) for each in run.requests)
    peak = replace(replica, times=datasheet_times(deployment.scenario.accelerator))
    facts = tuple(_facts(run, meta, deployment, machine, replica))
    return Prepared(run.requests, requests, machine, replica, peak, facts)


def _gpu(meta: Meta, file: str) -> str:
    """The shipped name of the accelerator that the record names; its file's own name is a hint and no more."""
    device = meta.hardware.device_name
    if device is None:
        boards = _boards_in(Path(file).name)
        hint = f"; the file's name speaks of {' or '.join(boards)}" if boards else ""
        raise InputError(f"hardware.device_name: missing, and needed: say with --gpu which accelerator ran it{hint}")
    name, known = gpu_name(device), names("accelerator")
    if name not in known:
        unknown = f"hardware.device_name: {shown(device)} is no accelerator that ships"
        raise InputError(f"{unknown}; give --gpu{nearest(name, known)}")
    return name


def _boards_in(text: str) -> list[str]:
    """Shipped accelerators whose name up to its number a text holds: those of the longest such name."""
    letters = re.sub(r"[^a-z0-9]", "", text.lower())
    boards = {name: re.findall(r"^(?:\D+-)*[a-z]*\d+[a-z]*", name)[0].replace("-", "") for name in names("accelerator")}
    found = {name: len(board) for name, board in boards.items() if board in letters}
    return [name for name, length in found.items() if length == max(found.values())]


def _deployment(meta: Meta, model: Model, gpu: str) -> Deployment:
    """What the record says, and the defaults of its version for the rest."""
    stack = resolve(model.config, model.origin)
    kwargs = meta.engine_kwargs
    positions = stack.max_positions
    fields: dict[str, object] = {"name": model.name, "config": model.config, "source": model.source}
    if model.hf_quant_config:
        fields["hf_quant_config"] = model.hf_quant_config
    workload = {
        "name": "replay",
        "context_tokens": min(meta.max_model_len or positions, positions),
        "concurrency": 1,
        "source": "a recorded run",
    }
    overrides: dict[str, object] = {
        "accelerator": gpu,
        "engine": nearest_engine(f"vllm-{meta.vllm_version}"),
        "workload": workload,
        "price": PRICE,
        "parallelism.tp": meta.tp,
        "parallelism.dp": meta.dp,
        "parallelism.ep": meta.tp * meta.dp if meta.expert_parallel and has_experts(model) else 1,
        "kv_cache.dtype": kwargs.kv_cache_dtype,
        "engine_options.dtype": kwargs.dtype,
        "engine_options.prefix_caching": meta.prefix_caching,
        **{name: value for name, value in _optional(meta).items() if value is not None},
    }
    return deploy(load_scenario({"model": fields}, Origin("the recorded run"), overrides))


def _optional(meta: Meta) -> dict[str, object]:
    """Overrides of what a record may leave to the engine's defaults."""
    device = meta.hardware.device_total_memory_bytes
    return {
        "engine_options.max_num_seqs": meta.max_num_seqs,
        "engine_options.max_num_batched_tokens": meta.max_num_batched_tokens,
        "engine_options.gpu_memory_utilization": meta.gpu_memory_utilization,
        "kv_cache.block_tokens": meta.engine_kwargs.block_size,
        "memory.device_gib": None if device is None else Decimal(device) / GIB,
    }


def _machine(deployment: Deployment, meta: Meta) -> tuple[Machine, Replica]:
    """Pool and rules as recorded, else as planner computes them for the version."""
    version = meta.vllm_version
    replica = replica_of(deployment, times_of(deployment), version)
    rules = rules_of(deployment, replica, version=version)
    if meta.async_scheduling is not None:
        rules = replace(rules, sees_late=meta.async_scheduling)
        replica = replace(replica, steps_in_flight=2 if meta.async_scheduling else 1)
    reserves = meta.resolved_config.scheduler_config.scheduler_reserve_full_isl
    if reserves is not None:
        rules = replace(rules, reserves_prompt=reserves)
    memory = memory_of(governing_rank(deployment).pool)
    if meta.num_gpu_blocks is not None:
        memory = replace(memory, units=meta.num_gpu_blocks - deployment.scenario.engine.null_blocks)
    if memory.units < 1:
        what = "leaves no memory for a cache on this device"
        if meta.num_gpu_blocks is not None:
            what = f"has no cache with num_gpu_blocks {meta.num_gpu_blocks}, the null block included"
        raise InputError(f"{deployment.scenario.model.name} {what}")
    return Machine(memory, rules, deployment.ranks.dp, replica.shares_experts), replica


def _check_lengths(run: Recorded, machine: Machine, file: str) -> None:
    """Refuse requests that the engine would have refused."""
    chunks = _chunks(run.requests, machine)
    if chunks > MOST_CHUNKS:
        raise InputError(
            f"{file}: with max_num_batched_tokens {machine.rules.max_tokens:,} the run's prompts take {chunks:,} "
            f"steps; planner replays at most {MOST_CHUNKS:,}"
        )
    longest = machine.memory.longest_of(machine.rules)
    over = [each for each in run.requests if each.tokens > longest]
    if over:
        raise InputError(
            f"{file}: line {over[0].line} of the run has {over[0].tokens:,} tokens, input and output together, and its "
            f"engine takes at most {longest:,}, by max_model_len and its pool; {len(over):,} requests are longer"
        )


def _chunks(served: Sequence[Served], machine: Machine) -> int:
    return sum(ceil_div(each.input_tokens, machine.rules.max_tokens) for each in served)


def _facts(run: Recorded, meta: Meta, deployment: Deployment, machine: Machine, replica: Replica) -> list[str]:
    gpu, found = deployment.scenario.accelerator.name, replica.times.first
    ranks, rules = deployment.ranks, machine.rules
    stands_in = "" if found.gpu == gpu else f", another GPU's: {found.gpu}, on this one's datasheet peaks"
    blocks = "as recorded" if meta.num_gpu_blocks is not None else "computed"
    ahead = "asynchronous" if rules.sees_late else "synchronous"
    return [
        f"{len(run.requests):,} requests of {deployment.scenario.model.name} on {gpu}, vLLM {meta.vllm_version}, "
        f"TP {ranks.tp}, DP {ranks.dp}, EP {ranks.ep}",
        f"max_num_seqs {rules.max_seqs:,}, max_num_batched_tokens {rules.max_tokens:,}, "
        f"{machine.memory.units:,} blocks ({blocks}), {ahead} scheduling",
        f"calibration {found.name}{stands_in}",
        "times from arrival, its clock set by the quickest request to reach the engine's queue; the others took "
        f"{1e3 * run.queue_delay_s:.1f} ms longer on average, which TTFT and E2E include",
    ]
