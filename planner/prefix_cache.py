"""Prefixes in a finite cache of blocks: how long one stays, and how often a request finds its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, fsum, inf

from planner.queueing import PRECISION


@dataclass(frozen=True, slots=True)
class Alike:
    """Prefixes that are asked for equally often."""

    count: int
    per_s: float
    """Requests that begin with one of them, at one cache [1/s]."""


def free_tokens(pool_tokens: int, per_s: float, request_s: float, held_tokens: float) -> float:
    """Tokens of the pool that running requests do not hold with what is their own.

        max(0, M - r W h)

    pool_tokens: M, of one cache [token]
    per_s: r, requests at it [1/s]
    request_s: W, mean time of a request [s]
    held_tokens: h, that a running request holds and shares with no other, on average [token]
    returns: F [token]
    source: Little 1961, doi:10.1287/opre.9.3.383
    """
    return max(0.0, pool_tokens - per_s * request_s * held_tokens)


def characteristic_s(
    prefixes: Sequence[Alike], tokens: int, free: float, own_tokens_per_s: float, request_s: float
) -> float:
    """Time that a prefix stays in the cache after the last request that began with it has ended.

        sum over i of s (1 - exp(-r_i (W + t))) + v t = F

    prefixes: i, each with r_i, requests that begin with it, at one cache [1/s]
    tokens: s, of a prefix [token]
    free: F, of the pool, what running requests do not hold with their own [token]
    own_tokens_per_s: v, tokens that no other request shares and that ended requests leave in the cache [token/s]
    request_s: W, mean time of a request, which holds its prefix [s]
    returns: t [s]; 0 where requests hold all of F, infinite where everything fits for good
    assumes: requests are independent; the least recently used goes first, and a prefix goes whole
    source: Che, Tung and Wang 2002, IEEE JSAC 20(7), 1305-1314, for items all read at once (W = 0, v = 0)
    """

    def held(seconds: float) -> float:
        found = fsum(-each.count * expm1(-each.per_s * (request_s + seconds)) for each in prefixes)
        return tokens * found + own_tokens_per_s * seconds

    if held(0.0) >= free:
        return 0.0
    if not own_tokens_per_s and tokens * sum(each.count for each in prefixes) <= free:
        return inf
    low, high = 0.0, 1.0
    while held(high) < free:
        low, high = high, 2 * high
    while high - low > PRECISION * max(high, PRECISION):
        middle = (low + high) / 2
        low, high = (middle, high) if held(middle) < free else (low, middle)
    return low


def hit_rate(prefixes: Sequence[Alike], stays_s: float) -> float:
    """Share of the requests that begin with a prefix and find it cached.

        sum over i of r_i (1 - exp(-r_i T)) / sum over i of r_i

    prefixes: i, each with r_i, requests that begin with it, at one cache [1/s]
    stays_s: T, from the start of a request until its prefix is evicted, if no other begins with it [s]
    returns: share [1]
    assumes: requests are Poisson
    source: Che, Tung and Wang 2002, IEEE JSAC 20(7), 1305-1314
    """
    asked = fsum(each.count * each.per_s for each in prefixes)
    return fsum(-each.count * each.per_s * expm1(-each.per_s * stays_s) for each in prefixes) / asked
