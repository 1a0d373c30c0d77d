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

TOLERANCE = 1e-6
"""Of a replica: an excess that is a rounding error and takes no further one."""

SOLVER_TOLERANCE = 1e-9
"""Of the solver's rows and whole numbers."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """Replicas of each type, and the share of each bucket's requests that they take."""

    replicas: tuple[int, ...]
    shares: tuple[tuple[float, ...], ...]
    """By bucket, then by type; each bucket's sum to 1."""


def load_of(rate: float, capacity: float) -> float:
    """Replicas that a bucket keeps busy.

        max(r / k, LEAST_LOAD)

    rate: r, requests that arrive [1/s]
    capacity: k, requests that one replica serves alone [1/s]
    returns: replicas [1]
    source: definition
    """
    return max(rate / capacity, LEAST_LOAD)


def cheapest_mix(
    tables: Sequence[Sequence[tuple[int, Fraction]]],
    rates: Sequence[float],
    capacities: Sequence[Sequence[float]],
    types: int,
) -> Mixed:
    """The replicas that serve all buckets at the least cost.

        min sum over g, n of C_g(n) z_gn;  sum over n of z_gn = 1;  sum over g of x_bg = 1;
        sum over b of x_bg l_bg <= sum over n of n z_gn;  sum over g of z_g0 >= G - m;  z_gn 0 or 1

    tables: of each type, n replicas that it may have, 0 among them [1], and C, what so many cost [USD]
    rates: r, requests of each bucket that arrive [1/s]
    capacities: k, by bucket and type, requests that one replica of it serves alone; 0: none; l = load_of(r, k) [1/s]
    types: m, types of which there are replicas, of G offered, at most [1]
    returns: n replicas of each type, x shares [1]
    raises: InputError where no type serves some bucket, or the solver finds no optimum
    assumes: a replica that serves several buckets gives each a share of its time
    source: Griggs et al. 2024, Melange, arXiv:2404.14527, with a table for the price of a replica; solved by HiGHS
        (Huangfu and Hall 2018, doi:10.1007/s12532-017-0130-5)
    """
    for bucket, of_types in enumerate(capacities):
        if not any(capacity > 0 for capacity in of_types):
            raise InputError(f"no type serves the requests of bucket {bucket + 1}")
    solver = _solver()
    counts = [[_whole(solver, float(usd)) for _, usd in table] for table in tables]
    shares = [[_share(solver) if capacity > 0 else None for capacity in of_types] for of_types in capacities]
    for of_bucket in shares:
        _sum_to_one(solver, [share for share in of_bucket if share is not None])
    for kind, (table, chosen) in enumerate(zip(tables, counts, strict=True)):
        _sum_to_one(solver, chosen)
        work = [
            (share, load_of(rate, of_rates[kind]))
            for of_types, of_rates, rate in zip(shares, capacities, rates, strict=True)
            if (share := of_types[kind]) is not None
        ]
        _at_most(solver, [*work, *((at, -float(count)) for (count, _), at in zip(table, chosen, strict=True))], 0)
    none = [(of_type[0], -1.0) for of_type in counts]
    _at_most(solver, none, types - len(tables))
    solver.run()
    status = solver.modelStatusToString(solver.getModelStatus())
    if status != "Optimal":
        raise InputError(f"a mix of these is not found: the solver ends with {status!r}")
    found = solver.getSolution().col_value
    return Mixed(
        tuple(table[_chosen(found, of_type)][0] for table, of_type in zip(tables, counts, strict=True)),
        tuple(
            tuple(0.0 if share is None else round(found[share], SHARE_DIGITS) for share in of_types)
            for of_types in shares
        ),
    )


def _chosen(found: Sequence[float], of_type: Sequence[int]) -> int:
    """Which row of a type's table the solver took."""
    return max(range(len(of_type)), key=lambda row: found[of_type[row]])


def _whole(solver: Any, cost: float) -> int:
    """A variable that is 0 or 1, at a cost."""
    place = _share(solver)
    solver.changeColCost(place, cost)
    solver.changeColIntegrality(place, _highs().HighsVarType.kInteger)
    return place


def _share(solver: Any) -> int:
    """A variable from 0 to 1."""
    place: int = solver.getNumCol()
    solver.addVar(0.0, 1.0)
    return place


def _sum_to_one(solver: Any, places: Sequence[int]) -> None:
    solver.addRow(1.0, 1.0, len(places), list(places), [1.0] * len(places))


def _at_most(solver: Any, terms: Sequence[tuple[int, float]], most: int) -> None:
    places, factors = zip(*terms, strict=True)
    solver.addRow(-_highs().kHighsInf, float(most), len(terms), list(places), list(factors))


def check_solver() -> None:
    """Say at once where the solver is missing.

    raises: MachineError with what installs it
    """
    if find_spec("highspy") is None:
        raise MachineError("--mix needs highspy: pip install 'llm-serving-planner[mix]'")


def _highs() -> Any:
    import highspy  # heavy, with numpy: only a mix needs it

    return highspy


def _solver() -> Any:
    solver = _highs().Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", 0.0)
    solver.setOptionValue("mip_feasibility_tolerance", SOLVER_TOLERANCE)
    solver.setOptionValue("primal_feasibility_tolerance", SOLVER_TOLERANCE)
    solver.setOptionValue("threads", 1)  # the same answer on every machine
    return solver
