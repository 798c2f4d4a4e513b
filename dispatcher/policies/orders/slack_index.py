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

    queue            list         key
    in profile       _ready       due, vft
    surplus          _window      due, vft       vft <= V + window; V only grows, so a queue enters it once
                     _beyond      vft           the others
    out of profile   _later       tat            beside _window or _beyond, until the guarantee covers it again
    deferred         _deferred    vft
                     _calm        due            the same queues, until they are urgent
    not deferred     _by_vft      vft            for V
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from dispatcher.policies.orders.queues import Call, Entry, SortedEntries, TenantQueue


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
        return call.deferred and call.terms.due_at - now > self.urgent_s


class SlackIndex:
    """An entry has its list's keys, the arrival of the queue's head (no two queues have the same), and the queue."""

    def __init__(self, slack: Slack) -> None:
        self._slack = slack
        self._ready = SortedEntries()
        self._window = SortedEntries()
        self._beyond = SortedEntries()
        self._later = SortedEntries()
        self._deferred = SortedEntries()
        self._calm = SortedEntries()
        self._by_vft = SortedEntries()
        self._window_end = -inf
        self._placed_at = -inf
        """The latest time at which a queue was placed. The time falls only if a decision is undone."""

    def place(self, queue: TenantQueue, now: float) -> None:
        self._placed_at = max(self._placed_at, now)
        head, (tat, vft) = queue.head(), queue.tenant.clocks
        by_vft = (vft, head.arrival, queue)
        if self._slack.is_calm(head, now):
            urgent_at = head.terms.due_at - self._slack.urgent_s
            queue.move((self._deferred, by_vft), (self._calm, (urgent_at, head.arrival, queue)))
        elif not queue.tenant.config.rate_per_s:
            queue.move((self._by_vft, by_vft), (self._beyond, by_vft))
        elif tat <= now:
            queue.move((self._by_vft, by_vft), (self._ready, (head.terms.due_at or inf, *by_vft)))
        else:
            later = (tat, head.arrival, queue)
            queue.move((self._by_vft, by_vft), (self._beyond, by_vft), (self._later, later))

    def due(self, now: float, virtual_time: float) -> tuple[TenantQueue | None, float]:
        queue = self.direct(now, virtual_time) or _first(self._deferred)
        return queue, self.lowest_vft()

    def direct(self, now: float, virtual_time: float) -> TenantQueue | None:
        if (queue := self.first_in_profile(now)) is not None:
            return queue
        self._move_window(virtual_time + self._slack.window)
        return _first(self._window) or _first(self._beyond)

    def first_in_profile(self, now: float) -> TenantQueue | None:
        self._bring_up_to_date(now)
        return _first(self._ready)

    def lowest_vft(self) -> float:
        return self._by_vft.first[0] if self._by_vft.first else inf

    def _move_window(self, end: float) -> None:
        """Move queues with vft <= `end` to `_window`, the others to `_beyond`. V falls only if a decision is undone."""
        if end < self._window_end:
            for _, vft, arrival, queue in list(self._window):
                if vft > end:
                    _exchange(queue, self._window, self._beyond, (vft, arrival, queue))
        self._window_end = end
        while (first := self._beyond.first) is not None and first[0] <= end:
            vft, arrival, queue = first
            _exchange(queue, self._beyond, self._window, (queue.head().terms.due_at or inf, vft, arrival, queue))

    def _bring_up_to_date(self, now: float) -> None:
        """Place the queues anew that are in profile again, or have an urgent head now; and those that are not yet."""
        if now < self._placed_at:
            self._placed_at = now
            for queue in [each[-1] for each in self._by_vft if self._is_early(each[-1], now)]:
                self.place(queue, now)
        for entries in (self._later, self._calm):
            while (first := entries.first) is not None and first[0] <= now:
                self.place(first[-1], now)

    def _is_early(self, queue: TenantQueue, now: float) -> bool:
        """Return whether the queue may have been placed as in profile or urgent before it is."""
        return queue.tenant.clocks[0] > now or self._slack.is_calm(queue.head(), now)


def _exchange(queue: TenantQueue, old: SortedEntries, new: SortedEntries, entry: Entry) -> None:
    """Move the queue from one list to another one."""
    kept = (place for place in queue.places if place[0] is not old)
    queue.move(*kept, (new, entry))


def _first(entries: SortedEntries) -> TenantQueue | None:
    return entries.first[-1] if entries.first else None
