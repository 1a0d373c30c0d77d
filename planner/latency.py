"""How fast a replica serves a workload: TTFT, gaps between tokens, waiting and throughput, by lengths and load."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate

from planner.errors import InputError
from planner.inputs import Scenario
from planner.queueing import NO_WAIT, PRECISION, Wait, both_within, slot_wait
from planner.roofline import Prompt
from planner.serving import (
    FirstToken,
    Replica,
    Tpot,
    first_token,
    prefill_terms,
    prompt_steps,
    saturated_tokens_per_s,
    step_of,
    steps_with_prompts,
    tpot,
)
from planner.workload_inputs import Lengths

LEVELS = (("p50", 0.50), ("p90", 0.90), ("p95", 0.95), ("p99", 0.99))
"""Percentiles of lengths that a workload may give."""
PERCENTILE = 0.95
"""Of TTFT over requests and of the gaps between tokens: what objectives ask for."""


@dataclass(frozen=True, slots=True)
class Band:
    """Prompts up to a length; all are as slow as its longest."""

    label: str
    share: float
    """Of all requests."""
    tokens: int
    """The longest of them."""
    cached: int
    """Its tokens that a shared prefix leaves in the cache."""
    hit_share: float
    """Share of its requests that find them."""

    @property
    def cases(self) -> tuple[tuple[float, int], ...]:
        """(share of all requests, cached tokens): those that find the prefix, and those that do not."""
        found, missed = (self.share * self.hit_share, self.cached), (self.share * (1 - self.hit_share), 0)
        return (found, missed) if self.cached else ((self.share, 0),)


@dataclass(frozen=True, slots=True)
class Mix:
    """A workload's lengths as far as its speed goes."""

    bands: tuple[Band, ...]
    input_tokens: int
    """Mean of a prompt, cached ones included."""
    output_tokens: int
    """Mean of an answer."""
    cached_tokens: int
    """Of a prompt, mean."""
    variation: float
    """Squared coefficient of variation of prompts' lengths; 0 where only their mean is known."""


def mix_of(scenario: Scenario) -> Mix:
    """The lengths of a scenario's workload.

    Without percentiles every prompt counts as the longest: the context less an answer.
    raises: InputError where the workload does not say them
    """
    workload = scenario.workload
    if workload.input_tokens is None or workload.output_tokens is None:
        raise InputError(f"workload {workload.name} gives no input_tokens and output_tokens")
    longest = longest_prompt(scenario)
    bands = tuple(_bands(scenario, workload.input_tokens, longest))
    cached = sum(share * tokens for band in bands for share, tokens in band.cases)
    mean = min(workload.input_tokens.mean, longest)
    return Mix(bands, mean, workload.output_tokens.mean, min(int(cached), mean - 1), _variation(bands))


def longest_prompt(scenario: Scenario) -> int:
    """The longest prompt to plan for: the workload's, or where the context is another, that less an answer."""
    given = scenario.workload.input_tokens
    if given and given.max and scenario.context == scenario.workload.context_tokens:
        return given.max
    return max(1, scenario.context - longest_answer(scenario))


def longest_answer(scenario: Scenario) -> int:
    """The longest answer that the workload gives, or its mean; 0 where it gives neither."""
    answer = scenario.workload.output_tokens
    return (answer.max or answer.mean) if answer else 0


def _bands(scenario: Scenario, lengths: Lengths, longest: int) -> Iterator[Band]:
    known = [(label, level, getattr(lengths, label)) for label, level in LEVELS if getattr(lengths, label)]
    below = 0.0
    for label, level, tokens in (*known, ("longest", 1.0, longest)):
        length = min(tokens, longest)
        yield Band(label, level - below, length, *_reuse(scenario, length))
        below = level


def why_no_prefix(scenario: Scenario) -> str:
    """Why no prompt finds a shared prefix cached; empty where some do."""
    prefix, longest = scenario.workload.prefix, longest_prompt(scenario)
    if prefix is None or not prefix.shared_tokens or not prefix.request_share:
        return "no request begins with a prefix"
    if not scenario.engine_options.prefix_caching:
        return "prefix caching is off"
    if prefix.shared_tokens >= longest:
        return f"no prompt is longer than the prefix of {prefix.shared_tokens:,} tokens: the longest has {longest:,}"
    return ""


def _reuse(scenario: Scenario, tokens: int) -> tuple[int, float]:
    """(tokens of a shared prefix that a prompt finds cached, share of the requests that do)."""
    prefix = scenario.workload.prefix
    if prefix is None or why_no_prefix(scenario) or prefix.shared_tokens >= tokens:
        return 0, 0.0
    return prefix.shared_tokens, float(prefix.request_share)


def _variation(bands: tuple[Band, ...]) -> float:
    """Of lengths spread evenly within each band; 0 for a single one."""
    if len(bands) == 1:
        return 0.0
    edges = (0, *(band.tokens for band in bands))
    middles = [(band.share, (low + band.tokens) / 2) for band, low in zip(bands, edges, strict=False)]
    mean = sum(share * middle for share, middle in middles)
    return sum(share * middle**2 for share, middle in middles) / mean**2 - 1


@dataclass(frozen=True)
class Performance:
    """A replica at one load; percentiles are found when they are asked for."""

    speed: "Speed" = field(repr=False, compare=False)
    batch: int
    """Requests that decode together."""
    concurrency: float
    """Requests in the replica on average."""
    arrivals_per_s: float
    """At this replica: given, or what its concurrency and a request's time come to."""
    tpot: Tpot
    first: FirstToken
    slot_wait: Wait
    saturated: bool
    """More arrives than it can do: the queue grows without end, and times are those at its limit."""
    request_s: float
    """Mean time of a request."""

    @property
    def ttft_mean_s(self) -> float:
        """Mean time to first token [s]."""
        return self.first.seconds + self.slot_wait.mean_s

    @cached_property
    def ttft_p95_s(self) -> float:
        """95th percentile of the time to first token: over bands, hits and waits, by bisection [s].

        Waits for a slot and behind other prompts are independent (queueing.both_within).
        """
        prefills = [prefill for _, prefill in self._prefills]
        low, high = self.first.unloaded_s + min(prefills), self.first.unloaded_s + max(prefills)
        high += self.first.behind.quantile_s(0.999) + self.slot_wait.quantile_s(0.999)
        while high - low > PRECISION * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.within(middle) >= PERCENTILE else (middle, high)
        return high

    @cached_property
    def itl_p95_s(self) -> float:
        """95th percentile of all gaps between tokens [s]."""
        return itl_quantile(self.speed.replica, self.speed.mix, self.batch, self.tpot.decode.seconds)

    def within(self, seconds: float) -> float:
        """Share of the requests whose first token comes within this time."""
        return sum(
            share * both_within(self.first.behind, self.slot_wait, seconds - self.first.unloaded_s - prefill)
            for share, prefill in self._prefills
        )

    @cached_property
    def _prefills(self) -> tuple[tuple[float, float], ...]:
        """(share of requests, prefill beside other ranks' prompts [s]): all slowed by as much as the mean prompt is."""
        mix = self.speed.mix
        slowed = self.first.prefill_s / self.speed.prefill_s(mix.input_tokens, mix.cached_tokens)
        return tuple((share, slowed * prefill) for share, prefill in self.speed.prefills)


class Speed:
    """One replica and one workload, asked at many loads."""

    def __init__(self, replica: Replica, mix: Mix, slots: int) -> None:
        """slots: requests of the mean length that run at once."""
        self.replica, self.mix, self.slots = replica, mix, slots
        self.prefill_s = cache(self._prefill_s)

    @cached_property
    def prefills(self) -> tuple[tuple[float, float], ...]:
        """(share of requests, prefill alone [s]) of every band, found in the cache or not."""
        return tuple(
            (share, self.prefill_s(band.tokens, cached)) for band in self.mix.bands for share, cached in band.cases
        )

    @property
    def p95_prefill(self) -> tuple[int, float]:
        """(tokens of the prompt, its prefill alone [s]): what 95 % of the requests do not exceed, cached or not."""
        cases = [(band.tokens, share, cached) for band in self.mix.bands for share, cached in band.cases if share > 0]
        slowest = sorted((self.prefill_s(tokens, cached), tokens, share) for tokens, share, cached in cases)
        below = accumulate(share for _, _, share in slowest)
        ends = (each for each, share in zip(slowest, below, strict=True) if share >= PERCENTILE - 1e-9)
        seconds, tokens, _ = next(ends, slowest[-1])
        return tokens, seconds

    def _prefill_s(self, tokens: int, cached: int) -> float:
        """A prompt alone on an idle replica [s]."""
        return prefill_terms(self.replica, tokens - cached, cached, ranks=1).seconds

    @cached_property
    def saturated_tokens_per_s(self) -> float:
        """Output tokens a second with every slot in use."""
        mix = self.mix
        return saturated_tokens_per_s(self.replica, self.slots, mix.input_tokens, mix.output_tokens, mix.cached_tokens)

    def active(self, requests: int) -> Performance:
        """With this many requests active all the time: each that ends is followed by another."""
        batch = min(requests, self.slots)
        each, first = self._times(batch, 1.0)
        first = self._paced(batch, each, first)
        request = first.seconds + (self.mix.output_tokens - 1) * each.seconds
        waiting = Wait(1.0, (requests / batch - 1) * request) if requests > batch else NO_WAIT
        return self._performance(batch, requests, batch / request, each, first, waiting, saturated=requests > batch)

    def _paced(self, batch: int, each: Tpot, first: FirstToken) -> FirstToken:
        """With the wait behind others that requests have where all are active all the time.

            T >= B n / X

        batch: B, requests that decode together [1]
        each, first: times that no such limit bounds [s]
        returns: the first token's time, so that no more requests end than X, the saturated throughput, allows [s]
        source: asymptotic bounds of closed queues (Denning and Buzen 1978, ACM Computing Surveys 10(3))
        """
        request = first.seconds + (self.mix.output_tokens - 1) * each.seconds
        more = batch * self.mix.output_tokens / self.saturated_tokens_per_s - request
        return replace(first, behind=Wait(1.0, first.behind.mean_s + more)) if more > 0 else first

    def arriving(self, per_s: float, burstiness: float) -> Performance:
        """With arrivals at a rate: the batch at which as many leave as arrive, by bisection.

            L = rate x (TTFT(L) + (n - 1) TPOT(L)), feasible while L < slots and rate x n < saturated throughput

        per_s: rate at this replica [1/s]
        burstiness: z of queueing.slot_wait [1]
        returns: the load that it settles at; where slots do not suffice, that of all slots [1]
        source: Little 1961, doi:10.1287/opre.9.3.383
        """
        low, high = 1, self.slots
        most = self.saturated_tokens_per_s / self.mix.output_tokens
        saturated = per_s >= most or per_s * self._request_s(high, burstiness) >= high
        while low < high and not saturated:
            middle = (low + high) // 2
            low, high = (low, middle) if per_s * self._request_s(middle, burstiness) <= middle else (middle + 1, high)
        each, first = self._times(high, burstiness)
        request = first.seconds + (self.mix.output_tokens - 1) * each.seconds
        load = per_s * request
        waiting = NO_WAIT if saturated else slot_wait(self.slots, load, request, burstiness)
        concurrency = float(self.slots) if saturated else load + per_s * waiting.mean_s
        return self._performance(high, concurrency, per_s, each, first, waiting, saturated=saturated)

    def _request_s(self, batch: int, burstiness: float) -> float:
        each, first = self._times(batch, burstiness)
        return first.seconds + (self.mix.output_tokens - 1) * each.seconds

    def _times(self, batch: int, burstiness: float) -> tuple[Tpot, FirstToken]:
        mix = self.mix
        lengths = self.replica, batch, mix.input_tokens, mix.output_tokens, mix.cached_tokens
        each = tpot(*lengths)
        return each, first_token(*lengths, each=each, variation=mix.variation, burstiness=burstiness)

    def _performance(
        self,
        batch: int,
        concurrency: float,
        per_s: float,
        each: Tpot,
        first: FirstToken,
        waiting: Wait,
        *,
        saturated: bool,
    ) -> Performance:
        request = first.seconds + waiting.mean_s + (self.mix.output_tokens - 1) * each.seconds
        return Performance(self, batch, concurrency, per_s, each, first, waiting, saturated, request)


def itl_quantile(replica: Replica, mix: Mix, batch: int, decode_s: float) -> float:
    """95th percentile of all gaps between tokens, of all requests together.

    A gap is a step of the decodes alone, or one that holds a chunk of another's prompt; where decodes wait for
    prompts, a whole prompt lies in it.

    batch: B, requests that decode [1]
    decode_s: the decodes' own step, with the streaming of their tokens where that takes longer: no gap is less [s]
    returns: time [s]
    assumes: at most one prompt in a step; (B - 1) / n prompts of others are due in each, by steps_with_prompts where
        ranks share experts
    source: continuous batching (Yu et al. 2022, Orca); chunked prefill (Agrawal et al. 2024, arXiv:2403.02310)
    """
    due = (batch - 1) / mix.output_tokens / replica.groups
    often, ranks = steps_with_prompts(replica, due)
    due *= often
    held = [(share, steps) for band in mix.bands for share, steps in _held(replica, band, batch)]
    total = due * sum(share * alike for share, steps in held for _, alike in steps)
    if total <= 1 - PERCENTILE:
        return decode_s
    kv, left = mix.input_tokens + mix.output_tokens / 2, 1 - PERCENTILE
    gaps = [
        (max(decode_s, _gap_s(replica, batch, kv, prompt, ranks)), share * alike)
        for share, steps in held
        for prompt, alike in steps
    ]
    for seconds, share in sorted(gaps, reverse=True):
        left -= share * due / max(1.0, total)
        if left < 0:
            return seconds
    return decode_s


def _held(replica: Replica, band: Band, batch: int) -> Iterator[tuple[float, tuple[tuple[Prompt, int], ...]]]:
    """(share of requests, (the prompts in a gap that one of them lengthens, how many such gaps))."""
    for share, cached in band.cases:
        new = band.tokens - cached
        steps = tuple(prompt_steps(replica, batch, new, cached, 1))
        yield share, steps if replica.mixes else ((Prompt(new, cached), 1),)


def _gap_s(replica: Replica, batch: int, kv: float, prompt: Prompt, ranks: float | None) -> float:
    if replica.mixes:
        return step_of(replica, batch, kv, (prompt,), ranks).seconds
    waited = prefill_terms(replica, prompt.tokens, prompt.prior, prompt.count, ranks).seconds
    return step_of(replica, batch, kv).seconds + waited
