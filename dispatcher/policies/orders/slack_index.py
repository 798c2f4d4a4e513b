"""The index of the two-clock order for requests with SLO classes: due times decide where shares leave a choice.

Source: QLM (SoCC 2024), section 5: the request with the least slack goes first. BWFQ gives each tenant its turn
(two_clocks.py), so slack decides only

- between tenants in profile: a dispatch takes its tenant out of profile, so the order among them changes no share;
- in the surplus, between queues with vft <= V + `window`. No queue gets more than `window` and one call ahead of V by
  its due time. With window = 0, only queues that settlements have put below V compete by slack.

The slack of a queue is that of its head. At one moment the head with the least slack is the one that is due first, so
the keys are due times. A call without a class is due last.

Deferred calls (class batch) wait in queues of their own. Such a queue gets a slot only if no other queue waits, by vft,
and is charged as surplus, so that night work does not use up the guarantee of the morning. `urgent_s` before its head
is due, the queue becomes one like any other. Deferred queues do not hold V back.

    queue            heap         key
    in profile       _ready       due, vft
    surplus          _window      due, vft       vft <= V + window; V only grows, so a queue enters it once
                     _beyond      vft           the others
    out of profile   _later       tat            beside _window or _beyond, until the guarantee covers it again
    deferred         _deferred    vft
                     _calm        due            the same queues, until they are urgent
    not deferred     _by_vft      vft            for V

Entries are lazy, as in two_clocks_index.py: an entry is live while its queue names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from dispatcher.policies.orders.queues import Call, Entry, TenantQueue

SWEEP_SLACK = 64
"""The heaps may hold eight entries for each queue, and SWEEP_SLACK more, before the dead ones are dropped."""

Heap = list[tuple[Any, ...]]
"""Keys, the arrival of the queue's head, and the queue's entry. Two queues never have the same arrival."""


@dataclass(frozen=True, slots=True)
class Slack:
    """`window` in service units for a weight of 1; `urgent_s` in seconds. Raises ValueError if one is negative."""

    window: float = 5_000.0
    """About three seconds of one busy GPU."""
    urgent_s: float = 60.0

    def __post_init__(self) -> None:
        if not (0 <= self.window < inf and 0 <= self.urgent_s < inf):
            raise ValueError(f"window and urgent_s must be zero or positive numbers, not {self!r}")

    def is_calm(self, call: Call, now: float) -> bool:
        """Return whether the call is deferred and has slack: then it uses only what others leave."""
        return call.deferred and call.due_at - now > self.urgent_s


class SlackIndex:
    def __init__(self, slack: Slack) -> None:
        self._slack = slack
        self._queues = 0
        self._ready: Heap = []
        self._window: Heap = []
        self._beyond: Heap = []
        self._later: Heap = []
        self._deferred: Heap = []
        self._calm: Heap = []
        self._by_vft: Heap = []
        self._window_end = -inf

    def place(self, queue: TenantQueue, now: float) -> None:
        self._queues += queue.entry is None
        head, (tat, vft) = queue.head(), queue.tenant.clocks
        arrival = head.arrival
        queue.entry = entry = (vft, arrival, queue)
        if self._slack.is_calm(head, now):
            heappush(self._deferred, (vft, arrival, entry))
            heappush(self._calm, (head.due_at - self._slack.urgent_s, arrival, entry))
        else:
            heappush(self._by_vft, (vft, arrival, entry))
            if queue.tenant.rate_per_s and tat <= now:
                heappush(self._ready, (head.due_at or inf, vft, arrival, entry))
            else:
                heappush(self._beyond, (vft, arrival, entry))
                if queue.tenant.rate_per_s:
                    heappush(self._later, (tat, arrival, entry))
        self._sweep()

    def drop(self, queue: TenantQueue) -> None:
        self._queues -= queue.entry is not None
        queue.entry = None

    def due(self, now: float, virtual_time: float) -> tuple[TenantQueue | None, float]:
        queue = self.direct(now, virtual_time) or _first(self._deferred)
        return queue, self.lowest_vft()

    def direct(self, now: float, virtual_time: float) -> TenantQueue | None:
        self._bring_up_to_date(now)
        if (queue := _first(self._ready)) is not None:
            return queue
        self._move_window(virtual_time + self._slack.window)
        return _first(self._window) or _first(self._beyond)

    def guaranteed(self, now: float) -> TenantQueue | None:
        self._bring_up_to_date(now)
        return _first(self._ready)

    def lowest_vft(self) -> float:
        return self._by_vft[0][0] if _first(self._by_vft) is not None else inf

    def _move_window(self, end: float) -> None:
        """Move queues with vft <= `end` to `_window`, the others to `_beyond`. V falls only if a decision is undone."""
        if end < self._window_end:
            self._beyond += [(vft, arrival, entry) for _, vft, arrival, entry in self._window if vft > end]
            self._window = [item for item in self._window if item[1] <= end]
            heapify(self._beyond)
            heapify(self._window)
        self._window_end = end
        while _first(self._beyond) is not None and self._beyond[0][0] <= end:
            vft, arrival, entry = heappop(self._beyond)
            heappush(self._window, (entry[2].head().due_at or inf, vft, arrival, entry))

    def _bring_up_to_date(self, now: float) -> None:
        """Place the queues anew that are in profile again, or have an urgent head now."""
        for heap in (self._later, self._calm):
            while heap and heap[0][0] <= now:
                if _is_live(entry := heappop(heap)[-1]):
                    self.place(entry[2], now)

    def _sweep(self) -> None:
        """Remove dead entries if there are too many. Each queue has at most three live ones."""
        heaps = (self._ready, self._window, self._beyond, self._later, self._deferred, self._calm, self._by_vft)
        if sum(map(len, heaps)) > 8 * self._queues + SWEEP_SLACK:
            for heap in heaps:
                heap[:] = [item for item in heap if _is_live(item[-1])]
                heapify(heap)


def _is_live(entry: Entry) -> bool:
    return entry[2].entry is entry


def _first(heap: Heap) -> TenantQueue | None:
    """Drop dead entries from the head of the heap. Return the first queue, or None."""
    while heap and not _is_live(heap[0][-1]):
        heappop(heap)
    return heap[0][-1][2] if heap else None
