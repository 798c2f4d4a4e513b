"""The two clocks as slowly as they are defined: clocks.py's own functions, every list scanned, nothing forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from dispatcher.policies.clocks import Charge, Clocks, Share, Step, debit, in_profile, lift, rate_scale, settlement
from dispatcher.policies.old_orders.interface import Decision, Dispatched, Queued


@dataclass
class TenantQueue:
    """A tenant: its clocks, and its requests as (arrival, id, cost)."""

    clocks: Clocks = field(default_factory=lambda: Clocks(-inf, 0.0))
    waiting: list[tuple[int, str, float]] = field(default_factory=list)
    running: int = 0


def moved(step: Step, old: float) -> float:
    new = step.apply(old)
    assert new is not None, f"{old} is outside the branch of {step}"
    return new


class ReferenceGate:
    def __init__(self, slots: int, *, lead_max: float) -> None:
        self.slots, self.lead_max = slots, lead_max
        self.virtual_time = 0.0
        self.capacity: float | None = None
        self.arrivals = 0
        self.share: dict[str, Share] = {}
        self.queues: dict[str, TenantQueue] = {}
        self.charges: dict[str, tuple[str, Charge]] = {}

    def arrive(self, tenant: str, invocation_id: str, cost: float, now: float) -> Decision:
        queue = self.queues.setdefault(tenant, TenantQueue())
        if len(self.charges) < self.slots:
            return self._dispatch(tenant, invocation_id, cost, now, was_queued=False)
        if not queue.waiting:
            raised = moved(lift(queue.clocks, self.virtual_time, lead_max=self.lead_max), queue.clocks.vft)
            queue.clocks = Clocks(queue.clocks.tat, raised)
        self.arrivals += 1
        queue.waiting.append((self.arrivals, invocation_id, cost))
        return Queued(tenant, invocation_id, len(queue.waiting))

    def settle(self, invocation_id: str, true_cost: float, now: float) -> Dispatched | None:
        tenant, charge = self.charges.pop(invocation_id)
        queue = self.queues[tenant]
        tat, vft = settlement(charge, true_cost)
        queue.clocks = Clocks(moved(tat, queue.clocks.tat), moved(vft, queue.clocks.vft))
        queue.running -= 1
        if len(self.charges) < self.slots and not any(other.waiting for other in self.queues.values()):
            self.virtual_time = max(self.virtual_time, queue.clocks.vft)
        return self._next(now)

    def cancel(self, invocation_id: str, now: float) -> bool:
        for queue in self.queues.values():
            kept = [waiting for waiting in queue.waiting if waiting[1] != invocation_id]
            if len(kept) < len(queue.waiting):
                queue.waiting = kept
                return True
        return False

    def set_slots(self, slots: int, now: float) -> tuple[Dispatched, ...]:
        self.slots = slots
        return tuple(iter(lambda: self._next(now), None))

    def set_share(self, tenant: str, share: Share, now: float) -> None:
        self.share[tenant] = share

    def set_capacity(self, capacity_per_s: float | None, now: float) -> None:
        self.capacity = capacity_per_s

    def _next(self, now: float) -> Dispatched | None:
        waiting = {name: queue for name, queue in self.queues.items() if queue.waiting}
        if not waiting or len(self.charges) >= self.slots:
            return None

        def due(name: str) -> tuple[bool, float, int]:
            queue = waiting[name]
            return (not in_profile(queue.clocks, self._share(name), now), queue.clocks.vft, queue.waiting[0][0])

        tenant = min(waiting, key=due)
        _, invocation_id, cost = waiting[tenant].waiting[0]
        dispatched = self._dispatch(tenant, invocation_id, cost, now, was_queued=True)
        del waiting[tenant].waiting[0]
        return dispatched

    def _dispatch(self, tenant: str, invocation_id: str, cost: float, now: float, *, was_queued: bool) -> Dispatched:
        queue = self.queues[tenant]
        others = [other.clocks.vft for name, other in self.queues.items() if other.waiting and name != tenant]
        queue.running += 1
        scale = rate_scale(self._promised_per_s(), self.capacity)
        charged = debit(
            queue.clocks, self._share(tenant), cost, now, self.virtual_time,
            rate_scale=scale, lead_max=self.lead_max, was_queued=was_queued,
        )  # fmt: skip
        queue.clocks = Clocks(moved(charged.tat, queue.clocks.tat), moved(charged.vft, queue.clocks.vft))
        self.virtual_time = max(self.virtual_time, min([charged.start_stamp, *others]))
        charge = charged.charge
        self.charges[invocation_id] = (tenant, charge)
        return Dispatched(tenant, invocation_id, cost, charge.in_profile, charge.rate_per_s, charge.weight)

    def _promised_per_s(self) -> float:
        active = [name for name, queue in self.queues.items() if queue.waiting or queue.running]
        return sum(self._share(name).rate_per_s for name in active)

    def _share(self, tenant: str) -> Share:
        return self.share.get(tenant, Share())
