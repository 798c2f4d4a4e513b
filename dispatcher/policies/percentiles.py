"""Percentiles by nearest rank: the one definition that the gate, the worker, the simulator and the benchmarks use."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

ROUNDING = 1e-9
"""Subtracted before rounding up: 0.07 x 100 is 7.000000000000001 in floating point, but its rank is 7, not 8."""


def percentile(values: Sequence[float], fraction: float) -> float | None:
    """Return the smallest value that at least `fraction` (0 to 1) of the values do not exceed; None without values."""
    if not values:
        return None
    rank = max(1, ceil(fraction * len(values) - ROUNDING))
    return sorted(values)[rank - 1]
