"""A shard's tenants, their queues and their calls, as the orders see them.

A tenant has one queue for each model, and another one for its deferred calls. A queue is a heap of (priority, arrival).
If all calls have the same priority, it is first come, first served. Entries are lazy: a call that leaves is only
marked, and its entry is dropped when it gets to the front, or when there are too many dead entries. A call that returns
gets its old place.

These are plain classes with slots, not dataclasses, because an object is made for each call.

`SortedEntries`, a list of sorted blocks, holds what waits in order, and any entry of it can be removed. A heap with
lazy entries is faster on average, but its dead entries end together: after a round of 10,000 tenants whose calls all
cost more than their estimates, one decision dropped 10,000 of them (35 ms). Here a change moves at most two blocks of
pointers, whatever came before.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from dispatcher.model.call import CallTerms, TenantConfig

BLOCK_MOST = 512
"""Entries of a block. A longer one is split, and one with less than a quarter of it joins its neighbour."""

Entry = tuple[Any, ...]
"""A key and what it stands for. No two entries of one list are equal, and all of them can be compared."""


class SortedEntries:
    """`first`: the lowest entry, or None. Read at every decision, so it is an attribute."""

    __slots__ = ("_blocks", "_lasts", "first")

    def __init__(self) -> None:
        self.first: Entry | None = None
        self._blocks: list[list[Entry]] = [[]]
        """The entries in blocks. There is at least one block. A block is empty only if it is the only block."""
        self._lasts: list[Entry] = []
        """The last entry of each block but the last one. So with one block there is nothing to keep."""

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def __iter__(self) -> Iterator[Entry]:
        for block in self._blocks:
            yield from block

    def add(self, entry: Entry) -> None:
        lasts = self._lasts
        place = bisect_left(lasts, entry) if lasts else 0
        block = self._blocks[place]
        insort(block, entry)
        if place == 0:
            self.first = block[0]
        if len(block) > BLOCK_MOST:
            self._split(place)

    def remove(self, entry: Entry) -> None:
        """Raises KeyError if the entry is not there."""
        blocks, lasts, place, number = self._blocks, self._lasts, 0, 0
        block = blocks[0]
        if entry is not self.first:
            place = bisect_left(lasts, entry) if lasts else 0
            block = blocks[place]
            number = bisect_left(block, entry)
            if number == len(block) or block[number] != entry:
                raise KeyError(entry)
        del block[number]
        if lasts:
            self._shrunk(place)
        if place == 0:
            self.first = blocks[0][0] if blocks[0] else None

    def _shrunk(self, place: int) -> None:
        """Keep the invariants of several blocks, of which this one has lost an entry."""
        block = self._blocks[place]
        if 4 * len(block) < BLOCK_MOST:
            self._join(min(place, len(self._blocks) - 2))
        elif place < len(self._lasts):
            self._lasts[place] = block[-1]

    def _split(self, place: int) -> None:
        block = self._blocks[place]
        half = len(block) // 2
        self._blocks.insert(place + 1, block[half:])
        self._lasts.insert(place, block[half - 1])
        del block[half:]

    def _join(self, place: int) -> None:
        """Make one block of this one and the next, or two of about the same length."""
        block = self._blocks[place]
        block += self._blocks.pop(place + 1)
        del self._lasts[place]
        if place < len(self._lasts):
            self._lasts[place] = block[-1]
        if len(block) > BLOCK_MOST:
            self._split(place)


SLACK = 64
"""Beside n waiting calls, a queue keeps about n + SLACK dead entries before it drops them all."""

Clocks = tuple[float, ...]
"""The numbers that an order keeps for a tenant. Their meaning belongs to the order."""
UNKNOWN = TenantConfig(0, 1.0, 0.0, 0.0, "standard", 0)
"""The configuration of a tenant before its first one."""


class Call:
    """An accepted call. `arrival`: its number in the order of all arrivals.

    The terms that every decision reads are attributes of this class too: a read takes a fifth of the time of a field of
    a named tuple.
    """

    __slots__ = (
        "arrival", "arrived_at", "attempt", "cancelling", "charge_in_profile", "charge_rate_per_s", "charge_weight",
        "cost", "counted", "deferred", "dispatched_at", "id", "lost_on", "model", "priority", "process", "queued",
        "swap_service", "tenant", "terms", "watchers", "worker",
    )  # fmt: skip

    def __init__(self, call_id: str, tenant: Tenant, terms: CallTerms, arrival: int, priority: float) -> None:
        self.id = call_id
        self.tenant = tenant
        self.terms = terms
        self.model = terms.model
        self.cost = terms.cost
        self.deferred = terms.deferred
        self.arrival = arrival
        self.priority = priority
        self.queued = False
        """Whether it waits in its queue and may be dispatched."""
        self.attempt = 0
        self.counted = 0
        """Attempts that count towards ATTEMPTS_MAX."""
        self.worker = ""
        self.lost_on = ""
        """The worker of its last attempt that counted and was returned. The next attempt prefers another worker."""
        self.charge_in_profile = False
        self.charge_rate_per_s = 0.0
        self.charge_weight = 1.0
        self.cancelling = False
        self.arrived_at = self.dispatched_at = 0.0
        self.process = ""
        self.swap_service = 0.0
        """What it pays at its end for swaps that were ordered for it, in service units."""
        self.watchers: tuple[str, ...] = ()
        """Processes that held its caller before and still get its end. Each of them may know its attempt, so no single
        process can promise that the attempt does not begin."""

    def __lt__(self, other: Call) -> bool:
        return False  # a call may have several entries in its queue's heap


class TenantQueue:
    """The waiting calls of one tenant for one model.

    `places`: its entries in an index, each with the list that holds it; empty if the queue is in no index.
    `indexed_clocks`, `indexed_arrival`: the tenant's clocks and the arrival of the head when they were made.
    """

    __slots__ = ("calls", "count", "indexed_arrival", "indexed_clocks", "model", "places", "tenant")

    def __init__(self, tenant: Tenant, model: str) -> None:
        self.tenant = tenant
        self.model = model
        self.places: tuple[tuple[SortedEntries, Entry], ...] = ()
        self.indexed_clocks: Clocks = ()
        self.indexed_arrival = 0
        self.calls: list[tuple[float, int, Call]] = []
        self.count = 0

    def move(self, *places: tuple[SortedEntries, Entry]) -> None:
        """Put its entries into these lists of an index, instead of where they are. Without any, it leaves its index."""
        for entries, entry in self.places:
            entries.remove(entry)
        for entries, entry in places:
            entries.add(entry)
        self.places = places

    def add(self, call: Call) -> None:
        call.queued = True
        self.count += 1
        heappush(self.calls, (call.priority, call.arrival, call))

    def remove(self, call: Call) -> None:
        call.queued = False
        self.count -= 1
        if self.calls[0][2] is call:
            heappop(self.calls)
        elif len(self.calls) > 2 * self.count + SLACK:
            self.calls = list({entry[1]: entry for entry in self.calls if entry[2].queued}.values())
            heapify(self.calls)

    def head(self) -> Call:
        """Return the first waiting call. Raises IndexError if none waits."""
        calls = self.calls
        while not calls[0][2].queued:
            heappop(calls)
        return calls[0][2]


class Tenant:
    """A tenant with its share, its clocks, its queues, and the numbers of its calls."""

    __slots__ = (
        "clocks", "config", "direct", "is_idle", "name", "promised_per_s", "queues", "running", "spent", "suspended",
        "waiting",
    )  # fmt: skip

    def __init__(self, name: str, clocks: Clocks) -> None:
        self.name = name
        self.clocks = clocks
        self.config = UNKNOWN
        self.queues: dict[tuple[str, bool], TenantQueue] = {}
        """Its queues by model, and by whether the calls are deferred."""
        self.waiting = 0
        """Calls in its queues, without the suspended ones."""
        self.direct = 0
        """The number of calls in `waiting` that are not deferred."""
        self.suspended = 0
        """Waiting calls of processes that are silent."""
        self.running = 0
        self.spent = 0.0
        """Sum of the true service of its calls that have ended since it was last forgotten."""
        self.is_idle = False
        """Whether it is among the shard's idle tenants."""
        self.promised_per_s = 0.0
        """What this tenant adds to the shard's sum of promised rates: its rate while it is active, otherwise 0."""

    @property
    def is_active(self) -> bool:
        return self.running > 0 or self.waiting > 0 or self.suspended > 0

    def queue(self, model: str, deferred: bool) -> TenantQueue:
        found = self.queues.get((model, deferred))
        if found is None:
            found = self.queues[model, deferred] = TenantQueue(self, model)
        return found
