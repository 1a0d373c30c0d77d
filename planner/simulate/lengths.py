"""Lengths drawn from what a workload says of them: its percentiles, its longest and its mean, all at once."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from planner.errors import InputError
from planner.workload_inputs import PERCENTILES, Lengths

SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
STEPS = 10_000


@dataclass(frozen=True, slots=True)
class LengthLaw:
    """A distribution by its quantile function, between knots that it passes through."""

    shares: tuple[float, ...]
    """Of the requests that are at most so long: from 0 to 1."""
    tokens: tuple[float, ...]
    """Length at each share."""
    exponent: float
    """How the function bends between knots, everywhere alike: 1 for straight lines."""

    def at(self, share: float) -> int:
        """Length that this share of requests does not exceed.

            Q(u) = a + (b - a) ((u - s) / (t - s))^e, between the knots (s, a) and (t, b)

        share: u, from 0 to below 1 [1]
        returns: tokens, rounded [token]
        source: linear interpolation of quantiles, bent by the one exponent that gives the mean (law_of)
        """
        place = bisect_right(self.shares, share) - 1
        low, base = self.shares[place], self.tokens[place]
        part = (share - low) / (self.shares[place + 1] - low)
        return int(base + (self.tokens[place + 1] - base) * part**self.exponent + 0.5)

    def at_least(self, tokens: int) -> float:
        """Share of the requests that are at least so long, to one in STEPS."""
        return 1 - bisect_left(range(STEPS), tokens, key=lambda step: self.at(step / STEPS)) / STEPS

    def gini(self) -> float:
        """How unequal lengths are: 0 where all are the same."""
        return gini(self.at)


def law_of(lengths: Lengths, most: int, field: str) -> LengthLaw:
    """The law with the percentiles and the mean that are given.

        e = sum w (b - a) / (m - sum w a) - 1, over pieces of the share w from a to b

    Where they leave a longest or a shortest open, that is what gives the mean with straight lines (e = 1), if it can.

    lengths: mean m, percentiles and longest; a mean alone stands for one length [token]
    most: the longest that is possible where `lengths` gives none [token]
    field: where the lengths are written, for messages [text]
    returns: law [token]
    raises: InputError where no lengths have these percentiles and this mean
    source: the mean of a + (b - a) u^e over u from 0 to 1 is a + (b - a) / (1 + e)
    """
    knots = [(SHARES[name], float(value)) for name in PERCENTILES if (value := getattr(lengths, name)) is not None]
    mean = float(lengths.mean)
    if not knots:
        return LengthLaw((0.0, 1.0), (mean, mean), 1.0)
    if knots[-1][0] < 1:
        before = _straight_mean([(0.0, 1.0), *knots])
        share, last = knots[-1]
        knots.append((1.0, _end(mean - before, 1 - share, last, last, max(float(most), last))))
    share, first = knots[0]
    knots.insert(0, (0.0, _end(mean - _straight_mean(knots), share, first, 1.0, first)))
    shares, tokens = zip(*knots, strict=True)
    return LengthLaw(shares, tokens, _exponent(knots, mean, field))


def _end(missing: float, share: float, known: float, low: float, high: float) -> float:
    """The other end of a straight piece that adds to the mean what is missing, within bounds."""
    return min(max(2 * missing / share - known, low), high)


def _straight_mean(knots: list[tuple[float, float]]) -> float:
    """What the pieces between these knots add to the mean, were they straight."""
    return sum((t - s) * (a + b) / 2 for (s, a), (t, b) in pairwise(knots))


def _exponent(knots: list[tuple[float, float]], mean: float, field: str) -> float:
    least = sum((t - s) * a for (s, a), (t, _) in pairwise(knots))
    spread = sum((t - s) * (b - a) for (s, a), (t, b) in pairwise(knots))
    if spread == 0 and abs(mean - least) < 0.5:
        return 1.0
    if not least < mean < least + spread:
        share, shortest = knots[1][0], knots[0][1]
        raise InputError(
            f"{field}: no lengths have these percentiles and the mean {mean:,.0f}; with them it is over "
            f"{least - share * (shortest - 1):,.0f} and under {least + spread:,.0f}"
        )
    return spread / (mean - least) - 1


def gini(quantile: Callable[[float], float]) -> float:
    """Inequality of a distribution.

        G = sum (2 u - 1) Q(u) / sum Q(u)

    quantile: Q, by the share u of what is at most so large, at the middles of equal steps [1]
    returns: G, from 0 where all are equal to 1 [1]
    source: Gini 1912; 1 - G = E min(X, X') / E X of two independent draws
    """
    shares = [(step + 0.5) / STEPS for step in range(STEPS)]
    values = [quantile(share) for share in shares]
    return sum((2 * u - 1) * value for u, value in zip(shares, values, strict=True)) / sum(values)
