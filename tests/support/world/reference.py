"""The two clocks by their definitions: what the shard's order must compute (theory and units: policies/clocks.py).

Each move of a clock is a `Step` with the branch in which it holds. ReferenceGate makes these moves as slowly as they
are defined: every list is scanned, and nothing is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from dispatcher.model.commands import Done, call_id
from dispatcher.model.facts import Dispatched
from dispatcher.policies.clocks import LEAD_MAX, Share, rate_scale
from dispatcher.shard.alone import PROCESS, WORKER, Decided


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


@dataclass
class TenantQueue:
    """A tenant: its clocks, and its calls as (arrival, id, cost)."""

    clocks: Clocks = field(default_factory=Clocks)
    waiting: list[tuple[int, str, float]] = field(default_factory=list)
    running: int = 0


def moved(step: Step, old: float) -> float:
    new = step.apply(old)
    assert new is not None, f"{old} is outside the branch of {step}"
    return new


class ReferenceGate:
    """A share counts from `set_shares` on, also for calls that wait. Shares must not change once calls have come."""

    def __init__(self, slots: int, *, lead_max: float) -> None:
        self.slots, self.lead_max = slots, lead_max
        self.virtual_time = 0.0
        self.capacity_per_s = 0.0
        self.arrivals = 0
        self.share: dict[str, Share] = {}
        self.queues: dict[str, TenantQueue] = {}
        self.charges: dict[str, tuple[str, Charge]] = {}

    def next_name(self) -> str:
        return call_id(PROCESS, self.arrivals + 1)

    def submit(self, tenant: str, cost: float, now: float) -> Decided:
        name = self.next_name()
        self.arrivals += 1
        queue = self.queues.setdefault(tenant, TenantQueue())
        if len(self.charges) < self.slots:
            return _decided(self._dispatch(tenant, name, cost, now, was_queued=False))
        if not queue.waiting:
            raised = moved(lift(queue.clocks, self.virtual_time, lead_max=self.lead_max), queue.clocks.vft)
            queue.clocks = Clocks(queue.clocks.tat, raised)
        queue.waiting.append((self.arrivals, name, cost))
        return _decided()

    def settle(self, name: str, cost: float, now: float) -> Decided:
        tenant, charge = self.charges.pop(name)
        queue = self.queues[tenant]
        tat, vft = settlement(charge, cost)
        queue.clocks = Clocks(moved(tat, queue.clocks.tat), moved(vft, queue.clocks.vft))
        queue.running -= 1
        if len(self.charges) < self.slots and not any(other.waiting for other in self.queues.values()):
            self.virtual_time = max(self.virtual_time, queue.clocks.vft)
        return self._fill(now)

    def cancel(self, name: str, now: float) -> Decided:
        for queue in self.queues.values():
            queue.waiting = [waiting for waiting in queue.waiting if waiting[1] != name]
        return _decided()

    def set_slots(self, slots: int, now: float) -> Decided:
        self.slots = slots
        return self._fill(now)

    def set_shares(self, shares: Mapping[str, Share]) -> None:
        self.share.update(shares)

    def set_capacity(self, capacity_per_s: float, now: float) -> Decided:
        self.capacity_per_s = capacity_per_s
        return _decided()

    def _fill(self, now: float) -> Decided:
        return _decided(*iter(lambda: self._next(now), None))

    def _next(self, now: float) -> Dispatched | None:
        waiting = {name: queue for name, queue in self.queues.items() if queue.waiting}
        if not waiting or len(self.charges) >= self.slots:
            return None

        def due(name: str) -> tuple[bool, float, int]:
            queue = waiting[name]
            return (not in_profile(queue.clocks, self._share(name), now), queue.clocks.vft, queue.waiting[0][0])

        tenant = min(waiting, key=due)
        _, name, cost = waiting[tenant].waiting[0]
        dispatched = self._dispatch(tenant, name, cost, now, was_queued=True)
        del waiting[tenant].waiting[0]
        return dispatched

    def _dispatch(self, tenant: str, name: str, cost: float, now: float, *, was_queued: bool) -> Dispatched:
        queue = self.queues[tenant]
        others = [other.clocks.vft for each, other in self.queues.items() if other.waiting and each != tenant]
        queue.running += 1
        scale = rate_scale(self._promised_per_s(), self.capacity_per_s)
        charged = debit(
            queue.clocks, self._share(tenant), cost, now, self.virtual_time,
            rate_scale=scale, lead_max=self.lead_max, was_queued=was_queued,
        )  # fmt: skip
        queue.clocks = clocks = Clocks(moved(charged.tat, queue.clocks.tat), moved(charged.vft, queue.clocks.vft))
        self.virtual_time = max(self.virtual_time, min([charged.start_stamp, *others]))
        charge = charged.charge
        self.charges[name] = (tenant, charge)
        moved_to = (clocks.tat, clocks.vft)
        return Dispatched(
            name, WORKER, 1, charge.in_profile, charge.rate_per_s, charge.weight, moved_to, self.virtual_time
        )

    def _promised_per_s(self) -> float:
        active = [name for name, queue in self.queues.items() if queue.waiting or queue.running]
        return sum(self._share(name).rate_per_s for name in active)

    def _share(self, tenant: str) -> Share:
        return self.share.get(tenant, Share())


def _decided(*facts: Dispatched) -> Decided:
    return Decided([Done()], facts)
