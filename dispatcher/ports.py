"""What the operations need of the world. Stores, clients and clocks implement these; simulations too.

Each write of a store is one atomic statement that carries its own conditions: what a read or an index said before is a
hint. Times are Unix seconds, costs service units.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dispatcher.invocation import Invocation, Slot
from dispatcher.outcomes import Settled, Written
from dispatcher.policies.clocks import Clocks, Debit, Step, Terms
from dispatcher.policies.tiers import Tier


class Clock(Protocol):
    def now(self) -> float:
        """Unix seconds."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    def new(self) -> str:
        """An id never given before, safe in a URL."""
        ...

    def secret(self) -> str:
        """At least 128 random bits, safe in a URL, for keys."""
        ...


# ── Tenants ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's configuration. Limits of 0 mean none of it is allowed; bounds are checked before anything is queued."""

    name: str
    line: str
    """The line its invocations wait in: its own name; under the `fcfs` order everybody's."""
    pool: str = "default"
    terms: Terms = field(default_factory=Terms)
    tier: Tier = Tier.STANDARD
    models: tuple[str, ...] | None = None
    """Models it may use; None for all of the pool."""
    queue_items_max: int = 1000
    """Most invocations that may wait in its line."""
    max_tokens_max: int = 4096
    """Highest max_tokens that it may ask for."""
    version: int = 1


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key as it is stored: never the key itself."""

    prefix: str
    digest: str
    """SHA-256 of the whole key, hexadecimal."""
    tenant: str
    expires_at: float | None = None


class TenantStore(Protocol):
    async def find_key(self, prefix: str) -> KeyRecord | None: ...

    async def get_tenant(self, name: str) -> Tenant | None: ...

    async def put_tenant(self, tenant: Tenant, *, expected_version: int | None) -> Written:
        """Create (expected_version None; EXISTS if there) or replace (CONFLICT if the version moved)."""
        ...

    async def list_tenants(self) -> Sequence[Tenant]: ...

    async def delete_tenant(self, name: str) -> None:
        """The configuration and the keys; invocations run out by themselves."""
        ...

    async def put_key(self, key: KeyRecord) -> None: ...

    async def delete_key(self, prefix: str) -> None: ...

    async def keys_of(self, tenant: str) -> Sequence[KeyRecord]: ...


# ── The pool: its workers, its lines, its invocations ─────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot's expiring claim. It lives while the worker's heartbeats name it; before the first one, for a grace."""

    tenant: str
    invocation: str
    attempt: int
    granted_at: float

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
class Line:
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
    line: Line
    workers: tuple[Worker, ...]


@dataclass(frozen=True, slots=True)
class WaitingLine:
    """A line as an index shows it: a hint."""

    name: str
    tat: float
    vft: float


class InvocationStore(Protocol):
    """Invocations, lines, slots. Each write method is one atomic, conditional statement."""

    async def look(self, pool: str, line: str) -> Snapshot:
        """The pool, the line and all workers, in one request."""
        ...

    async def admit(self, invocation: Invocation, debit: Debit, now: float) -> Written:
        """Write a new RUNNING invocation, take its debit from the line and lease its slot, together.

        CONFLICT if the slot is taken, its worker no longer takes work, somebody waits in the line, or the clocks left
        the debit's branch; EXISTS if the invocation is there already.
        """
        ...

    async def enqueue(self, invocation: Invocation, lift: Step | None, waiting_max: int) -> Written:
        """Write a new QUEUED invocation and put it into its line, together.

        `lift` moves the line's vft where nothing waited before, and is None where someone did: CONFLICT if that is no
        longer so, or the clock left the lift's branch. FULL at `waiting_max`; EXISTS if the invocation is there already.
        """
        ...

    async def waiting_lines(self, pool: str, now: float, limit: int) -> Sequence[WaitingLine]:
        """Lines with someone waiting: those with tat <= now first, then the rest, each by vft; at most `limit`."""
        ...

    async def head_of(self, line: str) -> Invocation | None:
        """The oldest waiting invocation of a line."""
        ...

    async def dispatch(self, invocation: Invocation, debit: Debit, now: float) -> Written:
        """Move a QUEUED invocation to RUNNING (as `invocation` now reads), out of its line, debit, slot: together.

        CONFLICT if it is no longer queued under the attempt before, the slot is taken, its worker no longer takes
        work, or the clocks left the debit's branch.
        """
        ...

    async def note_pool(
        self,
        pool: str,
        *,
        virtual_time: float | None = None,
        backlogged: bool | None = None,
        rate_scale: float | None = None,
    ) -> None:
        """Raise V to `virtual_time` (never lowers it); set the hints that are given."""
        ...

    async def get(self, tenant: str, invocation_id: str) -> Invocation | None: ...

    async def get_many(self, ids: Sequence[tuple[str, str]]) -> Sequence[Invocation]:
        """Those of (tenant, invocation id) that exist, in one request per 100."""
        ...

    async def settle(self, ended: Invocation, tat: Step, vft: Step) -> Settled:
        """End a RUNNING invocation: state, answer and true service; the line's clocks, reserved and spent; its slot.

        FENCED if the invocation is not running under this attempt. A slot that no longer holds this execution is left.
        """
        ...

    async def requeue(self, invocation: Invocation, tat: Step, vft: Step) -> Settled:
        """Put a RUNNING invocation (given as it ran) back into its line, refund its debit, free its slot."""
        ...

    async def drop(self, ended: Invocation) -> Settled:
        """End a QUEUED invocation (expired, cancelled): state and answer; out of its line."""
        ...

    async def detach(self, tenant: str, invocation_id: str, body: str) -> Written:
        """The caller let go of a QUEUED invocation: keep its request so that the queue's consumer can execute it."""
        ...

    async def overdue(self, pool: str, now: float, limit: int) -> Sequence[Invocation]:
        """QUEUED invocations whose deadline has passed."""
        ...


class WorkerRegistry(Protocol):
    async def register(self, worker: Worker) -> Worker | None:
        """Take a seat in the pool's directory (an own or a dead worker's one is reused); None if all are taken."""
        ...

    async def beat(self, worker: Worker) -> Worker | None:
        """Renew: liveness, load, executions. Returns what is stored, its leases included; None if the seat is lost."""
        ...

    async def leave(self, worker: Worker) -> None: ...

    async def workers(self, pool: str) -> Sequence[Worker]: ...

    async def free_slot(self, worker: Worker, slot: Slot, lease: Lease) -> Written:
        """Take away a lease whose invocation is already settled or gone; CONFLICT if the slot holds another."""
        ...


class Store(TenantStore, InvocationStore, WorkerRegistry, Protocol):
    """All three, as one backend implements them."""


# ── Workers, as the gate calls them ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """One execution as the worker is asked for it. The tenant's weight and tier are set here and nowhere else."""

    tenant: str
    invocation: str
    attempt: int
    slot: int
    model: str
    weight: float
    tier: Tier
    deadline_at: float
    prompt: str | None
    messages: tuple[Mapping[str, str], ...] | None
    max_tokens: int
    temperature: float
    seed: int | None
    stop: tuple[str, ...]

    @property
    def execution(self) -> str:
        return f"{self.tenant}/{self.invocation}#{self.attempt}"


@dataclass(frozen=True, slots=True)
class WorkStarted:
    input_tokens: int


@dataclass(frozen=True, slots=True)
class WorkToken:
    text: str
    output_tokens: int


@dataclass(frozen=True, slots=True)
class WorkFinished:
    reason: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class WorkRefused:
    """The worker will not or cannot serve this: `status` as HTTP has it; a tenant's error where it is below 500."""

    status: int
    code: str
    message: str


WorkEvent = WorkStarted | WorkToken | WorkFinished | WorkRefused


class WorkerClient(Protocol):
    def execute(self, url: str, order: WorkOrder) -> AsyncIterator[WorkEvent]:
        """Stream an execution. Closing the iterator aborts the work. Raises WorkerFailed where the stream breaks."""
        ...


class Launcher(Protocol):
    async def launch(self, tenant: str, invocation_id: str, attempt: int) -> None:
        """Have a detached, dispatched invocation executed by the queue's consumer. The message is only a hint."""
        ...
