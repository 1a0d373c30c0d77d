"""Percentiles: the same as numpy's while exact, within the stated error beyond, whatever is added in what order."""

import math
import tracemalloc
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.simulate import quantiles
from planner.simulate.quantiles import EXACT_METHOD, RELATIVE_ERROR, SKETCH_METHOD, Quantiles

VALUES = st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e9)), min_size=1, max_size=200)
SHARES = st.floats(0, 1)


def of(values: list[float], most: int = 1000) -> Quantiles:
    """Quantiles of the values, of which so many are kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "MOST_EXACT", most)
        made = Quantiles()
        for value in values:
            made.add(value)
        return made


@given(VALUES, SHARES)
def test_few_values_are_exact(values: list[float], share: float) -> None:
    numpy = pytest.importorskip("numpy")
    made = of(values)
    assert made.at(share) == pytest.approx(float(numpy.percentile(values, share * 100)), rel=1e-9, abs=1e-12)
    assert made.mean == pytest.approx(fmean(values), rel=1e-12)
    assert (made.count, made.method) == (len(values), EXACT_METHOD)


@given(VALUES, SHARES, st.integers(0, 30))
def test_many_values_are_within_the_stated_error(values: list[float], share: float, most: int) -> None:
    made = of(values, most)
    exact = sorted(values)[math.floor(share * (len(values) - 1))]
    if made.method == SKETCH_METHOD:
        assert made.at(share) == pytest.approx(exact, rel=RELATIVE_ERROR * (1 + 1e-6))
    assert made.mean == pytest.approx(fmean(values), rel=1e-9)
    assert made.count == len(values)


@given(VALUES, VALUES, SHARES, st.integers(0, 300), st.integers(0, 300))
def test_merged_is_as_if_added(one: list[float], two: list[float], share: float, most: int, other: int) -> None:
    merged, whole = of(one, most), of(one + two, 10_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "MOST_EXACT", 10_000)
        merged.merge(of(two, other))
    assert merged.count == whole.count
    assert merged.mean == pytest.approx(whole.mean, rel=1e-9)
    if merged.method == EXACT_METHOD:
        assert merged.at(share) == whole.at(share)
    else:
        exact = sorted(one + two)[math.floor(share * (whole.count - 1))]
        assert merged.at(share) == pytest.approx(exact, rel=RELATIVE_ERROR * (1 + 1e-6))


def test_values_may_be_added_between_questions() -> None:
    made = of([3.0, 1.0])
    assert made.at(0.5) == 2
    made.add_many([5.0, 0.0])
    assert (made.at(0.5), made.at(1.0), made.count) == (2, 5, 4)
    for share in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="a share from 0 to 1"):
            made.at(share)
    with pytest.raises(ValueError, match="at least one value"):
        Quantiles().at(0.5)


def test_memory_stays_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantiles, "MOST_EXACT", 10_000)
    made = Quantiles()
    tracemalloc.start()
    for number in range(300_000):
        made.add(0.001 + number % 977)
    assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    tracemalloc.stop()
    assert made.count == 300_000
