"""Percentiles of very many values: exact while they fit, from a sketch of bounded error beyond."""

from array import array
from collections import Counter
from collections.abc import Iterable
from math import ceil, exp, floor, fsum, log

from ddsketch import DDSketch

MOST_EXACT = 1_000_000
"""Values that are kept, 8 bytes each; where there are more, all are folded into a sketch, so many at a time."""
RELATIVE_ERROR = 0.005
_STEP = log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
"""Width of the sketch's buckets, in the logarithm of the values."""

GAPS_PER_S = 100_000
"""Gaps between tokens are counted by the 10 us that they lie in."""

EXACT_METHOD = "exact, linear interpolation between the two nearest of the sorted values"
SKETCH_METHOD = f"DDSketch of all values, within {RELATIVE_ERROR:.1%} of the exact percentile"


class Quantiles:
    """Percentiles and mean of values of at least 0, which are added one by one; memory stays flat."""

    __slots__ = ("_folded", "_folded_sum", "_sketch", "_sorted", "_values")

    def __init__(self) -> None:
        self._values = array("d")
        self._sorted = 0  # how many of them were there when they were last sorted
        self._sketch = DDSketch(RELATIVE_ERROR)
        self._folded = 0
        self._folded_sum = 0.0

    def add(self, value: float) -> None:
        """Add one."""
        self._values.append(value)
        if len(self._values) > MOST_EXACT:
            self._fold()

    def add_many(self, values: Iterable[float]) -> None:
        """Add all of a batch."""
        self._values.extend(values)
        if len(self._values) > MOST_EXACT:
            self._fold()

    def merge(self, other: "Quantiles") -> None:
        """Add all that another was given."""
        self.add_many(other._values)
        if other._folded:
            self._fold()
            self._sketch.merge(other._sketch)
            self._folded += other._folded
            self._folded_sum += other._folded_sum

    @property
    def count(self) -> int:
        """Values added."""
        return self._folded + len(self._values)

    @property
    def mean(self) -> float:
        """Of all, exact."""
        return (self._folded_sum + fsum(self._values)) / self.count

    @property
    def method(self) -> str:
        """How percentiles are made, and how far off they may be."""
        return SKETCH_METHOD if self._folded else EXACT_METHOD

    def at(self, share: float) -> float:
        """The value that this share of all does not exceed.

        source: numpy.percentile's default, `linear` (Hyndman and Fan 1996, type 7); Masson, Rim and Lee 2019, DDSketch,
            PVLDB 12(12), 2195-2205
        """
        if not self.count or not 0 <= share <= 1:
            raise ValueError("a share from 0 to 1 of at least one value is needed")
        if self._folded:
            self._fold()
            return self._sketch.get_quantile_value(share) or 0.0
        if self._sorted < len(self._values):
            self._values = array("d", sorted(self._values))
            self._sorted = len(self._values)
        place = share * (len(self._values) - 1)
        low = self._values[floor(place)]
        return low + (self._values[ceil(place)] - low) * (place - floor(place))

    def _fold(self) -> None:
        """Move the values into the sketch, a bucket at a time, since it takes one much slower than a list does."""
        buckets = Counter([ceil(log(value) / _STEP) if value > 0 else None for value in self._values])
        for bucket, count in buckets.items():
            self._sketch.add(0.0 if bucket is None else exp((bucket - 0.5) * _STEP), count)
        self._folded += len(self._values)
        self._folded_sum += fsum(self._values)
        self._values = array("d")
        self._sorted = 0


class Gaps:
    """Times between tokens, of all requests together: how many lie in which part of a second."""

    def __init__(self, per_s: int = GAPS_PER_S) -> None:
        self.per_s = per_s
        self.counts: dict[int, int] = {}
        """By their length in such parts, rounded down."""

    def add(self, seconds: float, gaps: int) -> None:
        """So many gaps of this length."""
        part = int(seconds * self.per_s)
        self.counts[part] = self.counts.get(part, 0) + gaps

    def merge(self, other: "Gaps") -> None:
        """Add all that another was given."""
        for part, gaps in other.counts.items():
            self.counts[part] = self.counts.get(part, 0) + gaps

    @property
    def count(self) -> int:
        """Of all gaps."""
        return sum(self.counts.values())

    def at(self, share: float) -> float:
        """The gap that this share of all does not exceed: the middle of its part [s].

        raises: ValueError where there are none
        """
        left = share * self.count
        for place in sorted(self.counts):
            left -= self.counts[place]
            if left <= 0:
                return (place + 0.5) / self.per_s
        raise ValueError("no gaps")

    @property
    def mean(self) -> float:
        """Of all [s]."""
        whole = fsum((place + 0.5) * gaps for place, gaps in self.counts.items())
        return whole / self.count / self.per_s
