"""Which replicas of which type serve which share of each size of request cheapest: an integer program."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

from planner.errors import InputError, MachineError

SHARE_DIGITS = 9
"""Of a share: what the solver returns beyond is its tolerance."""


LEAST_LOAD = 1e-4
"""Of a replica, by all requests of a bucket: less is counted as this, being lost in the solver's tolerance."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """Replicas of each type, and the share of each bucket's requests that they take."""

    replicas: tuple[int, ...]
    shares: tuple[tuple[float, ...], ...]
    """By bucket, then by type; each bucket's sum to 1."""


def cheapest_mix(
    usd: Sequence[Fraction], rates: Sequence[float], capacities: Sequence[Sequence[float]], gap: float = 0.0
) -> Mixed:
    """The replicas that serve all buckets at the least cost.

        min sum over g of c_g n_g;  sum over g of x_bg = 1;  sum over b of x_bg r_b / k_bg <= n_g;  n_g integer

    usd: c, of one replica of each type [USD/h or any other unit of money]
    rates: r, requests of each bucket that arrive [1/s]
    capacities: k, by bucket and type, requests that one replica of it serves alone; 0: none [1/s]
    gap: of the optimum, at which the solver may stop [1]
    returns: n replicas of each type, x shares [1]
    raises: InputError where no type serves some bucket, or the solver finds no optimum
    assumes: a replica that serves several buckets gives each a share of its time
    source: Griggs et al. 2024, Melange, arXiv:2404.14527; solved by HiGHS (Huangfu and Hall 2018,
        doi:10.1007/s12532-017-0130-5)
    """
    for bucket, of_types in enumerate(capacities):
        if not any(capacity > 0 for capacity in of_types):
            raise InputError(f"no type serves the requests of bucket {bucket + 1}")
    solver = _solver(gap)
    counts = [solver.addIntegral(lb=0) for _ in usd]
    shares = [[solver.addVariable(0, 1 if capacity > 0 else 0) for capacity in of_types] for of_types in capacities]
    for of_types in shares:
        solver.addConstr(sum(of_types[1:], start=of_types[0]) == 1)
    for kind, count in enumerate(counts):
        work = [
            (of_types[kind], max(rate / of_rates[kind], LEAST_LOAD))
            for of_types, of_rates, rate in zip(shares, capacities, rates, strict=True)
            if of_rates[kind] > 0
        ]
        if work:
            used = sum((share * load for share, load in work[1:]), start=work[0][0] * work[0][1])
            solver.addConstr(used <= count)
    terms = [count * float(price) for count, price in zip(counts, usd, strict=True)]
    solver.minimize(sum(terms[1:], start=terms[0]))
    status = solver.modelStatusToString(solver.getModelStatus())
    if status != "Optimal":
        raise InputError(f"a mix of these is not found: the solver ends with {status!r}")
    found = [round(solver.val(count)) for count in counts]
    return Mixed(
        tuple(found),
        tuple(tuple(round(solver.val(share), SHARE_DIGITS) for share in of_types) for of_types in shares),
    )


def check_solver() -> None:
    """Say at once where the solver is missing.

    raises: MachineError with what installs it
    """
    if find_spec("highspy") is None:
        raise MachineError("--mix needs highspy: pip install 'llm-serving-planner[mix]'")


def _solver(gap: float) -> Any:
    import highspy  # heavy, with numpy: only a mix needs it

    solver = highspy.Highs()  # type: ignore[no-untyped-call]  # highspy has no stubs
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", gap)
    solver.setOptionValue("threads", 1)  # the same answer on every machine
    return solver
