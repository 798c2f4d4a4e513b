"""What several queue policies are built from: a queue in the order of arrival, a heap of tenants by counter, the
counters, and the service that each tenant has received.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")

_STALE_PLACES_MAX = 16
"""Stale places that the heap may keep beyond the number of members."""


class ArrivalQueue(Generic[T]):
    """A queue in the order of arrival, from which a member can also leave in the middle.

    Members stand by place, the number in the order of arrival. Adding and removing are O(log n) amortized.

    The places form a heap. The place of a member that left becomes stale; it is dropped when it reaches the head, or
    when stale places outnumber the members. Each member costs one number, because there may be a million queues of one
    member.
    """

    __slots__ = ("_members", "_places")

    def __init__(self) -> None:
        self._members: dict[int, T] = {}
        self._places: list[int] = []

    def __len__(self) -> int:
        return len(self._members)

    def add(self, place: int, member: T) -> None:
        """Add a member, which may return to an earlier place."""
        self._members[place] = member
        heappush(self._places, place)

    def head(self) -> T:
        """Return the member of the lowest place. Raises IndexError if the queue is empty."""
        while self._places[0] not in self._members:
            heappop(self._places)
        return self._members[self._places[0]]

    def first(self, count: int) -> Iterator[T]:
        """Yield up to `count` members in the order of arrival. O(n log n) in the members yielded and the stale places
        before them. The queue must not change meanwhile."""
        places, last = self._places, -1
        nearest = [(places[0], 0)] if places else []
        while nearest and count:
            place, at = heappop(nearest)
            if place != last and place in self._members:
                yield self._members[place]
                count -= 1
            last = place
            for child in range(2 * at + 1, min(2 * at + 3, len(places))):
                heappush(nearest, (places[child], child))

    def remove(self, place: int) -> T:
        member = self._members.pop(place)
        if self._places[0] == place:
            heappop(self._places)
        elif len(self._places) > 2 * len(self._members) + _STALE_PLACES_MAX:
            self._places = list(self._members)
            heapify(self._places)
        return member


SLACK = 64
"""Entries that the heap may hold beyond twice the number of names."""


class LazyMinHeap:
    """A heap of names with keys that mostly rise: a stale entry is corrected only when it reaches the top.

    An entry holds the key at the time of its push. While keys only rise, this is a lower bound of the current key. When
    a stale entry is at the top, the current key replaces it. A rise costs at most one such replacement, whatever the
    other keys do, so `lowest` is O(log names) amortized and a rising key costs nothing at all. A key that falls must be
    announced (`key_decreased`), which pushes a fresh entry. Its old entry is dropped when it reaches the top, or when
    stale entries outnumber the names.

    Orders names by `key(name)` and ties by name, so that the same events give the same order.
    """

    __slots__ = ("_heap", "_key", "_members")

    def __init__(self, key: Callable[[str], float]) -> None:
        self._key = key
        self._members: set[str] = set()
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def entries(self) -> int:
        """Return the number of heap entries, stale ones included."""
        return len(self._heap)

    def add(self, name: str) -> None:
        self._members.add(name)
        self._push(name)

    def remove(self, name: str) -> None:
        """Remove a name if it is present."""
        self._members.discard(name)

    def key_decreased(self, name: str) -> None:
        """Correct the position of a name after its key fell. An absent name is ignored."""
        if name in self._members:
            self._push(name)

    def lowest(self) -> tuple[float, str] | None:
        """Return the lowest key and its name, which stays in the heap; None if the heap is empty."""
        heap, members, key_of = self._heap, self._members, self._key
        while heap:
            pushed, name = heap[0]
            if name not in members:
                heappop(heap)
                continue
            key = key_of(name)
            if key == pushed:
                return heap[0]
            if key > pushed:
                heapreplace(heap, (key, name))
            else:
                heappop(heap)
        return None

    def above_lowest(self) -> float:
        """Return a lower bound of the keys of all names but the lowest one; infinity if there are no others.

        Call it after `lowest`, which brings the lowest name to the top.
        """
        heap = self._heap
        if len(heap) > 2:
            return min(heap[1][0], heap[2][0])
        return heap[1][0] if len(heap) == 2 else inf

    def _push(self, name: str) -> None:
        heappush(self._heap, (self._key(name), name))
        if len(self._heap) > 2 * len(self._members) + SLACK:
            self._heap = [(self._key(member), member) for member in self._members]
            heapify(self._heap)


@dataclass(slots=True)
class _Counter:
    """Rises by `per_step` with each step for so many running `requests`. `value`: what it was at `since_step`."""

    value: float
    since_step: int = 0
    per_step: float = 0.0
    requests: int = 0


class TenantCounters:
    """A counter for each tenant that rises with every decode step while requests of the tenant run.

    Counters are in service units over weight. `step`: decode steps so far, which the owner increments.

    A decode step costs nothing: a counter is brought up to date only when it is read or changed.

    `may_exceed` reads all counters only if one may have reached the level since they were last read: since then the
    highest rose by no more than the largest pace for each step, and what was added otherwise is noted.
    """

    __slots__ = ("_ceiling", "_counters", "_rising", "step")

    def __init__(self) -> None:
        self.step = 0
        self._counters: dict[str, _Counter] = {}
        self._rising: dict[str, _Counter] = {}
        """The counters of the tenants that have running requests."""
        self._ceiling: tuple[float, float, int] | None = None
        """At a step, no counter of a tenant with running requests was above the first figure, and none rises faster
        than the second. None before it is first needed."""

    def __len__(self) -> int:
        return len(self._counters)

    def value(self, tenant: str) -> float:
        """Return the tenant's counter; 0 if it has none."""
        counter = self._counters.get(tenant)
        return 0.0 if counter is None else counter.value + counter.per_step * (self.step - counter.since_step)

    def steps_below(self, tenant: str, level: float) -> float:
        """Return for how many steps the counter, which is at most `level`, surely stays below it or does not rise."""
        counter = self._counters.get(tenant)
        if counter is None or counter.per_step <= 0.0:
            return inf
        return max(0.0, (level - self.value(tenant)) // counter.per_step - 1)

    def add(self, tenant: str, amount: float) -> None:
        counter = self._counters.get(tenant)
        if counter is None:
            self._counters[tenant] = _Counter(amount)
            return
        counter.value += amount
        if self._ceiling is not None and counter.requests:
            self._note_rise(tenant)

    def lift(self, tenant: str, level: float) -> None:
        """Raise the counter to at least `level`."""
        counter = self._settle(tenant)
        counter.value = max(counter.value, level)
        if self._ceiling is not None and counter.requests:
            self._note_rise(tenant)

    def run(self, tenant: str, per_step: float) -> None:
        """Add `per_step` to the counter at every step from now on, for one more running request."""
        counter = self._settle(tenant)
        if not counter.requests:
            self._rising[tenant] = counter
        counter.requests += 1
        counter.per_step += per_step
        if self._ceiling is not None:
            self._note_rise(tenant)

    def stop(self, tenant: str, per_step: float) -> None:
        """Undo a `run` of the same `per_step`: the request no longer runs."""
        counter, step = self._rising[tenant], self.step
        counter.value += counter.per_step * (step - counter.since_step)
        counter.since_step = step
        counter.requests -= 1
        counter.per_step -= per_step
        if not counter.requests:
            counter.per_step = 0.0
            del self._rising[tenant]

    def may_exceed(self, level: float) -> bool:
        """Return False if certainly no tenant with running requests has a counter above `level`."""
        if self._ceiling is not None:
            highest, per_step, since = self._ceiling
            if highest + per_step * (self.step - since) <= level:
                return False
        highest = max(map(self.value, self._rising), default=-inf)
        self._ceiling = highest, max((each.per_step for each in self._rising.values()), default=0.0), self.step
        return highest > level

    def keep(self, wanted: Callable[[str, float], bool]) -> None:
        """Drop the counters that are not wanted. None of their tenants may have a running request."""
        self._counters = {name: counter for name, counter in self._counters.items() if wanted(name, counter.value)}

    def drop(self, tenant: str) -> None:
        """Drop the counter of a tenant without running requests."""
        self._counters.pop(tenant, None)

    def _note_rise(self, tenant: str) -> None:
        """Raise the ceiling for a tenant with running requests that rose, or rises faster from now on."""
        assert self._ceiling is not None  # noqa: S101
        highest, per_step, since = self._ceiling
        now = highest + per_step * (self.step - since) if highest > -inf else highest
        self._ceiling = max(now, self.value(tenant)), max(per_step, self._rising[tenant].per_step), self.step

    def _settle(self, tenant: str) -> _Counter:
        """Bring the tenant's counter up to date, and return it."""
        counter = self._counters.get(tenant)
        if counter is None:
            counter = self._counters[tenant] = _Counter(0.0)
        counter.value += counter.per_step * (self.step - counter.since_step)
        counter.since_step = self.step
        return counter


_ABSENT_KEPT_MAX = 10_000
"""Absent tenants that are remembered. Beyond it, the tenant absent for the longest time restarts from zero."""


@dataclass(slots=True)
class TenantService:
    """Tokens, and service in the units of h; weights are not applied."""

    input_tokens: int = 0
    output_tokens: int = 0
    service: float = 0.0

    def __add__(self, other: TenantService) -> TenantService:
        tokens = self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens
        return TenantService(*tokens, self.service + other.service)


_NOTHING = TenantService()


@dataclass(slots=True)
class _PresentTenant:
    """`requests`: how many of its requests wait or run."""

    received: TenantService
    requests: int = 0


class ServiceByTenant:
    """The service that each tenant has received, for reports and metrics; no decision depends on it.

    A tenant is present while at least one of its requests waits or runs. Decisions need nothing of an absent one: what
    is kept of it lets its counts go on when it returns.
    """

    def __init__(self) -> None:
        self._present: dict[str, _PresentTenant] = {}
        self._absent: OrderedDict[str, TenantService] = OrderedDict()
        self._changed: OrderedDict[str, None] = OrderedDict()
        """Tenants whose service, or whose place in the queues, changed since they were taken; the oldest change first.
        Where nothing takes them, the oldest are dropped."""

    def add_request(self, tenant: str) -> None:
        present = self._present.get(tenant)
        if present is None:
            received = self._absent.pop(tenant) if tenant in self._absent else TenantService()
            present = self._present[tenant] = _PresentTenant(received)
        present.requests += 1
        self._changed[tenant] = None

    def remove_request(self, tenant: str) -> bool:
        """Return whether the tenant is still present."""
        present = self._present[tenant]
        present.requests -= 1
        self._changed[tenant] = None
        if present.requests:
            return True
        received = self._present.pop(tenant).received
        if received.input_tokens or received.output_tokens:
            self._absent[tenant] = received
        if len(self._absent) > _ABSENT_KEPT_MAX:
            self._absent.popitem(last=False)
        if len(self._changed) > len(self._present) + _ABSENT_KEPT_MAX:
            self._changed.popitem(last=False)
        return False

    def is_present(self, tenant: str) -> bool:
        return tenant in self._present

    def add(self, tenant: str, service: float, input_tokens: int, output_tokens: int) -> None:
        """Add to what a present tenant received; a refund is negative."""
        received = self._present[tenant].received
        received.service += service
        received.input_tokens += input_tokens
        received.output_tokens += output_tokens
        self._changed[tenant] = None

    def by_tenant(self) -> dict[str, TenantService]:
        """Return a copy."""
        present = {tenant: present.received for tenant, present in self._present.items()}
        return {tenant: replace(received) for tenant, received in (self._absent | present).items()}

    def mark_changed(self, tenant: str) -> None:
        """Let `take_changed` return the tenant."""
        self._changed[tenant] = None

    @property
    def changes(self) -> int:
        return len(self._changed)

    def take_changed(self, most: int) -> list[tuple[str, TenantService]]:
        """Return up to `most` tenants that changed since they were last returned here, the oldest change first, and
        what they received, which the caller must not change."""
        taken = [self._changed.popitem(last=False)[0] for _ in range(min(most, len(self._changed)))]
        return [(name, self._service_of(name)) for name in taken]

    def _service_of(self, tenant: str) -> TenantService:
        present = self._present.get(tenant)
        return self._absent.get(tenant, _NOTHING) if present is None else present.received
