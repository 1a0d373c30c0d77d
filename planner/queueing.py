"""Waiting and concurrency in closed form: how many requests are active at once, and how long one waits."""

from dataclasses import dataclass
from math import ceil, exp, floor, log, sqrt
from statistics import NormalDist

EXACT_POISSON = 500.0
"""Means up to this are summed term by term; above, the normal law differs by less than one request."""

EXACT_SERVERS = 20_000
"""Up to so many, Erlang C is summed server by server; above, its limit differs by less than 0.001."""

MOST_DEVIATIONS = 30.0
"""Of a normal law: what lies beyond is nothing."""

PRECISION = 1e-7
"""Relative, of a quantile's time: finer than any digit shown."""


def concurrency_quantile(mean: float, quantile: float, burstiness: float = 1.0) -> int:
    """Requests active at once that are not exceeded at this share of times.

        least n with P(Poisson(a) <= n) >= q;  with bursts, or many: ceil(a + x sqrt(a z))

    mean: a, requests active on average [1]
    quantile: q, such as 0.99 [1]
    burstiness: z, variance over mean of their number [1]
    returns: requests [1]
    assumes: nothing queues (M/G/infinity): their number is Poisson whatever the law of the times
    source: Whitt 1992, Management Science 38(5), 708-723 (peakedness); x is the normal quantile
    """
    if burstiness != 1.0 or mean > EXACT_POISSON:
        return max(1, ceil(mean + NormalDist().inv_cdf(quantile) * sqrt(mean * burstiness)))
    term = total = exp(-mean)
    count = 0
    while total < quantile:
        count += 1
        term *= mean / count
        total += term
    return max(1, count)


def burstiness_of_part(burstiness: float, parts: int) -> float:
    """Of each part of a stream that is divided at random.

        z' = 1 + (z - 1) / k

    burstiness: z, of the whole: variance over mean of the number active [1]
    parts: k, of equal size [1]
    returns: the same of each part [1]
    assumes: each request goes to any of the parts, whatever the others do
    source: binomial thinning of a number of mean m and variance z m: m / k, and m / k + (z - 1) m / k^2
    """
    return 1 + (burstiness - 1) / parts


def erlang_c(servers: float, load: float) -> float:
    """Probability that an arrival finds every server busy.

        B(0) = 1, B(n) = a B(n-1) / (n + a B(n-1));  C = B / (1 - (a / c)(1 - B))
        of many: C = 1 / (1 + b Phi(b) / phi(b)), b = (c - a) / sqrt(a)

    servers: c; between whole numbers, B is interpolated [1]
    load: a, arrival rate x mean time in service [1]
    returns: probability; 1 where a is at least c [1]
    assumes: Poisson arrivals, exponential times
    source: Erlang 1917; the recurrence of Jagerman 1974, BSTJ 53(3); Halfin and Whitt 1981, Operations Research 29(3)
    """
    if load >= servers:
        return 1.0
    if servers > EXACT_SERVERS:
        return _erlang_c_of_many(servers, load)
    blocked, whole = 1.0, floor(servers)
    for n in range(1, whole + 1):
        blocked = load * blocked / (n + load * blocked)
    after = load * blocked / (whole + 1 + load * blocked)
    part = servers - whole
    blocked = blocked * (1 - part) + after * part
    return blocked / (1 - load / servers * (1 - blocked))


def _erlang_c_of_many(servers: float, load: float) -> float:
    spare = min((servers - load) / sqrt(load), MOST_DEVIATIONS)
    normal = NormalDist()
    return 1 / (1 + spare * normal.cdf(spare) / normal.pdf(spare))


@dataclass(frozen=True, slots=True)
class Wait:
    """A time to wait: nothing with some probability, else exponential."""

    probability: float
    """That one waits at all [1]."""
    mean_if_any_s: float

    @property
    def mean_s(self) -> float:
        """Mean over all [s]."""
        return self.probability * self.mean_if_any_s

    def quantile_s(self, share: float) -> float:
        """The wait that this share of requests does not exceed [s]."""
        over = 1 - share
        return self.mean_if_any_s * log(self.probability / over) if self.probability > over else 0.0


NO_WAIT = Wait(0.0, 0.0)


def slot_wait(slots: int, load: float, hold_s: float, burstiness: float = 1.0) -> Wait:
    """Waiting for one of a replica's slots.

        P = C(s / z, a / z);  mean if any = T z / (s - a)

    slots: s, requests that run at once [1]
    load: a, requests that the arrivals would keep active [1]
    hold_s: T, for which one holds its slot [s]
    burstiness: z, variance over mean of the number active [1]
    returns: wait [s]
    raises: ValueError where the load is not below the slots: the queue grows without end
    assumes: first come, first served
    source: Erlang C; bursts by Hayward's approximation (Fredericks 1980, BSTJ 59(6), 807-827)
    """
    if load >= slots:
        raise ValueError("the load must be below the slots")
    return Wait(erlang_c(slots / burstiness, load / burstiness), hold_s * burstiness / (slots - load))


def server_wait(busy: float, service_s: float, variation: float = 0.0, burstiness: float = 1.0) -> Wait:
    """Waiting for a single server: a prompt behind other prompts.

        P = rho;  mean if any = m (z + v) / (2 (1 - rho))

    busy: rho, share of the time that the server works [1]
    service_s: m, mean time in service [s]
    variation: v, squared coefficient of variation of that time [1]
    burstiness: z, of arrivals [1]
    returns: wait [s]
    assumes: the wait's tail is exponential
    source: Pollaczek-Khinchine for z = 1; Kingman 1961, doi:10.1017/S0305004100036094, for bursts
    """
    return Wait(busy, service_s * (burstiness + variation) / (2 * (1 - busy)))


def both_within(first: Wait, second: Wait, seconds: float) -> float:
    """Probability that two independent waits take together no longer than this.

        sum over which of them are zero; of two exponentials a, b: 1 - (a e^(-x/a) - b e^(-x/b)) / (a - b)

    first, second: the waits [s]
    seconds: x [s]
    returns: probability; 0 below zero [1]
    source: the hypoexponential law
    """
    if seconds < 0:
        return 0.0
    if second.probability == 0:
        return 1 - first.probability * (1 - _within(first.mean_if_any_s, seconds))
    p, q, a, b = first.probability, second.probability, first.mean_if_any_s, second.mean_if_any_s
    return (
        (1 - p) * (1 - q)
        + p * (1 - q) * _within(a, seconds)
        + q * (1 - p) * _within(b, seconds)
        + p * q * (_sum_within(a, b, seconds))
    )


def wait_quantile_s(first: Wait, second: Wait, share: float) -> float:
    """What this share of requests waits at most in both together, by bisection [s]."""
    low, high = 0.0, first.quantile_s(1 - (1 - share) / 2) + second.quantile_s(1 - (1 - share) / 2)
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if both_within(first, second, middle) >= share else (middle, high)
    return high


def _within(mean: float, seconds: float) -> float:
    return 1 - exp(-seconds / mean) if mean > 0 else 1.0


def _sum_within(a: float, b: float, seconds: float) -> float:
    if a <= 0 or b <= 0:
        return _within(max(a, b), seconds)
    if abs(a - b) < 1e-6 * max(a, b):
        return 1 - (1 + seconds / a) * exp(-seconds / a)
    return 1 - (a * exp(-seconds / a) - b * exp(-seconds / b)) / (a - b)
