"""The moves of the two clocks by their definitions, one at a time: what the shard's order must compute.

dispatcher/policies/clocks.py has the theory and the units. Each move is a `Step` with the branch in which it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from dispatcher.policies.clocks import LEAD_MAX, Share


@dataclass(frozen=True, slots=True)
class Clocks:
    """A tenant's two numbers. The defaults are those of a new tenant: the bucket is full, vft leads nothing."""

    tat: float = 0.0
    vft: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One clock's move: new = (old if base is None else base) + delta, valid only while low <= old <= high."""

    base: float | None
    delta: float
    low: float = -inf
    high: float = inf

    def apply(self, old: float) -> float | None:
        """Return the clock's new value, or None if `old` is outside the branch for which the step was computed."""
        if not self.low <= old <= self.high:
            return None
        return (old if self.base is None else self.base) + self.delta


STAY = Step(base=None, delta=0.0)


@dataclass(frozen=True, slots=True)
class Charge:
    """The charge of a dispatch. The invocation keeps it until it is settled."""

    cost: float
    in_profile: bool
    rate_per_s: float
    weight: float


@dataclass(frozen=True, slots=True)
class Debit:
    """A charge, and the steps that charge it to a tenant's clocks. `start_stamp`: the clamped vft without the cost."""

    charge: Charge
    tat: Step
    vft: Step
    start_stamp: float


def in_profile(clocks: Clocks, share: Share, now: float) -> bool:
    """Return whether the tenant's guarantee covers a dispatch at `now`."""
    return share.rate_per_s > 0 and clocks.tat <= now


def debit(
    clocks: Clocks,
    share: Share,
    cost: float,
    now: float,
    virtual_time: float,
    *,
    rate_scale: float = 1.0,
    lead_max: float = LEAD_MAX,
    was_queued: bool = False,
) -> Debit:
    """Return the steps for a dispatch of `cost` service units at `now`. They are valid in the clocks' present branch.

    `rate_scale` (0 < scale <= 1) shrinks guarantees while the active tenants' rates add up to more than the capacity.
    It shrinks the bucket in the same proportion: the bucket's depth in seconds, burst over the unscaled rate, stays. So
    a full bucket is full at every scale. Otherwise a tenant with forgotten clocks would gain over one with kept clocks.

    `was_queued`: the request waited in its tenant's queue. Such a tenant was lifted when it joined and is not lifted to
    V again. If settlements have put it below V since then, it was charged for service that it did not get. (With a
    second lift, a tenant with estimates ten times too high got 3 of 10 slots beside an equal tenant, not 5.)
    """
    floor = virtual_time - lead_max if was_queued else virtual_time
    vft = _clamped(clocks.vft, floor, virtual_time + lead_max, cost / share.weight)
    start = clocks.vft if vft.base is None else vft.base
    rate = share.rate_per_s * rate_scale
    if not in_profile(clocks, share, now):
        beyond = Step(None, 0.0, low=now) if rate > 0 else STAY
        return Debit(Charge(cost, False, rate, share.weight), beyond, vft, start)
    tat = _clamped(clocks.tat, now - share.burst / share.rate_per_s, now, cost / rate)
    return Debit(Charge(cost, True, rate, share.weight), tat, vft, start)


def lift(clocks: Clocks, virtual_time: float, *, lead_max: float = LEAD_MAX) -> Step:
    """Return the counter lift of a tenant that had an empty queue and now gets a request."""
    return _clamped(clocks.vft, virtual_time, virtual_time + lead_max, 0.0)


def settlement(charge: Charge, true_cost: float) -> tuple[Step, Step]:
    """Return the steps (tat, vft) that replace the estimate by the true service. They are valid in any branch."""
    error = true_cost - charge.cost
    tat = Step(None, error / charge.rate_per_s) if charge.in_profile else STAY
    return tat, Step(None, error / charge.weight)


def _clamped(old: float, floor: float, ceiling: float, delta: float) -> Step:
    """Return the step to clamp(old, floor, ceiling) + delta."""
    if old < floor:
        return Step(floor, delta, high=floor)
    if old > ceiling:
        return Step(ceiling, delta, low=ceiling)
    return Step(None, delta, low=floor, high=ceiling)
