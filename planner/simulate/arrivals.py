"""Requests made from a workload and a seed: when they come and how long they are.

The same seed gives the same requests to the last bit: only `random.Random` is drawn from, and times are whole
nanoseconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, repeat
from random import Random

from planner.errors import InputError
from planner.simulate.lengths import LengthLaw, law_of
from planner.simulate.requests import MOST_REQUESTS, RATES, Request, check
from planner.units import counted
from planner.workload_inputs import Workload

NS = 1_000_000_000
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

    def __post_init__(self) -> None:
        check("requests", self.count, 1, MOST_REQUESTS)

    @property
    def chunk_tokens(self) -> int:
        """The shared prefix is one chunk."""
        return self.shared_tokens

    def requests(self) -> Iterator[Request]:
        """From the first, at 0 s. Times, lengths and prefixes are drawn apart, so that one can change alone."""
        times = repeat(0.0) if self.arrivals is None else self.arrivals.times_s(self._random("times"))
        given, produced, shared = (self._random(name).random for name in ("input", "output", "prefix"))
        for time_s in islice(times, self.count):
            prompt = min(self.input.at(given()), self.context_tokens - 1)
            answer = min(self.output.at(produced()), self.context_tokens - prompt)
            prefix = (0,) if shared() < self.shared_share else ()
            yield Request(time_s, prompt, answer, prefix)

    def _random(self, name: str) -> Random:
        return Random(f"{self.seed} {name}")  # noqa: S311 - no secret

    def facts(self) -> tuple[str, ...]:
        """What a report says of it."""
        when = f"{self.arrivals.law} arrivals at {self.arrivals.rate_per_s:.6g} per s, " if self.arrivals else ""
        prefix = f", {self.shared_share:.0%} begin with the same {self.shared_tokens:,}" if self.shared_tokens else ""
        return (
            f"{counted(self.count, 'request')} of {self.name}: {when}lengths by its percentiles and means, input and "
            f"output independent{prefix}; seed {self.seed}",
        )


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
