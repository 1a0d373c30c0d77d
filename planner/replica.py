"""A deployment as its speed sees it: a replica's work per step, its kernels' prices, and how its engine schedules."""

from functools import lru_cache
from itertools import chain

from planner.cache_specs import mixers_of
from planner.calibrate.shipped import STANDS_IN, calibrations_for, shipped_calibration, small_kernels
from planner.deployment import Deployment
from planner.engine_inputs import version_numbers
from planner.errors import InputError
from planner.inputs import Accelerator
from planner.kernel_times import KernelTimes
from planner.latency import Speed, mix_of
from planner.mixers import Attention
from planner.pool import Pool
from planner.rank_work import Arithmetic, ExpertSplit, pipeline_share, rank_work
from planner.serving import Replica

WAITS = ("sglang",)
"""Kinds of engines whose decodes wait while prompts run; the others' prompts share their steps."""
FUSES = ("tensorrt-llm",)
"""Kinds of engines that run norms of queries and keys, rotary embedding and the writing of the cache as one kernel."""
RESERVES = ("tensorrt-llm",)
"""Kinds of engines that reserve a request's whole length when it starts; the others take blocks on demand."""
OVERLAPS = ("tensorrt-llm", "sglang")
"""Kinds of engines that schedule the next step while the device runs one, in every version."""
OVERLAPS_FROM = (0, 14)
"""vLLM's first such version."""
QUANTISES_BEFORE = (1, 0)
"""TensorRT-LLM's first version whose other kernels do."""


def replica_of(
    deployment: Deployment, times: KernelTimes, version: str | None = None, split: ExpertSplit | None = None
) -> Replica:
    """The replica that a deployment runs.

    times: prices of its kernels
    version: of the engine; None: its profile's
    split: of the experts over ranks; None: as the deployment's parallelism says
    """
    engine = deployment.scenario.engine
    version = engine.version if version is None else version
    work = rank_work(
        deployment.stack,
        deployment.ranks,
        deployment.quantisation,
        deployment.rules,
        arithmetic=arithmetic_of(deployment.scenario.accelerator),
        fuses=engine.kind in FUSES,
        quantises=quantises(engine.kind, version),
        split=split,
    )
    return Replica(
        work,
        times,
        mixes=engine.kind not in WAITS,
        chunk_tokens=_chunk_tokens(deployment),
        steps_in_flight=2 if overlaps(engine.kind, version) else 1,
        pipeline_share=pipeline_share(deployment.stack, deployment.ranks.pp),
    )


def _chunk_tokens(deployment: Deployment) -> int | None:
    """Most tokens in a step of one data-parallel rank; SGLang's ranks share the replica's.

    source: SGLang 0.5, srt/server_args.py (_handle_data_parallelism)
    """
    tokens = deployment.max_num_batched_tokens
    shared = tokens is not None and deployment.scenario.engine.kind == "sglang"
    return max(1, tokens // deployment.ranks.dp) if tokens is not None and shared else tokens


def overlaps(kind: str, version: str | None) -> bool:
    """Whether an engine schedules the next step while the device runs one, by default; vLLM does from 0.14.

    source: vllm-project/vllm pull request 27614; nvidia.github.io/TensorRT-LLM/features/overlap-scheduler.html;
        lmsys.org/blog/2024-12-04-sglang-v0-4
    """
    if kind != "vllm":
        return kind in OVERLAPS
    numbers = version_numbers(version or "")
    return not numbers or numbers >= OVERLAPS_FROM


def quantises(kind: str, version: str | None) -> bool:
    """Whether kernels of their own quantise the inputs of narrow matrices: TensorRT-LLM's before 1.0.

    From 1.0 the all-reduce with its norm, and the activation, write narrow numbers; attention did before. Norms that
    follow no all-reduce (TP 1) are taken to do so too.

    source: NVIDIA/TensorRT-LLM pull request 6205; 0.20's _torch/modules/linear.py (static_quantize_e4m3_per_tensor),
        gated_mlp.py and models/modeling_llama.py (POST_MLP_FUSION is off)
    """
    return kind == "tensorrt-llm" and () < version_numbers(version or "") < QUANTISES_BEFORE


def arithmetic_of(gpu: Accelerator) -> Arithmetic:
    """What a device multiplies, by its datasheet."""
    return Arithmetic(fp8=gpu.fp8_dense_tflops is not None, fp4=gpu.fp4_dense_tflops is not None)


def times_of(deployment: Deployment) -> KernelTimes:
    """Prices of kernels for a scenario: by the calibration that it names, else by those that ship for its device.

    raises: InputError where nobody measured the device or one of its architecture
    """
    scenario = deployment.scenario
    gpu, named = scenario.accelerator, scenario.calibration
    if named is None:
        return _shipped_times(gpu, scenario.engine.kind)
    lenders = (shipped_calibration(borrowed.calibration) for borrowed in named.borrowed)
    others = calibrations_for(gpu, scenario.engine.kind) if is_measured(gpu) else ()
    return KernelTimes(gpu, chain((named,), lenders, others), small_kernels())


def is_measured(gpu: Accelerator) -> bool:
    """Whether a calibration of this device, or of one of its architecture, ships."""
    return gpu.vendor == "nvidia" and (gpu.compute_capability or "").split(".")[0] in STANDS_IN


@lru_cache(maxsize=64)
def _shipped_times(gpu: Accelerator, kind: str) -> KernelTimes:
    if not is_measured(gpu):
        raise InputError(
            f"no calibration of {gpu.name} or of its architecture ships: planner calibrate measures one, and "
            "--calibration takes another device's"
        )
    return KernelTimes(gpu, calibrations_for(gpu, kind), small_kernels())


def slots_at(deployment: Deployment, pool: Pool, input_tokens: int, output_tokens: int) -> int:
    """Requests of a length that one replica runs at once: by memory, half of the answers written, and the scheduler.

    TensorRT-LLM reserves whole requests.
    """
    reserves = deployment.scenario.engine.kind in RESERVES
    held = pool.requests(input_tokens + (output_tokens if reserves else output_tokens // 2))
    return deployment.ranks.dp * min(held, deployment.max_num_seqs or held)


def speed_of(deployment: Deployment, pool: Pool) -> Speed:
    """The speed of one replica of a deployment that fits.

    raises: InputError with the reason why it is not predicted
    """
    _check(deployment)
    mix = mix_of(deployment.scenario)
    slots = slots_at(deployment, pool, mix.input_tokens, mix.output_tokens)
    return Speed(replica_of(deployment, times_of(deployment)), mix, slots)


def _check(deployment: Deployment) -> None:
    """Refuse what a step's work is not known of."""
    mixers = mixers_of(deployment.stack.layers)
    if any(isinstance(mixer, Attention) and mixer.cross for mixer in mixers):
        raise InputError("the model attends to an encoder, whose work no step has")
    if deployment.scenario.memory.weights_gib is not None:
        raise InputError("the weights are given in memory.weights_gib, and what one step reads of them is not known")
    if deployment.stored_quantised and deployment.quantisation is None:
        raise InputError("the form of the checkpoint's quantisation is unknown")
    if deployment.dtype == "float32":
        raise InputError("no calibration holds float32 kernels")
