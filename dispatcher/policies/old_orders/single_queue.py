"""Orders with one queue for all waiting invocations; the place of each is fixed when it is queued.

FCFS and the paper's BWFQ have in common: slots, a heap ordered by (priority when queued, arrival), cancelling and
settling. An order decides which arrival goes at once, and the priority of one that waits. Costs are only added up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush
from math import fsum

from dispatcher.policies.clocks import Share
from dispatcher.policies.old_orders.interface import (
    Decision,
    Dispatched,
    Queued,
    checked_cost,
    checked_slots,
    held_already,
    later,
    not_running,
)

SLACK = 64
"""Entries of cancelled invocations kept in the heap, beyond as many as wait, before they are swept out."""

Entry = tuple[float, int, Dispatched]
"""Priority, number of arrival, and the dispatch that it will be."""


class SingleQueue(ABC):
    def __init__(self, slots: int) -> None:
        self._slots = checked_slots(slots)
        self._now = float("-inf")
        self._arrivals = 0
        self._settled = 0.0
        self._heap: list[Entry] = []
        self._waiting: dict[str, Entry] = {}
        self._running: dict[str, Dispatched] = {}

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def reserved(self) -> float:
        return fsum(dispatched.cost for dispatched in self._running.values())

    @property
    def settled(self) -> float:
        return self._settled

    def waiting_of(self, tenant: str) -> int:
        """O(waiting): these orders keep no queue for each tenant."""
        return sum(dispatched.tenant == tenant for _, _, dispatched in self._waiting.values())

    def arrive(self, tenant: str, invocation_id: str, cost: float, now: float) -> Decision:
        self._now = later(self._now, now)
        checked_cost(cost, "cost")
        if invocation_id in self._running or invocation_id in self._waiting:
            raise held_already(invocation_id)
        self._arrivals += 1
        dispatched = Dispatched(tenant, invocation_id, cost)
        if self._free() and self._goes_at_once(tenant):
            return self._dispatch(dispatched)
        entry = (self._priority(tenant), self._arrivals, dispatched)
        self._waiting[invocation_id] = entry
        heappush(self._heap, entry)
        return Queued(tenant, invocation_id, len(self._waiting))

    def settle(self, invocation_id: str, true_cost: float, now: float) -> Dispatched | None:
        self._now = later(self._now, now)
        checked_cost(true_cost, "true_cost")
        if self._running.pop(invocation_id, None) is None:
            raise not_running(invocation_id)
        self._settled += true_cost
        return self._dispatch_head()

    def cancel(self, invocation_id: str, now: float) -> bool:
        self._now = later(self._now, now)
        if self._waiting.pop(invocation_id, None) is None:
            return False
        if len(self._heap) > 2 * len(self._waiting) + SLACK:
            self._heap = list(self._waiting.values())
            heapify(self._heap)
        return True

    def set_slots(self, slots: int, now: float) -> tuple[Dispatched, ...]:
        self._now = later(self._now, now)
        self._slots = checked_slots(slots)
        dispatched = []
        while (head := self._dispatch_head()) is not None:
            dispatched.append(head)
        return tuple(dispatched)

    def set_share(self, tenant: str, share: Share, now: float) -> None:
        self._now = later(self._now, now)

    def set_capacity(self, capacity_per_s: float | None, now: float) -> None:
        self._now = later(self._now, now)

    @abstractmethod
    def _goes_at_once(self, tenant: str) -> bool:
        """Whether an arrival takes a slot that is free now."""

    @abstractmethod
    def _priority(self, tenant: str) -> float:
        """The priority at which an arrival waits, lowest first."""

    @abstractmethod
    def _spend(self, tenant: str) -> None:
        """One invocation of the tenant is being dispatched."""

    def _free(self) -> bool:
        return len(self._running) < self._slots

    def _dispatch(self, dispatched: Dispatched) -> Dispatched:
        self._running[dispatched.invocation_id] = dispatched
        self._spend(dispatched.tenant)
        return dispatched

    def _dispatch_head(self) -> Dispatched | None:
        """Dispatch the head of the queue into a free slot; None if either is missing."""
        while self._heap and self._free():
            entry = heappop(self._heap)
            dispatched = entry[2]
            if self._waiting.get(dispatched.invocation_id) is entry:
                del self._waiting[dispatched.invocation_id]
                return self._dispatch(dispatched)
        return None
