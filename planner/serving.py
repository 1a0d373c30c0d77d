"""From steps to serving: TPOT, TTFT, throughput and concurrency of one replica under continuous batching."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, expm1

from planner.kernel_times import KernelTimes, Terms
from planner.queueing import Wait, server_wait
from planner.rank_work import RankWork
from planner.roofline import Prompt, Step, StepPrices, chunks

BURST_SHARE = 0.1
"""Of a published closed-loop benchmark's requests, those sent at the start: it sends ten times the concurrency."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica, as far as its speed goes."""

    work: RankWork
    times: KernelTimes
    mixes: bool
    """Prompts share their step with decodes (vLLM, TensorRT-LLM); False: decodes wait (SGLang)."""
    chunk_tokens: int | None
    """Most tokens in a step; None: no bound."""
    steps_in_flight: int = 1
    """Steps that are scheduled before the first of them ends: 2 where scheduling overlaps the device's work."""
    pipeline_share: float = 1.0
    """What the fullest pipeline stage takes of a step [1]."""
    prices: StepPrices = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prices", StepPrices(self.work, self.times))

    @property
    def groups(self) -> int:
        """Sets of requests that are decoded apart: data-parallel ranks, and pipeline stages each with a batch."""
        return self.work.ranks.dp * self.work.ranks.pp

    @property
    def shares_experts(self) -> bool:
        """Data-parallel ranks wait for one another in every step, as experts lie on all of them."""
        return self.work.ranks.dp > 1 and any(layer.experts for layer in self.work.layers)


@dataclass(frozen=True, slots=True)
class Tpot:
    """Time per output token at a steady batch."""

    decode: Terms
    """The step of the decodes alone."""
    prefill: Terms
    """What prompts of other requests add to it, on average."""

    @property
    def seconds(self) -> float:
        """TPOT [s]."""
        return self.decode.seconds + self.prefill.seconds


def step_of(
    replica: Replica, batch: int, kv_tokens: float, prompts: tuple[Prompt, ...] = (), ranks: float | None = None
) -> Terms:
    """One step of a replica's batch, spread over its data-parallel ranks and pipeline stages.

    ranks: data-parallel ranks that run such prompts; None: all
    """
    decodes = ceil(batch / replica.groups) if batch else 0
    step = Step(decodes, kv_tokens, prompts, ranks)
    device = replica.prices.terms(step)
    return replica.times.hosted(device, step.outputs, overlapped=replica.steps_in_flight > 1)


def prefill_terms(replica: Replica, tokens: int, prior: int = 0, count: int = 1, ranks: float | None = None) -> Terms:
    """Prompts of one length on an idle replica: chunk after chunk.

    tokens: new tokens of each prompt
    prior: its tokens that are cached already
    count: prompts that share the steps, where several fit in one
    ranks: data-parallel ranks that each run as many; None: all
    """
    return _with_prompts(replica, 0, 0.0, tokens, prior, count, ranks)


def prompts_terms(
    replica: Replica,
    batch: int,
    kv: float,
    decode: Terms,
    tokens: int,
    prior: int = 0,
    count: int = 1,
    ranks: float | None = None,
) -> Terms:
    """What prompts of one length add to the steps that they share with a batch of decodes.

    decode: the step of these decodes alone
    ranks: data-parallel ranks that have such prompts; None: all
    """
    steps = sum(alike for _, alike in prompt_steps(replica, batch, tokens, prior, count))
    return _with_prompts(replica, batch, kv, tokens, prior, count, ranks) + decode.times(-steps)


def share_with_prompts(due: float) -> float:
    """Share of a rank's steps that have prompts, of which so many come in a step on average by chance: 1 - e^-d."""
    return -expm1(-due)


def steps_with_prompts(replica: Replica, due: float) -> tuple[float, float | None]:
    """(steps with prompts of any rank, for each with a given rank's; data-parallel ranks that then have some).

        p = 1 - e^-d;  q = 1 - (1 - p)^r;  q / p and r p / q

    replica: r, its data-parallel ranks, where they share experts [1]
    due: d, prompts of one rank in a step [1]
    returns: 1 and None, for all, where ranks share nothing and steps of one are no other's [1]
    assumes: prompts come to each rank by chance, and to none more than to another
    source: Poisson arrivals; DPEngineCoreProc of vLLM 0.33, v1/engine/core.py, steps all ranks together
    """
    if not replica.shares_experts:
        return 1.0, None
    if not due:
        return float(replica.work.ranks.dp), 1.0
    own = share_with_prompts(due)
    every = 1 - (1 - own) ** replica.work.ranks.dp
    return every / own, replica.work.ranks.dp * own / every


def _with_prompts(
    replica: Replica, batch: int, kv: float, tokens: int, prior: int, count: int, ranks: float | None = None
) -> Terms:
    total = Terms()
    for prompt, alike in prompt_steps(replica, batch, tokens, prior, count):
        total += step_of(replica, batch, kv, (prompt,), ranks).times(alike)
    return total


def prompt_steps(replica: Replica, batch: int, tokens: int, prior: int, count: int) -> Iterator[tuple[Prompt, int]]:
    """(the prompts of a step, how many steps hold such): as many whole ones as fit, or one in chunks."""
    room = None if replica.chunk_tokens is None else max(1, replica.chunk_tokens - ceil(batch / replica.groups))
    if room is None or tokens <= room:
        most = count if room is None else min(count, room // tokens)
        steps, rest = divmod(count, most)
        yield Prompt(tokens, prior, most), steps
        if rest:
            yield Prompt(tokens, prior, rest), 1
        return
    for chunk, alike in chunks(tokens, room, prior):
        yield chunk, alike * count


def tpot(
    replica: Replica, batch: int, input_tokens: int, output_tokens: int, prior: int = 0, *, in_waves: bool = False
) -> Tpot:
    """Time per output token while every finished request is replaced by a new one.

        t = t_decode(B, S + n / 2) + k (B / n) x cost of one prompt
        cost: t_prefill(S) where decodes wait; step(B + prompts) - step(B), per prompt, where they share the step
        k: 1; where ranks share experts, as many steps have prompts of any rank as for each with a given one's
        but at least s B / dp, as one server process streams the tokens of a data-parallel rank one after the other

    replica: what runs [1]
    batch: B, requests that decode [1]
    input_tokens: S, of one prompt, cached ones included [token]
    output_tokens: n, of one request [token]
    prior: of the prompt's tokens, those that a shared prefix left in the cache [token]
    in_waves: requests of equal lengths, of which a client sends the next when one ends: where decodes wait, all then
        end together, so that each waits, once it decodes, for half of the others' prompts [1]
    returns: both parts [s]
    assumes: steady state; of several prompts due in one step, all join it. SGLang runs prompts before decodes, so a
        wave of equal requests stays together: all decode after the last prompt, and end at once
    source: continuous batching (Yu et al. 2022, Orca); chunked prefill (Agrawal et al. 2024, arXiv:2403.02310); s,
        server_token_us of profiles/kernels/small.yaml
    """
    kv = input_tokens + output_tokens / 2
    decode = step_of(replica, batch, kv)
    due = batch / output_tokens / replica.groups
    count = max(1, ceil(due))
    new = max(1, input_tokens - prior)
    steps, ranks = steps_with_prompts(replica, due)
    if not replica.mixes:
        prompts = prefill_terms(replica, new, prior, count, ranks)
        if steps > 1:  # in a step with another rank's prompt its decodes go on
            alike = sum(alike for _, alike in prompt_steps(replica, 0, new, prior, count))
            prompts += decode.times(-alike * (steps - 1) / steps)
        due = due * (batch - 1) / (2 * batch) if in_waves else due
    else:
        prompts = prompts_terms(replica, batch, kv, decode, new, prior, count, ranks)
    found = Tpot(decode, prompts.times(steps * due / count * replica.pipeline_share * replica.work.ranks.pp))
    streamed = replica.times.server_token_s * batch / replica.work.ranks.dp
    return Tpot(decode + Terms(launch=max(0.0, streamed - found.seconds)), found.prefill)


def saturated_tokens_per_s(
    replica: Replica, batch: int, input_tokens: int, output_tokens: int, prior: int = 0
) -> float:
    """Output tokens per second of a replica whose batch never runs dry.

        1 / (t_decode(B, S + n / 2) / B + k t_prefill(S) / n)

    replica: what runs; k as in tpot [1]
    batch: B, what memory and max_num_seqs allow [1]
    input_tokens: S, of one request [token]
    output_tokens: n, of one request [token]
    prior: of the prompt's tokens, those in the cache already [token]
    returns: rate [token/s]
    assumes: prompts that are due in one step share it; B over TPOT would count a prompt's cost as the decodes see it
    source: continuous batching (Yu et al. 2022, Orca)
    """
    decode = step_of(replica, batch, input_tokens + output_tokens / 2).seconds
    due = batch / output_tokens / replica.groups
    count, (steps, ranks) = max(1, ceil(due)), steps_with_prompts(replica, due)
    prompt = steps * prefill_terms(replica, max(1, input_tokens - prior), prior, count, ranks).seconds / count
    per_group = prompt * replica.pipeline_share / replica.work.ranks.dp
    return 1 / (decode / batch + per_group / output_tokens)


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Time to first token, part by part [s]."""

    underway_s: float
    """The rest of the steps that are under way."""
    behind: Wait
    """Other prompts before this one."""
    prefill_s: float
    step_s: float
    """The decodes that share the prompt's last step."""
    server_s: float = 0.0
    """The request's way to the queue."""

    @property
    def unloaded_s(self) -> float:
        """What every prompt takes beside its prefill and what it waits for others [s]."""
        return self.server_s + self.underway_s + self.step_s

    @property
    def seconds(self) -> float:
        """Mean TTFT [s]."""
        return self.unloaded_s + self.behind.mean_s + self.prefill_s


def first_token(
    replica: Replica,
    batch: int,
    input_tokens: int,
    output_tokens: int,
    prior: int = 0,
    *,
    each: Tpot | None = None,
    variation: float = 0.0,
    burstiness: float = 1.0,
) -> FirstToken:
    """Time to first token of a request that finds a slot and B requests decoding.

        a + (k - 1/2) (t + o m) + min(W, m (B - 1) / 2) + t_prefill + t

    replica: k, its steps in flight [1]
    batch: B, requests that decode [1]
    input_tokens, output_tokens: of one request [token]
    prior: of the prompt's tokens, those in the cache already [token]
    each: the same requests' tpot, where it is known already [s]
    variation: squared coefficient of variation of prompts' lengths [1]
    burstiness: of arrivals [1]
    returns: the parts [s]
    assumes: a, server_request_us; t the decodes' step, m the prefill, W by server_wait for the share of the time that
        the rank's own prompts take; o, that of steps that only other ranks' prompts make longer, where ranks share
        experts, and of these ranks as many have one beside its own as chance has it; it arrives anywhere within a step
    source: queueing.server_wait
    """
    each = each or tpot(replica, batch, input_tokens, output_tokens, prior)
    every = min(0.95, each.prefill.seconds / each.seconds)
    due = batch / output_tokens / replica.groups
    steps, _ = steps_with_prompts(replica, due)
    busy = every / steps
    ranks = 1 + share_with_prompts(due) * (replica.work.ranks.dp - 1)
    step, prefill = each.decode.seconds, prefill_terms(replica, max(1, input_tokens - prior), prior, 1, ranks).seconds
    behind = server_wait(busy, prefill, variation, burstiness)
    if behind.mean_s > (most := prefill * (batch - 1) / 2):
        behind = Wait(busy, most / busy)
    underway = (replica.steps_in_flight - 0.5) * (step + (every - busy) * prefill)
    return FirstToken(underway, behind, prefill, step, replica.times.server_request_s)


def benchmark_ttft(
    replica: Replica, concurrency: int, slots: int, input_tokens: int, output_tokens: int, *, in_waves: bool = False
) -> float:
    """Mean time to first token of a closed-loop benchmark that sends all prompts at once, its concurrency capped.

        (1 - s) TTFT(B) + s (a + g (1 + p (G - 1) / 2)) + (C / B - 1) T

    replica: what runs [1]
    concurrency: C, requests that the client keeps open [1]
    slots: requests that the engine can run at once; B is the lesser of both [1]
    input_tokens, output_tokens: of one request [token]
    in_waves: lengths are equal, as in tpot: where decodes wait, every request then belongs to a burst [1]
    returns: time [s]
    assumes: s = 0.1, ten prompts per open request; the burst's prompts, of which each data-parallel rank takes its mean
        share, are taken in G groups that fill a step, g each, once they are through the server, a, and the next follows
        when the fullest pipeline stage is done, after its share p of g; a request that finds no slot waits its share
        of one request's time T
    source: InferenceX's serving benchmark (vLLM's benchmark_serving.py with request_rate inf)
    """
    batch = min(concurrency, slots)
    each = tpot(replica, batch, input_tokens, output_tokens, in_waves=in_waves).seconds
    first = first_token(replica, batch, input_tokens, output_tokens).seconds
    local = max(1.0, batch / replica.work.ranks.dp)
    together = max(1, min(int(local), (replica.chunk_tokens or input_tokens) // input_tokens))
    group = prefill_terms(replica, input_tokens, count=together).seconds
    burst = replica.times.server_request_s + group * (1 + replica.pipeline_share * (local / together - 1) / 2)
    waiting = max(0.0, concurrency / slots - 1) * (first + output_tokens * each)
    share = 1.0 if in_waves and not replica.mixes else BURST_SHARE
    return (1 - share) * first + share * burst + waiting
