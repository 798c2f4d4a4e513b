"""The two clocks of a tenant: one for its guarantee, one for its part of the surplus.

Source: BWFQ (2025), section 3.1, in a form that a shared store can keep (ARCHITECTURE.md, "Two clocks").
The paper keeps two counters that grow for ever, credits earned and credits spent. Here each tenant carries two numbers
that move only when it is dispatched or settled, so an index ordered by them never goes stale:

- `tat` (wall clock, seconds): the theoretical arrival time of the generic cell rate algorithm (ITU-T I.371). A tenant
  is *in profile* while tat <= now. A dispatch in profile moves it to max(tat, now - burst / rate) + cost / rate: the
  paper's bucket, with the burst limit that the paper lacks.
- `vft` (virtual time, service per weight): the finish stamp of start-time fair queueing, the counterpart at the gate of
  VTC's counter. A dispatch moves it to clamp(vft, V, V + lead_max) + cost / weight, where V is the pool's virtual time.
  A tenant with a waiting request was lifted when it joined; its dispatch sets min(vft, V + lead_max) + cost / weight.

A dispatch out of profile is surplus: it moves `vft` alone, so capacity that was guaranteed to no tenant costs its user
nothing of its guarantee later. Settlement moves `vft` always and `tat` only if it was charged, each by (true -
estimated) service over the rate and the weight *recorded at the dispatch*: a change of a tenant's share never distorts
the requests in flight.

Units: cost in service units (policies/service.py), rate in service units a second, burst in service units, weight
without dimension. Rate 0 means no guarantee: such a tenant is never in profile and lives on the surplus.

Every move is a `Step`, which a store can apply as one conditional write: concurrent charges of one tenant commute as
long as they stay in the same branch, so nothing is ever read, modified and written back.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

LEAD_MAX = 50_000.0
"""Default bound on how far a tenant's vft may run ahead of V (service units a weight of 1): a tenant that enjoyed a
large guarantee pays back at most this much when others return. 50,000 is about half a minute of one busy GPU."""

CAPACITY_SHARE = 0.9
"""The part of the measured capacity that guarantees may add up to before they are scaled."""


@dataclass(frozen=True, slots=True)
class Share:
    """A tenant's share: weight, guaranteed rate and burst. Raises ValueError unless weight > 0, rate and burst >= 0."""

    weight: float = 1.0
    rate_per_s: float = 0.0
    burst: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < inf:
            raise ValueError(f"weight must be a positive number, not {self.weight!r}")
        if not 0 <= self.rate_per_s < inf:
            raise ValueError(f"rate_per_s must be zero or a positive number, not {self.rate_per_s!r}")
        if not 0 <= self.burst < inf:
            raise ValueError(f"burst must be zero or a positive number, not {self.burst!r}")


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

    `was_queued`: the request waited in its tenant's queue. Such a tenant was lifted when it joined and is not lifted
    again. If settlements have put it below V since then, it was charged for service that it did not get. (With a second
    lift, a tenant with estimates ten times too high got 3 of 10 slots beside an equal tenant, not 5.)
    """
    floor = -inf if was_queued else virtual_time
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


def rate_scale(promised_per_s: float, capacity_per_s: float | None) -> float:
    """Return the factor on guaranteed rates, 0 < factor <= 1, for the sum of the active tenants' rates.

    Both in service units a second. 1 if nothing is promised or no capacity has been measured (None or 0). A tenth of
    the capacity is kept back for wrong estimates and the gaps between dispatches.
    """
    if promised_per_s <= 0 or not capacity_per_s:
        return 1.0
    return min(1.0, CAPACITY_SHARE * capacity_per_s / promised_per_s)


def is_forgettable(clocks: Clocks, share: Share, now: float, virtual_time: float) -> bool:
    """Return whether a tenant with nothing waiting or running behaves like a new one, so its clocks can be dropped."""
    bucket_full = share.rate_per_s == 0 or clocks.tat <= now - share.burst / share.rate_per_s
    return bucket_full and clocks.vft <= virtual_time


def _clamped(old: float, floor: float, ceiling: float, delta: float) -> Step:
    """Return the step to clamp(old, floor, ceiling) + delta."""
    if old < floor:
        return Step(floor, delta, high=floor)
    if old > ceiling:
        return Step(ceiling, delta, low=ceiling)
    return Step(None, delta, low=floor, high=ceiling)
