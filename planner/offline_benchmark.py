"""TensorRT-LLM's offline benchmark, trtllm-bench throughput: the limits it sets, the run of its requests, its rate."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log

from planner.engine_inputs import version_numbers
from planner.serving import Replica, prompts_terms, step_of

REQUESTS = {
    (128, 128): 30_000,
    (128, 2048): 3_000,
    (128, 4096): 1_500,
    (500, 2000): 3_000,
    (1000, 1000): 3_000,
    (1000, 2000): 1_500,
    (2048, 128): 3_000,
    (2048, 2048): 1_500,
    (5000, 500): 1_500,
    (20_000, 2000): 1_000,
}
"""Requests of the performance overview by input and output length (its table num_requests, 0.20 and 1.0)."""
GRAPH_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192)
"""Batches of which the overview has CUDA graphs captured, others being padded to the next (its llm_options.yml)."""
FREE_MEMORY_SHARE = "0.95"
"""Of the memory left by the weights, the cache's (the overview's --kv_cache_free_gpu_mem_fraction in most cases)."""
CAPTURES_LIMIT_FROM = (0, 21)
"""First version that also captures its largest batch (NVIDIA/TensorRT-LLM pull request 4843, June 2025)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the benchmark has the engine set up for."""

    max_num_seqs: int
    max_num_batched_tokens: int


def bench_limits(held: float, input_tokens: int, output_tokens: int, pp: int = 1) -> Limits:
    """The limits that trtllm-bench derives from the lengths of its requests, where none are given.

        b = min(h, 4096) / p, rounded up: below 256 to 32, at least 64; below 1024 to 128; else to 256
        t = min(b (1 + S / n), 32768), rounded up: below 4096 to 256, at least 2048; below 8192 to 512; else to 1024
        max_num_batched_tokens = max(t, S + max_num_seqs), since prompts are not cut

    held: h, requests that the memory left by the weights alone holds at their whole length [1]
    input_tokens, output_tokens: S and n of one request [token]
    pp: p, pipeline stages [1]
    returns: both limits [1]
    assumes: b unrounded in t
    source: TensorRT-LLM, tensorrt_llm/bench/build/tuning.py (finetune_setting), bench/benchmark/utils/general.py
    """
    batch = min(held, 4096.0) / pp
    tokens = min(batch * (1 + input_tokens / output_tokens), 32768.0)
    sequences = max(64, _up(batch, 32)) if batch < 256 else _up(batch, 128 if batch < 1024 else 256)
    batched = max(2048, _up(tokens, 256)) if tokens < 4096 else _up(tokens, 512 if tokens < 8192 else 1024)
    return Limits(sequences, max(batched, input_tokens + sequences))


def _up(value: float, multiple: int) -> int:
    return multiple * ceil(value / multiple)


def request_count(input_tokens: int, output_tokens: int) -> int:
    """Requests of the overview's dataset of these lengths, or of the nearest that it lists."""
    return REQUESTS[min(REQUESTS, key=lambda at: abs(log(at[0] / input_tokens)) + abs(log(at[1] / output_tokens)))]


def captured_batches(limit: int, version: str) -> tuple[int, ...]:
    """Batches that run from a captured graph: none is over the engine's largest, max_num_seqs."""
    numbers = version_numbers(version)
    sizes = tuple(size for size in GRAPH_BATCHES if size <= limit)
    before = bool(numbers) and numbers < CAPTURES_LIMIT_FROM
    return sizes if before or limit in sizes else (*sizes, limit)


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """The steps in which a number of requests is served from first to last."""

    requests: int
    alone: Mapping[int, int]
    """Decodes in a step -> steps that have no prompts."""
    shared: int
    """Steps that have prompts."""
    decodes: float
    """Mean decodes in these."""

    @property
    def steps(self) -> int:
        """All steps."""
        return sum(self.alone.values()) + self.shared


def schedule(requests: int, slots: int, step_tokens: int, input_tokens: int, output_tokens: int) -> OfflineRun:
    """A run of equal requests that all wait at its start, step by step.

        a step takes min(waiting, slots - running, (step_tokens - running) // S) prompts; a request runs for n steps

    requests: of the dataset [1]
    slots: requests that run at once [1]
    step_tokens: most tokens in a step [token]
    input_tokens, output_tokens: S and n of one request [token]
    returns: its steps by what they hold [1]
    assumes: prompts are not cut. Slots fill while prompts come in, and with few requests for each slot (3,000 for
        1,400) the last of them leave most slots empty
    source: TensorRT-LLM's in-flight batching with guaranteed_no_evict and without chunked prefill
    """
    waiting, running, step, shared, decodes = requests, 0, 0, 0, 0
    alone: Counter[int] = Counter()
    ends: deque[tuple[int, int]] = deque()
    while waiting or ends:
        while ends and ends[0][0] == step:
            running -= ends.popleft()[1]
        joining = min(waiting, slots - running, max(0 if running else 1, (step_tokens - running) // input_tokens))
        if joining > 0:
            shared, decodes = shared + 1, decodes + running
            ends.append((step + output_tokens, joining))
            waiting, running, step = waiting - joining, running + joining, step + 1
        elif ends:
            alone[running] += ends[0][0] - step
            step = ends[0][0]
    return OfflineRun(requests, alone, shared, decodes / max(1, shared))


def offline_tokens_per_s(
    replica: Replica, run: OfflineRun, input_tokens: int, output_tokens: int, captured: tuple[int, ...]
) -> float:
    """Output tokens per second over a whole run, in which slots fill and run dry.

        N n / (sum over steps without prompts of t_decode(padded B) + those with prompts of t_decode(B) + N t_prompt)

    replica: what runs [1]
    run: its N requests, steps and the decodes B in each [1]
    input_tokens: of one request [token]
    output_tokens: n, of one request [token]
    captured: batches that have a graph, to the next of which a step without prompts is padded [1]
    returns: rate [token/s]
    assumes: padding costs all but cache reads; steps with prompts, and batches over the largest graph, are launched
        kernel by kernel; t_prompt, what a prompt adds to the step that it shares
    source: TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/cuda_graph_runner.py (_get_padded_batch)
    """
    kv = input_tokens + output_tokens / 2
    padded: dict[int, Counter[int]] = {}
    for batch, steps in run.alone.items():
        size = next((size for size in captured if size >= batch), 0)
        padded.setdefault(size, Counter())[batch] += steps
    seconds = 0.0
    for size, batches in padded.items():
        steps = batches.total()
        mean = sum(batch * count for batch, count in batches.items()) / steps
        terms = step_of(replica, size or round(mean), kv * mean / (size or round(mean)))
        seconds += steps * (terms if size else replica.times.launched(terms, replica.work.kernels)).seconds
    return run.requests * output_tokens / (seconds + _shared_seconds(replica, run, input_tokens, kv))


def _shared_seconds(replica: Replica, run: OfflineRun, input_tokens: int, kv: float) -> float:
    """All steps that have prompts [s]."""
    batch, count = round(run.decodes), max(1, round(run.requests / run.shared))
    decode = step_of(replica, batch, kv)
    prompt = prompts_terms(replica, batch, kv, decode, input_tokens, count=count).seconds / count
    return run.shared * decode.seconds + run.requests * prompt * replica.pipeline_share / replica.work.ranks.dp
