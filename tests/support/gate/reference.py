"""The two clocks as slowly as they are defined: clocks.py's own functions, every list scanned, nothing forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dispatcher.model.commands import Done, call_id
from dispatcher.model.facts import Dispatched
from dispatcher.policies.clocks import Share, rate_scale
from dispatcher.shard.alone import PROCESS, WORKER, Decided
from tests.support.gate.definitions import Charge, Clocks, Step, debit, in_profile, lift, settlement


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
