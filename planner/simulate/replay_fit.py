"""Three constants of a GPU fitted on a recorded run: factors on the times that its calibration gives."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.kernel_times import Terms

LEAST, MOST = 0.5, 2.0
"""A factor beyond these is no property of a GPU: it would hide that something else is wrong."""
FIRST_STEP, LAST_STEP = 0.2, 0.005
"""Of a factor, from the first round of the search to the last."""
MOST_TRIES = 400


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


def fit(error: Callable[[Factors], float], progress: Callable[[int, int], None] | None = None) -> Factors:
    """The factors of least error: one after the other is moved while that helps, in ever smaller steps.

    error: of a replay with these factors
    assumes: the error has one valley; the search is deterministic and starts from the calibration itself
    source: coordinate search (Hooke and Jeeves 1961, doi:10.1145/321062.321069)
    """
    best = Factors()
    tried = {best: error(best)}
    step = FIRST_STEP
    while step >= LAST_STEP and len(tried) < MOST_TRIES:
        before = best
        for name in NAMES:
            for each in (_moved(best, name, 1 + step), _moved(best, name, 1 / (1 + step))):
                if each not in tried:
                    tried[each] = error(each)
                    if progress:
                        progress(len(tried), MOST_TRIES)
                if tried[each] < tried[best]:
                    best = each
        step = step if best != before else step / 2
    return best


def _moved(factors: Factors, name: str, by: float) -> Factors:
    """One factor moved, within the bounds."""
    return replace(factors, **{name: min(MOST, max(LEAST, getattr(factors, name) * by))})
