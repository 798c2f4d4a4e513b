"""The percentiles that a run reports of response times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.policies.percentiles import percentile


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds, by nearest rank."""

    p50: float
    p99: float


def percentiles(seconds: Sequence[float]) -> Percentiles | None:
    """Return the median and the 99th percentile; None of no values."""
    ordered = sorted(seconds)
    p50, p99 = percentile(ordered, 0.50), percentile(ordered, 0.99)
    return None if p50 is None or p99 is None else Percentiles(p50, p99)
