"""A deployment as the simulated engine needs it: its pool in units, and its scheduler's rules."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from planner.cache_groups import Group
from planner.deployment import Deployment
from planner.engine_inputs import version_numbers
from planner.errors import InputError
from planner.kv_cache import Kind
from planner.pool import BlockPool, Pool, TokenPool
from planner.rank import governing_rank
from planner.replica import RESERVES, overlaps, replica_of, times_of
from planner.serving import Replica
from planner.simulate.rules import Memory, Rules
from planner.simulate.steps import StepTimes
from planner.units import ceil_div

RESERVES_PROMPT_FROM = (0, 19)
"""vLLM's first version that starts a prompt only where all of it fits (vllm-project/vllm pull request 37307); a run of
0.19.0 recorded it among its settings (tests/oracles/traces/vllm_truth_RTX4090_Llama-3.1-8B.meta.json)."""
NO_LIMIT = 2**30
"""Of an engine without a scheduler."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What every engine of a fleet is made from."""

    memory: Memory
    rules: Rules
    times: StepTimes
    ranks: int
    """Data-parallel ranks of a replica, each an engine."""

    @property
    def together(self) -> int:
        """Engines whose steps are one another's."""
        return self.ranks if self.times.replica.shares_experts else 1


def setting_of(deployment: Deployment, *, max_queue: int | None = None, timeout_s: float | None = None) -> Setting:
    """The setting of a deployment that fits.

    raises: InputError where its steps cannot be simulated, or no request fits
    """
    if deployment.ranks.pp > 1:
        raise InputError("parallelism.pp: a simulation has no pipeline stages, whose steps overlap; pp must be 1")
    pool = governing_rank(deployment).pool
    replica = replica_of(deployment, times_of(deployment))
    rules = rules_of(deployment, replica, max_queue=max_queue, timeout_s=timeout_s)
    return Setting(memory_of(pool), rules, StepTimes(replica), deployment.ranks.dp)


def rules_of(
    deployment: Deployment,
    replica: Replica,
    *,
    version: str | None = None,
    max_queue: int | None = None,
    timeout_s: float | None = None,
) -> Rules:
    """The scheduler's rules of a deployment's engine, version by version.

    version: of the engine; None: its profile's
    """
    engine = deployment.scenario.engine
    version = engine.version if version is None else version
    return Rules(
        max_seqs=deployment.max_num_seqs or NO_LIMIT,
        max_tokens=replica.chunk_tokens or NO_LIMIT,
        context_tokens=deployment.scenario.context,
        sees_late=overlaps(engine.kind, version),
        mixes=replica.mixes,
        reserves_prompt=reserves_prompt(engine.kind, version),
        reserves_answer=engine.kind in RESERVES,
        prefix_caching=deployment.scenario.engine_options.prefix_caching,
        max_queue=max_queue,
        timeout_s=timeout_s,
    )


def reserves_prompt(kind: str, version: str | None) -> bool:
    """Whether a prompt starts only where all of it fits.

    source: vLLM, v1/core/sched/scheduler.py (scheduler_reserve_full_isl); SGLang 0.5, srt/managers/schedule_policy.py
        (PrefillAdder), which counts the whole prompt and a part of the answer
    """
    if kind != "vllm":
        return kind == "sglang"
    numbers = version_numbers(version or "")
    return not numbers or numbers >= RESERVES_PROMPT_FROM


def memory_of(pool: Pool) -> Memory:
    """A rank's pool in units: blocks of vLLM's one pool, SGLang's token slots, else bytes."""
    if isinstance(pool, TokenPool):
        return _slots(pool)
    one = isinstance(pool, BlockPool)
    growing: Counter[int] = Counter()
    for group in pool.groups:
        if group.growing:
            growing[group.spec.block_tokens] += 1 if one else group.page_bytes
    return Memory(
        units=pool.usable_blocks if one else max(0, pool.kv_bytes),
        growing=tuple(growing.items()),
        bounded=tuple(_bounded(pool, one=one)),
        state_units=sum(_constant(pool, group, one=one) for group in pool.groups),
    )


def _bounded(pool: Pool, *, one: bool) -> Iterator[tuple[int, int, int]]:
    """Windows and chunks: at their fullest while a request decodes (kv_cache.held_blocks)."""
    for group in pool.groups:
        spec = group.spec
        if group.growing or spec.kind not in (Kind.WINDOW, Kind.CHUNK):
            continue
        most = ceil_div(spec.span_tokens, spec.block_tokens)
        if one and spec.kind is Kind.WINDOW:
            most = ceil_div(spec.span_tokens - 1, spec.block_tokens) + 1
        elif one and spec.span_tokens % spec.block_tokens:
            most += 1
        yield spec.block_tokens, 1 if one else group.page_bytes, most


def _constant(pool: Pool, group: Group, *, one: bool) -> int:
    """Units of a group that holds as much for every request: states, and an encoder's keys and values."""
    if group.spec.kind not in (Kind.STATE, Kind.CROSS):
        return 0
    return pool.held(group, 1) * (1 if one else group.page_bytes)


def _slots(pool: TokenPool) -> Memory:
    """Token slots; states and windowed slots bound how many requests run.

    assumes: every request fills its window
    """
    limits = pool.limits(NO_LIMIT)
    most = min((limits[name] for name in ("states", "windowed slots") if name in limits), default=None)
    if "token slots" not in limits:
        return Memory(units=pool.num_blocks, growing=(), state_units=1)
    return Memory(units=pool.num_blocks, growing=((1, 1),), most_requests=most)
