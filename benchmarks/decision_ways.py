"""The ways to decide that benchmarks/bwfq_decision.py compares.

Each holds one waiting call for each tenant, and SLOTS running calls. `prepare` makes the next call as if it came from
the network. `decide` is timed: the call that has run longest ends, the prepared one arrives, and the next is picked.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from dispatcher.model.call import CallTerms
from dispatcher.model.commands import Command, End
from dispatcher.policies.clocks import Share
from dispatcher.policies.orders.interface import Index
from dispatcher.policies.orders.queues import UNKNOWN, Call, Tenant
from dispatcher.policies.orders.registry import new_order
from dispatcher.shard.alone import MODEL, CostGate

SLOTS = 64
COST = 1.0
TERMS = CallTerms("", "m", COST, 2e9, False, "", "")
LEAD_MAX = 1e6


class Way(Protocol):
    def begin(self, names: list[str], rate_per_s: float, now: float) -> None:
        """Configure the tenants, every second one with this guaranteed rate, and take all slots."""
        ...

    def arrive(self, tenant: str, now: float) -> None: ...

    def prepare(self, tenant: str, true_cost: float) -> None: ...

    def decide(self, now: float) -> None: ...


class Picked(NamedTuple):
    tenant: str
    number: int
    cost: float


class Bare:
    """A credit bucket for each tenant; one heap for tenants with credit, one for the rest. Nothing else."""

    def begin(self, names: list[str], rate_per_s: float, now: float) -> None:
        self.rate_per_s, self.burst = rate_per_s, COST
        self.buckets: dict[str, list[float]] = {}
        self.funded: list[tuple[float, int, str]] = []
        self.unfunded: list[tuple[float, int, str]] = []
        self.arrivals = 0
        self.prepared = ""
        self.picked = Picked("", 0, 0.0)

    def arrive(self, tenant: str, now: float) -> None:
        bucket = self.buckets.get(tenant)
        if bucket is None:
            bucket = self.buckets[tenant] = [self.burst, now, 0.0]
        credit, updated_at, spent = bucket
        credit = min(self.burst, credit + (now - updated_at) * self.rate_per_s)
        self.arrivals += 1
        if credit >= COST:
            heappush(self.funded, (spent, self.arrivals, tenant))
            credit -= COST
        else:
            heappush(self.unfunded, (spent, self.arrivals, tenant))
        bucket[0], bucket[1], bucket[2] = credit, now, spent + COST

    def prepare(self, tenant: str, true_cost: float) -> None:
        self.prepared = tenant

    def decide(self, now: float) -> None:
        self.arrive(self.prepared, now)
        _, number, tenant = heappop(self.funded or self.unfunded)
        self.picked = Picked(tenant, number, COST)


class OrderAlone:
    """The two-clock order and its index, applied to calls and tenants at once."""

    def begin(self, names: list[str], rate_per_s: float, now: float) -> None:
        self.order = new_order("bwfq", lead_max=LEAD_MAX)
        self.index: Index = self.order.make_index()
        self.virtual_time, self.arrivals = 0.0, 0
        self.tenants = {name: Tenant(name, self.order.new_clocks) for name in names}
        for name in names[::2]:
            self.tenants[name].config = UNKNOWN._replace(rate_per_s=rate_per_s, burst=COST)
        self.running: deque[Call] = deque()
        self.prepared, self.true_cost = "", COST
        blocker = Tenant("blocker", self.order.new_clocks)
        for _ in range(SLOTS):
            self.running.append(Call("", blocker, TERMS, 0, 0.0))

    def arrive(self, tenant: str, now: float) -> None:
        found = self.tenants[tenant]
        found.clocks, priority = self.order.join(found, now, self.virtual_time)
        self.arrivals += 1
        queue = found.queues.get((MODEL, False)) or found.queue(MODEL, False)
        queue.add(Call(tenant, found, TERMS, self.arrivals, priority))
        found.waiting += 1
        found.direct += 1
        if not queue.places:
            self.index.place(queue, now)

    def prepare(self, tenant: str, true_cost: float) -> None:
        self.prepared, self.true_cost = tenant, true_cost

    def decide(self, now: float) -> None:
        call = self.running.popleft()
        tenant, order = call.tenant, self.order
        clocks = order.settle(tenant, call, self.true_cost)
        if clocks is not tenant.clocks:
            tenant.clocks = clocks
            queue = tenant.queues.get((MODEL, False))
            if queue is not None and queue.count:
                self.index.place(queue, now)
        self.arrive(self.prepared, now)
        queue, lowest_vft = self.index.due(now, self.virtual_time)
        if queue is None:
            raise RuntimeError("no call waits")
        tenant = queue.tenant
        call = queue.head()
        call.charge_in_profile, call.charge_rate_per_s, tenant.clocks, self.virtual_time = order.charge(
            tenant, call.cost, now, self.virtual_time, 1.0, lowest_vft
        )
        queue.remove(call)
        tenant.waiting -= 1
        tenant.direct -= 1
        if queue.count:
            self.index.place(queue, now)
        else:
            queue.move()
        self.running.append(call)


class ShardWay:
    """The shard: both commands in one entry, as a leader writes them."""

    def __init__(self, order: str) -> None:
        self.gate = CostGate(order, SLOTS, lead_max=LEAD_MAX)

    def begin(self, names: list[str], rate_per_s: float, now: float) -> None:
        self.gate.set_shares(dict.fromkeys(names[::2], Share(weight=1.0, rate_per_s=rate_per_s, burst=COST)))
        self.running: deque[str] = deque()
        self.commands: tuple[Command, ...] = ()
        for _ in range(SLOTS):
            self.arrive("blocker", now)

    def arrive(self, tenant: str, now: float) -> None:
        self.running.extend(fact.id for fact in self.gate.submit(tenant, COST, now).dispatched)

    def prepare(self, tenant: str, true_cost: float) -> None:
        self.gate.ended_cost = true_cost
        call = self.gate.new_call(tenant, COST, deadline_at=2e9)
        self.commands = End(self.running.popleft(), 1, "done", 0, 0), call

    def decide(self, now: float) -> None:
        facts = self.gate.decide(*self.commands, now=now).facts
        self.running.append(facts[-1].id)  # type: ignore[union-attr]
