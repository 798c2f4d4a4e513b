"""A pool as the gate sees it: workers, slots and leases, lines and their clocks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dispatcher.policies.clocks import Clocks


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot's expiring claim. It lives while the worker's heartbeats name it; before the first one, for a grace."""

    tenant: str
    invocation: str
    attempt: int
    leased_at: float

    @property
    def execution(self) -> str:
        """Names (tenant, invocation, attempt) in heartbeats."""
        return f"{self.tenant}/{self.invocation}#{self.attempt}"


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as it registered and last beat."""

    id: str
    pool: str
    url: str
    model: str
    slots: int
    seat: int = 0
    """Its place in the pool's directory, 0 to SEATS_MAX - 1: given by the store at registration."""
    context_tokens: int = 0
    bytes_per_token: float = 1.0
    alive_until: float = 0.0
    draining: bool = False
    kv_use: float = 0.0
    queue_length: int = 0
    service_per_s: float = 0.0
    """Measured capacity in service units a second; 0 while unknown."""
    live: frozenset[str] = frozenset()
    """Executions (Lease.execution) that it reported running at its last heartbeat."""
    leases: Mapping[int, Lease] = field(default_factory=dict)

    def takes_work(self, now: float) -> bool:
        return not self.draining and now < self.alive_until

    def free_slots(self) -> list[int]:
        return [number for number in range(self.slots) if number not in self.leases]


SEATS_MAX = 16
"""Most workers in one shard of a pool: all of them, the pool's clock and a line are read in one request."""


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
    """What all lines of a pool share."""

    name: str
    virtual_time: float = 0.0
    """V. It may lag by the dispatches whose note has not been written yet (`note_pool`): never ahead, never falling."""
    backlogged: bool = False
    """A hint that somebody waits, so that an arrival does not overtake; never the proof that nobody does."""
    rate_scale: float = 1.0
    """Factor on guaranteed rates while they are overbooked."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent-enough look: every write that follows from it checks again what it relies on."""

    pool: Pool
    queue: TenantQueue
    workers: tuple[Worker, ...]


@dataclass(frozen=True, slots=True)
class WaitingQueue:
    """A line as an index shows it: a hint."""

    name: str
    tat: float
    vft: float
