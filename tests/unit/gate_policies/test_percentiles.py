"""Percentiles by nearest rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies.percentiles import ROUNDING, percentile


@pytest.mark.parametrize(
    ("values", "fraction", "expected"),
    [
        ([5.0, 1.0, 3.0, 2.0, 4.0], 0.5, 3.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0], 0.99, 2.0),
        ([float(n) for n in range(100, 0, -1)], 0.99, 99.0),
        ([float(n) for n in range(1, 101)], 0.07, 7.0),
        ([1.0, 2.0], 0.0, 1.0),
        ([], 0.5, None),
    ],
)
def test_nearest_rank(values: list[float], fraction: float, expected: float | None) -> None:
    assert percentile(values, fraction) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_it_is_the_smallest_value_that_the_fraction_does_not_exceed(values: list[float], fraction: float) -> None:
    found = percentile(values, fraction)
    assert found is not None
    needed = fraction * len(values) - ROUNDING
    assert sum(value <= found for value in values) >= needed
    smaller = [value for value in values if value < found]
    assert len(smaller) < needed or not smaller
