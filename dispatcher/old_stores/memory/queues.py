"""Queues in memory: a tenant's clocks and waiting invocations, and the sparse index of waiting queues."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from decimal import Decimal

from dispatcher.model.old_fleet import TenantQueue, WaitingQueue
from dispatcher.old_stores.numbers import TAT_PLACE, VFT_PLACE, ZERO, exact, stepped
from dispatcher.policies.clocks import Clocks, Step

InvocationKey = tuple[str, str]
"""(tenant, invocation id)"""


@dataclass(slots=True)
class QueueRecord:
    name: str
    tat: Decimal = ZERO
    vft: Decimal = ZERO
    reserved: Decimal = ZERO
    spent: Decimal = ZERO
    waiting_pool: str | None = None
    """The pool that has the queue in its index; None while nothing waits."""
    entries: list[tuple[str, InvocationKey]] = field(default_factory=list)
    """(queue key, invocation) in order of arrival."""

    def view(self) -> TenantQueue:
        clocks = Clocks(float(self.tat), float(self.vft))
        return TenantQueue(self.name, clocks, len(self.entries), float(self.reserved), float(self.spent))

    def stepped(self, tat: Step, vft: Step) -> tuple[Decimal, Decimal] | None:
        """Both clocks moved, or None where one has left its step's branch."""
        moved_tat = stepped(tat, self.tat, TAT_PLACE)
        moved_vft = stepped(vft, self.vft, VFT_PLACE)
        return None if moved_tat is None or moved_vft is None else (moved_tat, moved_vft)

    def is_blank(self) -> bool:
        """Whether it is equal to a new queue."""
        return not (self.entries or self.tat or self.vft or self.reserved or self.spent)


class WaitingIndex:
    """The waiting queues of one pool, by tat and by vft."""

    def __init__(self) -> None:
        self._by_tat: list[tuple[Decimal, str]] = []
        self._by_vft: list[tuple[Decimal, str]] = []
        self._clocks: dict[str, tuple[Decimal, Decimal]] = {}

    def __len__(self) -> int:
        return len(self._clocks)

    def put(self, queue: QueueRecord) -> None:
        self.remove(queue.name)
        self._clocks[queue.name] = (queue.tat, queue.vft)
        insort(self._by_tat, (queue.tat, queue.name))
        insort(self._by_vft, (queue.vft, queue.name))

    def remove(self, name: str) -> None:
        clocks = self._clocks.pop(name, None)
        if clocks is not None:
            tat, vft = clocks
            del self._by_tat[bisect_left(self._by_tat, (tat, name))]
            del self._by_vft[bisect_left(self._by_vft, (vft, name))]

    def names(self) -> list[str]:
        """By vft."""
        return [name for _, name in self._by_vft]

    def first(self, now: float, limit: int) -> list[WaitingQueue]:
        """Those in profile first, then the rest, each by vft."""
        instant = exact(now)
        chosen = self._in_profile(instant, limit)
        for _, name in self._by_vft:
            if len(chosen) >= limit:
                break
            if self._clocks[name][0] > instant:
                chosen.append(name)
        return [WaitingQueue(name, *map(float, self._clocks[name])) for name in chosen]

    def _in_profile(self, now: Decimal, limit: int) -> list[str]:
        """Sort a few queues, or walk many by vft until enough are found: about sqrt(queues x limit) steps."""
        count = bisect_right(self._by_tat, now, key=lambda entry: entry[0])
        if count * count <= len(self) * limit:
            few = sorted((self._clocks[name][1], name) for _, name in self._by_tat[:count])
            return [name for _, name in few[:limit]]
        chosen: list[str] = []
        for _, name in self._by_vft:
            if len(chosen) >= limit:
                break
            if self._clocks[name][0] <= now:
                chosen.append(name)
        return chosen
