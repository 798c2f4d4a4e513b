"""The bounds of a tenant's share, which follow from the arithmetic of the clocks (clocks.py) in float64.

A clock of float64 has 52 bits below its leading one: an addition below half of ulp(clock) changes nothing. A tenant
with charges that change nothing is served for ever before all others. A quotient that is too large is infinite, and an
infinite clock cannot be written to the log. The bounds rule out both for a year of requests.

**Weight.** A dispatch adds cost / weight to vft. V follows the lowest vft, so within a year of a pool that serves
100,000 units a second without a pause (about sixty busy GPUs, by LEAD_MAX in clocks.py), to tenants of the least weight
only,

    V <= 366 x 86,400 s x 100,000 / WEIGHT_MIN = 3.2e14,   ulp(V) = 1/16

The smallest chat costs 10 units: a template alone has ten tokens. The least charge of a heaviest tenant is
10 / WEIGHT_MAX = 0.1 > ulp(V), so it still moves the clock. A request of 100 units is charged to 3 %. WEIGHT_MAX /
WEIGHT_MIN is 10,000, as for Linux's cpu.weight: a larger ratio would shorten the year in proportion. The largest
charge, COST_MAX / WEIGHT_MIN = 1e14, is finite, and smaller than V after a year. In the engine (gpu_worker/policies)
the counters of VTC are such clocks too; they begin at 0 with each process.

**Rate.** tat counts Unix seconds: below 2^32 (the year 2106) ulp(tat) is at most 4.8e-7 s. The least charge at the
highest rate, 10 / RATE_MAX = 1e-6 s, still moves it. The largest quotient is finite: COST_MAX / (RATE_MIN x
SCALE_MIN) = 1e21 s. A bucket of BURST_MAX at RATE_MIN is 1e15 s deep: ulp is 1/8 s, and a charge of 10 units is 1e4 s.
Rate 0 is no guarantee; burst 0 is no bucket.

Units: cost and burst in service units (service.py), rate in service units a second, weight without dimension.
"""

from __future__ import annotations

from math import isfinite

COST_MAX = 1e12

WEIGHT_MIN, WEIGHT_MAX = 0.01, 100.0
RATE_MIN, RATE_MAX = 1e-3, 1e7
BURST_MAX = 1e12
SCALE_MIN = 1e-6
"""The least factor on guaranteed rates (clocks.rate_scale)."""

SHARE_BOUNDS = {
    "weight": (WEIGHT_MIN, WEIGHT_MAX, False, "only the ratio of weights counts"),
    "rate_per_s": (RATE_MIN, RATE_MAX, True, "0 is no guarantee"),
    "burst": (0.0, BURST_MAX, False, "it is in service units"),
}
"""Maps a setting to its lowest and its highest value, whether 0 is allowed too, and a hint."""


def share_problem(setting: str, value: object) -> str | None:
    """Return what is wrong with a setting's value, to follow the setting's name in a sentence; None if it is right."""
    low, high, is_optional, hint = SHARE_BOUNDS[setting]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (low <= value <= high or (is_optional and value == 0)):  # type: ignore[operator]
        return None
    allowed = f"{'0 or ' if is_optional else ''}a number from {low:g} to {high:g}"
    return f"should be {allowed}, not {repr(value)[:40]}: {hint}"


def clamp_weight(weight: float) -> float:
    """Return the weight within the bounds. NaN becomes 1, the usual weight."""
    return min(max(weight, WEIGHT_MIN), WEIGHT_MAX) if weight == weight else 1.0


def clamp_rate(rate_per_s: float) -> float:
    """Return the rate within the bounds. What is no positive number is no guarantee."""
    return min(max(rate_per_s, RATE_MIN), RATE_MAX) if rate_per_s > 0 else 0.0


def clamp_burst(burst: float) -> float:
    """Return the burst within the bounds. What is no positive number is no burst."""
    return min(burst, BURST_MAX) if burst > 0 else 0.0


def clamp_cost(cost: float) -> float:
    """Return a cost that the clocks can be charged with."""
    return min(cost, COST_MAX) if cost > 0 and isfinite(cost) else (COST_MAX if cost > 0 else 0.0)


def is_share_sound(weight: float, rate_per_s: float, burst: float) -> bool:
    """Return whether all three are within the bounds."""
    return (
        WEIGHT_MIN <= weight <= WEIGHT_MAX
        and (rate_per_s == 0.0 or RATE_MIN <= rate_per_s <= RATE_MAX)
        and 0.0 <= burst <= BURST_MAX
    )
