"""Three constants of a GPU fitted on a recorded run: factors on the times that its calibration gives."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from planner.kernel_times import Terms

LEAST, MOST = 0.5, 2.0
"""A factor beyond these is no property of a GPU: it would hide that something else is wrong."""
FIRST_STEP, LAST_STEP = 0.2, 0.01
"""Of a factor, from the first round of the search to the last."""


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


NAMES = ("memory", "compute", "overhead")
MOVES = sorted(product((0, 1, -1), repeat=len(NAMES)), key=lambda move: sum(map(abs, move)))[1:]
"""Factors to move up or down at once: one first, then two, then all."""


def fit(error: Callable[[Factors], float], tries: int, progress: Callable[[int, int], None] | None = None) -> Factors:
    """The factors of least error: they are moved while that helps, one before several, in ever smaller steps.

    error: of a replay with these factors
    tries: the most replays
    assumes: the error has one valley; the search is deterministic and starts from the calibration itself
    source: coordinate search (Hooke and Jeeves 1961, doi:10.1145/321062.321069)
    """
    best = Factors()
    tried = {best: error(best)}
    step = FIRST_STEP
    while step >= LAST_STEP and len(tried) < tries:
        for move in MOVES:
            each = _moved(best, move, 1 + step)
            if each not in tried:
                tried[each] = error(each)
                if progress:
                    progress(len(tried), tries)
            if tried[each] < tried[best]:
                best = each
                break
        else:
            step /= 2
    return best


def _moved(factors: Factors, move: tuple[int, ...], by: float) -> Factors:
    """Each factor up, down or left as it is, within the bounds."""
    moved = (min(MOST, max(LEAST, getattr(factors, name) * by**way)) for name, way in zip(NAMES, move, strict=True))
    return Factors(*moved)
