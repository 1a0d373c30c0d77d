"""Requests made from a workload and a seed: when they come and how long they are.

The same seed gives the same requests to the last bit: only `random.Random` is drawn from, and times are whole
nanoseconds.
"""

from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate, islice, repeat
from random import Random

from planner.errors import InputError
from planner.simulate.lengths import LengthLaw, law_of
from planner.simulate.loads import MOST_REQUESTS, RATES, check
from planner.simulate.requests import Request
from planner.units import counted
from planner.workload_inputs import Tenants, Workload

NS = 1_000_000_000
PREFIX_CHUNK_TOKENS = 16
"""Of each hash id of a shared prefix: most engines' blocks are whole multiples of it."""
MOST_PREFIXES_KEPT = 256
MOST_VARIATION = 100_000
"""Of gaps: beyond, nearly all requests would come at one moment."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests that come independently of the service, one after the other."""

    rate_per_s: float
    """On average [1/s]."""
    variation: float = 1.0
    """Squared coefficient of variation of the gaps: 0 for a fixed gap, 1 for Poisson arrivals, else gamma gaps."""

    def __post_init__(self) -> None:
        check("rate (1/s)", self.rate_per_s, *RATES)
        check("squared variation of the gaps", self.variation, 0, MOST_VARIATION)

    @property
    def law(self) -> str:
        """What the gaps are called."""
        named = {0.0: "fixed gaps", 1.0: "Poisson"}
        return named.get(self.variation, f"gamma gaps of squared variation {self.variation:.4g}")

    def times_s(self, random: Random) -> Iterator[float]:
        """Without end, from 0 [s]."""
        at_ns, mean_ns = 0, NS / self.rate_per_s
        for gap in self._gaps(random):
            yield at_ns / NS
            at_ns += int(gap * mean_ns + 0.5)

    def _gaps(self, random: Random) -> Iterator[float]:
        """Of mean 1."""
        if self.variation == 0:
            return repeat(1.0)
        if self.variation == 1:
            return iter(lambda: random.expovariate(1.0), None)
        shape = 1 / self.variation
        return iter(lambda: random.gammavariate(shape, self.variation), None)


@dataclass(frozen=True, slots=True)
class Generated:
    """A load that a seed makes: independent lengths, and a prefix that a part of the prompts begins with."""

    name: str
    count: int
    seed: int
    input: LengthLaw
    output: LengthLaw
    context_tokens: int
    """Most of input and output together; a longer draw is cut."""
    arrivals: Arrivals | None = None
    """Absent: all at 0 s, for a closed loop."""
    shared_tokens: int = 0
    shared_share: float = 0.0
    tenants: Tenants | None = None
    """Who asks, and with which of several prefixes; absent: one tenant, with one prefix."""

    def __post_init__(self) -> None:
        check("requests", self.count, 1, MOST_REQUESTS)

    @property
    def chunk_tokens(self) -> int:
        """Of the shared prefix, so short that a prompt that is shorter than it shares nearly all."""
        return PREFIX_CHUNK_TOKENS if self.shared_tokens else 0

    def requests(self) -> Iterator[Request]:
        """From the first, at 0 s. Times, lengths and prefixes are drawn apart, so that one can change alone."""
        times = repeat(0.0) if self.arrivals is None else self.arrivals.times_s(self._random("times"))
        given, produced, shared = (self._random(name).random for name in ("input", "output", "prefix"))
        whole, part = self._begin_shared()
        prefixes, scopes = self._prefixes(), self._scopes()
        for time_s in islice(times, self.count):
            prompt = min(self.input.at(given()), self.context_tokens - 1)
            answer = min(self.output.at(produced()), self.context_tokens - prompt)
            ids = next(prefixes) if shared() < (whole if prompt >= self.shared_tokens else part) else ()
            yield Request(time_s, prompt, answer, ids[: -(-prompt // PREFIX_CHUNK_TOKENS)], next(scopes))

    def _begin_shared(self) -> tuple[float, float]:
        """Shares that begin with a prefix: of the prompts at least as long as it, and of the shorter ones.

        The longer ones come first, since a prompt that begins with a prefix is longer than it.
        """
        longer = self.input.at_least(self.shared_tokens)
        if longer >= self.shared_share:
            return self.shared_share / (longer or 1.0), 0.0
        return 1.0, (self.shared_share - longer) / (1 - longer)

    def _prefixes(self) -> Iterator[tuple[int, ...]]:
        """Hash ids of the prefix that each request in turn begins with, if it begins with one."""
        chunks = self.shared_tokens // PREFIX_CHUNK_TOKENS
        kept = lru_cache(MOST_PREFIXES_KEPT)(lambda which: tuple(range(which * chunks, (which + 1) * chunks)))
        tenants = self.tenants
        drawn = (
            _drawn(self._random("which prefix"), tenants.prefixes, tenants.prefix_popularity) if tenants else repeat(0)
        )
        return map(kept, drawn)

    def _scopes(self) -> Iterator[str]:
        """The scope of each request in turn: its tenant where tenants share no cache."""
        tenants = self.tenants
        if tenants is None or tenants.cache_scope == "shared":
            return repeat("")
        return (f"tenant {i + 1}" for i in _drawn(self._random("tenant"), tenants.count, tenants.popularity))

    def _random(self, name: str) -> Random:
        return Random(f"{self.seed} {name}")  # noqa: S311 - no secret

    def facts(self) -> tuple[str, ...]:
        """What a report says of it."""
        when = f"{self.arrivals.law} arrivals at {self.arrivals.rate_per_s:.6g} per s, " if self.arrivals else ""
        prefix = f", {self.shared_share:.0%} begin with the same {self.shared_tokens:,}" if self.shared_tokens else ""
        return (
            f"{counted(self.count, 'request')} of {self.name}: {when}lengths by its percentiles and means, input and "
            f"output independent{prefix}{self._who()}; seed {self.seed}",
        )

    def _who(self) -> str:
        tenants = self.tenants
        if tenants is None:
            return ""
        of_several = "" if tenants.prefixes == 1 else f" or with another of {tenants.prefixes:,} prefixes"
        cache = "sharing the cache" if tenants.cache_scope == "shared" else "each with a scope of the cache"
        return f"{of_several}, {counted(tenants.count, 'tenant')} {cache}"


def _drawn(random: Random, count: int, weights: tuple[Decimal, ...] | None) -> Iterator[int]:
    """Numbers below a count, each as often as it weighs, without end."""
    if weights is None:
        return (int(random.random() * count) for _ in repeat(None))
    sums = list(accumulate(map(float, weights)))
    return (bisect(sums, random.random() * sums[-1]) for _ in repeat(None))


def generated(workload: Workload, count: int, seed: int, arrivals: Arrivals | None) -> Generated:
    """A load as a workload describes it.

    count: requests [1]
    arrivals: absent for a closed loop
    raises: InputError where the workload does not say how long requests are
    """
    given, produced = workload.input_tokens, workload.output_tokens
    if given is None or produced is None:
        raise InputError(f"workload {workload.name}: input_tokens and output_tokens are needed to make requests")
    prefix = workload.prefix
    return Generated(
        workload.name,
        count,
        seed,
        law_of(given, max(1, workload.context_tokens - produced.mean), f"workload {workload.name}: input_tokens"),
        law_of(produced, max(1, workload.context_tokens - given.mean), f"workload {workload.name}: output_tokens"),
        max(2, workload.context_tokens),
        arrivals,
        prefix.shared_tokens if prefix else 0,
        float(prefix.request_share) if prefix else 0.0,
        workload.tenants,
    )


def gap_variation(burstiness: float, inequality: float) -> float:
    """Squared variation of the gaps between requests whose number active at once has this burstiness.

        c2 = 1 + (z - 1) / (1 - G), at least 0

    burstiness: z, variance over mean of the number active, were nothing to queue [1]
    inequality: G, Gini coefficient of the times that requests take [1]
    returns: c2, variance over squared mean of the gaps [1]
    assumes: renewal arrivals, many active; z = c2 where all take the same time
    source: Whitt 1992, Management Science 38(5), 708-723: z = 1 + (c2 - 1) integral (1 - F(t))^2 dt / E T, and that
        integral over E T is 1 - G
    """
    return max(0.0, 1 + (burstiness - 1) / (1 - inequality))


def arrivals_of(workload: Workload, rate_per_s: float) -> Arrivals:
    """As bursty as the workload says, each request taking a time in proportion to its output."""
    burstiness = float(workload.burstiness)
    if burstiness == 1 or workload.output_tokens is None:
        return Arrivals(rate_per_s)
    output = law_of(workload.output_tokens, workload.context_tokens, f"workload {workload.name}: output_tokens")
    return Arrivals(rate_per_s, gap_variation(burstiness, output.gini()))
