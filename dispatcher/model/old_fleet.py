"""A pool as the gate sees it: workers with their slots and leases, queues with their clocks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dispatcher.policies.clocks import Clocks


@dataclass(frozen=True, slots=True)
class Lease:
    """An expiring claim on a slot.

    It is valid while the worker's heartbeats name its execution. Before the first of these it is valid for
    GateSettings.lease_grace_s.
    """

    tenant: str
    invocation: str
    attempt: int
    leased_at: float

    @property
    def execution(self) -> str:
        """The name of (tenant, invocation, attempt) in heartbeats."""
        return f"{self.tenant}/{self.invocation}#{self.attempt}"


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as its registration and its last heartbeat describe it. Times are Unix seconds."""

    id: str
    pool: str
    url: str
    model: str
    slots: int
    seat: int = 0
    """Its place in the pool's directory, 0 to SEATS_MAX - 1. The store assigns it at registration."""
    context_tokens: int = 0
    bytes_per_token: float = 1.0
    alive_until: float = 0.0
    draining: bool = False
    kv_use: float = 0.0
    queue_length: int = 0
    service_per_s: float = 0.0
    """Measured capacity in service units a second; 0 while unknown."""
    live: frozenset[str] = frozenset()
    """The executions (Lease.execution) that were running at its last heartbeat."""
    leases: Mapping[int, Lease] = field(default_factory=dict)

    def takes_work(self, now: float) -> bool:
        return not self.draining and now < self.alive_until

    def free_slots(self) -> list[int]:
        return [number for number in range(self.slots) if number not in self.leases]


SEATS_MAX = 16
"""Most workers in one shard of a pool: one request reads all of them, the pool's clock and a queue."""


@dataclass(frozen=True, slots=True)
class TenantQueue:
    """A tenant's clocks and its waiting invocations."""

    name: str
    clocks: Clocks = field(default_factory=Clocks)
    waiting: int = 0
    reserved: float = 0.0
    """Sum of the open estimates (service units)."""
    spent: float = 0.0
    """Sum of the settled service (service units)."""


@dataclass(frozen=True, slots=True)
class Pool:
    """What all queues of a pool share."""

    name: str
    virtual_time: float = 0.0
    """V. It may lag by the dispatches that `note_pool` has not recorded yet. It is never ahead and never falls."""
    backlogged: bool = False
    """A hint that a request is waiting, so that an arrival does not overtake it. False proves nothing."""
    rate_scale: float = 1.0
    """Factor on guaranteed rates while they add up to more than the capacity."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The pool, one queue and all workers, read without a transaction.

    Each write that follows from a snapshot checks again what it relies on.
    """

    pool: Pool
    queue: TenantQueue
    workers: tuple[Worker, ...]


@dataclass(frozen=True, slots=True)
class WaitingQueue:
    """A queue as an index shows it: a hint."""

    name: str
    tat: float
    vft: float
