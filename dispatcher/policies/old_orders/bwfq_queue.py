"""A tenant in the two-clock gate: its clocks, its share, and its requests in order of arrival.

The queue is a doubly linked list, so that any request can be cancelled in O(1) and an empty queue costs nothing; a
deque takes 600 bytes for each tenant. Plain slots, no dataclass: an object is made for each waiting request.
"""

from __future__ import annotations

from math import inf

from dispatcher.policies.clocks import Share

Entry = tuple[float, int, "Tenant"]
"""In a heap: a clock's value, the arrival of the tenant's oldest request (no two alike), and the tenant."""


class Waiting:
    """A request that waits. `arrival`: its number in the order of all arrivals."""

    __slots__ = ("after", "arrival", "before", "cost", "invocation_id", "tenant")

    def __init__(self, invocation_id: str, cost: float, arrival: int, tenant: Tenant, before: Waiting | None) -> None:
        self.invocation_id = invocation_id
        self.cost = cost
        self.arrival = arrival
        self.tenant = tenant
        self.before = before
        self.after: Waiting | None = None


class Tenant:
    """`entry` and `later_entry`: its live entries in the heaps, none while nothing of it waits."""

    __slots__ = (
        "burst_s", "entry", "head", "in_idle", "later_entry", "name", "rate_per_s", "running", "tail", "tat", "vft",
        "waiting", "weight",
    )  # fmt: skip

    def __init__(self, name: str, share: Share) -> None:
        self.name = name
        self.tat = -inf
        self.vft = 0.0
        self.running = 0
        self.waiting = 0
        self.head: Waiting | None = None
        self.tail: Waiting | None = None
        self.entry: Entry | None = None
        self.later_entry: Entry | None = None
        self.in_idle = False
        self.take(share)

    def take(self, share: Share) -> None:
        """Set the share. Without a guarantee there is no bucket: tat has no meaning, and is that of a new tenant."""
        self.weight = share.weight
        self.rate_per_s = share.rate_per_s
        self.burst_s = share.burst / share.rate_per_s if share.rate_per_s else 0.0
        if not share.rate_per_s:
            self.tat = -inf

    def forget(self) -> None:
        """Set the clocks to those of a new tenant."""
        self.tat = -inf
        self.vft = 0.0

    def remove(self, waiting: Waiting) -> None:
        """Take a request out of the queue."""
        before, after = waiting.before, waiting.after
        if before is None:
            self.head = after
        else:
            before.after = after
        if after is None:
            self.tail = before
        else:
            after.before = before
        self.waiting -= 1

    def is_forgettable(self, now: float, virtual_time: float) -> bool:
        """clocks.is_forgettable, of a tenant with nothing waiting or running."""
        return self.tat <= now - self.burst_s and self.vft <= virtual_time
