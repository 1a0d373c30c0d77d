"""How many experts a batch touches, and how many (token, expert) pairs the fullest rank computes."""

import math
import re
from functools import lru_cache

POWER_LAW = re.compile(r"power_law_(\d+(?:\.\d+)?)")
LARGEST_SHARE = 0.8
"""Of the tokens, that the most popular expert is drawn up to."""
ROUNDS = 8
"""Of handing on what an expert cannot take, since no token chooses it twice."""


@lru_cache(maxsize=65536)
def routed(tokens: int, topk: int, experts: int, ep: int, distribution: str) -> tuple[float, float]:
    """Experts touched and pairs computed on the fullest of the expert parallel ranks.

        balanced: E = min(X, M k) / ep, N = M k / ep
        power law: loads l_i from the law's quantiles; E = sum of 1 - exp(-l_i), N = sum of l_i over the rank's experts,
        which are the most loaded expert and average others

    tokens: M, of all ranks together [tokens]
    topk: k, experts of one token [1]
    experts: X, of the layer [1]
    ep: expert parallel ranks [1]
    distribution: "balanced" or "power_law_A", A the exponent [1]
    returns: (E, N) [1]
    assumes: at least one expert of the rank is touched
    source: the workloads of NVIDIA aiconfigurator-core 0.12.0's MoE tables
    """
    exponent = POWER_LAW.fullmatch(distribution)
    pairs, own = tokens * topk, max(1, experts // ep)
    if exponent is None:
        return max(1.0, min(experts, pairs) / ep), pairs / ep
    loads = power_law_loads(tokens, topk, experts, float(exponent[1]))
    touched = [-math.expm1(-load) for load in loads]
    hottest = max(range(experts), key=lambda i: loads[i])
    others = (own - 1) / max(1, experts - 1)
    here = touched[hottest] + (sum(touched) - touched[hottest]) * others
    return max(1.0, min(here, float(pairs))), loads[hottest] + (pairs - loads[hottest]) * others


def power_law_loads(tokens: int, topk: int, experts: int, exponent: float) -> list[float]:
    """Tokens that each expert gets, least popular first: quantiles of x^-A on 1 to 0.8 M, scaled to M k in total."""
    largest = max(tokens * LARGEST_SHARE, 1.0001)
    power = 1 - exponent
    quantiles = [(i + 0.5) / experts for i in range(experts)]
    if abs(power) < 1e-9:
        popularity = [largest**q for q in quantiles]
    else:
        popularity = [((largest**power - 1) * q + 1) ** (1 / power) for q in quantiles]
    total = float(tokens * topk)
    loads = [p * total / sum(popularity) for p in popularity]
    for _ in range(ROUNDS):
        loads = [min(load, float(tokens)) for load in loads]
        free = sum(load for load in loads if load < tokens)
        excess = total - sum(loads)
        if excess <= 1e-9 * total or not free:
            break
        loads = [load * (1 + excess / free) if load < tokens else load for load in loads]
    return [min(load, float(tokens)) for load in loads]
