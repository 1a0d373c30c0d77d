"""Three constants of a GPU fitted on a recorded run: factors on the times that its calibration gives."""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from itertools import product
from math import exp, log

from planner.kernel_times import Terms

NAMES = ("memory", "compute", "overhead")
Bounds = tuple[tuple[float, float], ...]
"""Least and most of each."""
ALONE: Bounds = ((0.5, 2.0),) * len(NAMES)
"""A factor beyond these is no property of a GPU: it would hide that something else is wrong."""
ACROSS: Bounds = (*ALONE[:2], (0.25, 10.0))
"""Of several GPUs: messages across PCIe take ten times as long on some hosts as on others."""
SLOPE_STEP = 0.05
"""Of a factor, to see how errors change with it."""
FIRST_STEP, LAST_STEP = 0.04, 0.01
"""Of a factor, from the first round of the last search to its last."""
DAMPING = 1e-3
"""Of the normal equations' diagonal: keeps a factor that changes nothing where it is."""
MOST_ROUNDS = 8
"""Of Gauss-Newton steps."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Factors on a step's times."""

    memory: float = 1.0
    """On weights, cache and activations: what moves between device memory and cores."""
    compute: float = 1.0
    """On arithmetic."""
    overhead: float = 1.0
    """On what depends on neither: launches, chains, and messages between devices."""

    def seconds(self, terms: Terms) -> float:
        """Kernels' time.

            m (weights + kv + activations) + c compute + o (communication + launch)

        terms: as the calibration prices them [s]
        returns: time [s]
        source: the terms of a roofline (Williams et al. 2009, doi:10.1145/1498765.1498785), each with its own error
        """
        moved = terms.weights + terms.kv + terms.activations
        return self.memory * moved + self.compute * terms.compute + self.overhead * (terms.communication + terms.launch)


MOVES = sorted(product((0, 1, -1), repeat=len(NAMES)), key=lambda move: sum(map(abs, move)))[1:]
"""Factors to move up or down at once: one first, then two, then all."""
Residuals = Callable[[Factors], Sequence[float]]
"""Of a replay with these factors: the logarithm of each figure's simulated over its measured value."""


class _Tries:
    """Replays, each done once, and no more than there may be."""

    def __init__(
        self, residuals: Residuals, most: int, progress: Callable[[int, int], None] | None, bounds: Bounds
    ) -> None:
        self.residuals, self.most, self.progress, self.bounds = residuals, most, progress, bounds
        self.done: dict[Factors, Sequence[float]] = {}

    @property
    def left(self) -> int:
        """Replays that may still be done."""
        return self.most - len(self.done)

    def of(self, factors: Factors) -> Sequence[float]:
        """The residuals with these factors."""
        if factors not in self.done:
            self.done[factors] = self.residuals(factors)
            if self.progress:
                self.progress(len(self.done), self.most)
        return self.done[factors]

    def error(self, factors: Factors) -> float:
        """Mean absolute error, as a share."""
        found = self.of(factors)
        return sum(abs(exp(each) - 1) for each in found) / len(found)


def fit(
    residuals: Residuals, most: int, progress: Callable[[int, int], None] | None = None, bounds: Bounds = ALONE
) -> Factors:
    """The factors of least mean absolute error: by Gauss-Newton steps, then by small moves while they help.

    most: replays
    assumes: the error has one valley; the search is deterministic and starts from the calibration itself
    source: Gauss-Newton with Levenberg's damping; pattern search (Hooke and Jeeves 1961, doi:10.1145/321062.321069)
    """
    tries = _Tries(residuals, most, progress, bounds)
    best = Factors()
    tries.of(best)
    for _ in range(MOST_ROUNDS):
        if tries.left < len(NAMES) + 2:
            break
        steps = _newton_step(best, tries)
        each = min((_scaled(best, [share * step for step in steps], bounds) for share in (1.0, 0.5)), key=tries.error)
        if tries.error(each) >= tries.error(best):
            break
        best = each
    return _polished(best, tries)


def _newton_step(at: Factors, tries: _Tries) -> list[float]:
    """Changes of the factors' logarithms that bring the sum of squared residuals, taken as linear, to its least."""
    width = log(1 + SLOPE_STEP)
    base = tries.of(at)
    slopes = []
    for place in range(len(NAMES)):
        way = -1 if astuple(at)[place] * (1 + SLOPE_STEP) > tries.bounds[place][1] else 1
        logs = [way * width * (place == other) for other in range(len(NAMES))]
        moved = tries.of(_scaled(at, logs, tries.bounds))
        slopes.append([(after - before) / (way * width) for after, before in zip(moved, base, strict=True)])
    rows = [[_dot(a, b) for b in slopes] + [-_dot(a, base)] for a in slopes]
    for place, row in enumerate(rows):
        row[place] += DAMPING * sum(rows[i][i] for i in range(len(NAMES))) + 1e-12
    return _solved(rows)


def _solved(rows: list[list[float]]) -> list[float]:
    """x of A x = b, rows of A each with their b; A is symmetric and positive definite, so that no pivot is 0."""
    for place, row in enumerate(rows):
        for other in rows[place + 1 :]:
            share = other[place] / row[place]
            other[:] = [b - share * a for a, b in zip(row, other, strict=True)]
    found: list[float] = []
    for row in reversed(rows):
        found.insert(0, (row[-1] - _dot(row[len(rows) - len(found) : -1], found)) / row[len(rows) - len(found) - 1])
    return found


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _polished(best: Factors, tries: _Tries) -> Factors:
    """Factors moved by ever smaller steps, one before several, while that helps."""
    step = FIRST_STEP
    while step >= LAST_STEP and tries.left > 0:
        for move in MOVES:
            each = _scaled(best, [way * log(1 + step) for way in move], tries.bounds)
            if tries.left > 0 and tries.error(each) < tries.error(best):
                best = each
                break
        else:
            step /= 2
    return best


def _scaled(factors: Factors, logs: Sequence[float], bounds: Bounds) -> Factors:
    """Each factor times the exponential, within the bounds."""
    each = zip(astuple(factors), logs, bounds, strict=True)
    return Factors(*(min(most, max(least, at * exp(by))) for at, by, (least, most) in each))
