"""How good predictions are: R², coverage of P90, and its distance from P50."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from headgate.evidence.qlm.full_queue import r_squared


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request's wait in seconds, and what was announced."""

    actual_s: float
    p50_s: float
    p90_s: float


@dataclass(frozen=True, slots=True)
class Score:
    """`coverage`: the share of requests that waited at most P90. `spread`: sum of P90 over sum of P50. `spread_median`:
    median of P90 / P50. `error`: median of |P50 - actual| / actual. Waits in seconds."""

    requests: int
    wait_mean_s: float
    r_squared: float
    error: float
    coverage: float
    spread: float
    spread_median: float


def score(outcomes: Sequence[Outcome]) -> Score:
    actual = [each.actual_s for each in outcomes]
    p50 = [each.p50_s for each in outcomes]
    return Score(
        len(outcomes),
        fmean(actual),
        r_squared(actual, p50),
        median(abs(p - a) / a for p, a in zip(p50, actual, strict=True) if a > 0),
        fmean(each.actual_s <= each.p90_s for each in outcomes),
        sum(each.p90_s for each in outcomes) / sum(p50),
        median(each.p90_s / each.p50_s for each in outcomes if each.p50_s > 0),
    )
