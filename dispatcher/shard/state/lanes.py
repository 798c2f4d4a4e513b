"""The indexes of waiting queues, one for each model and tier. The only tier is "" if no tiers are configured."""

from __future__ import annotations

from math import inf

from dispatcher.policies.orders.interface import Index, Order
from dispatcher.policies.orders.queues import Tenant, TenantQueue


class Lanes:
    def __init__(self, order: Order, *, by_tier: bool) -> None:
        self._order = order
        self._by_tier = by_tier
        self.of: dict[str, dict[str, Index]] = {}
        """The indexes by model and tier. The models are in the order of their names, so that a copy from a snapshot
        decides the same."""

    def update(self, queue: TenantQueue, now: float) -> None:
        """Bring the queue's entry up to date with its head and its tenant's clocks."""
        if not queue.count:
            queue.move()
            return
        clocks, head = queue.tenant.clocks, queue.calls[0]
        arrival = head[1] if head[2].queued else queue.head().arrival
        if not queue.places or queue.indexed_clocks is not clocks or queue.indexed_arrival != arrival:
            self._index(queue).place(queue, now)
            queue.indexed_clocks, queue.indexed_arrival = clocks, arrival

    def drop(self, tenant: Tenant) -> None:
        """Remove all queues of a tenant, because its tier or its share is about to change."""
        for queue in tenant.queues.values():
            queue.move()

    def lowest_vft(self, model: str) -> float:
        """Return the lowest vft of the tenants that wait for the model; infinity if none waits."""
        return min((index.lowest_vft() for index in self.of.get(model, {}).values()), default=inf)

    def _index(self, queue: TenantQueue) -> Index:
        tier = queue.tenant.config.tier if self._by_tier else ""
        lanes = self.of.get(queue.model)
        if lanes is None:
            lanes = {}
            self.of = dict(sorted([*self.of.items(), (queue.model, lanes)]))
        index = lanes.get(tier)
        if index is None:
            index = lanes[tier] = self._order.make_index()
        return index
