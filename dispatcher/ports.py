"""What the operations need of the world. Stores, clients and clocks implement these; simulations too.

Each write of a store is one atomic statement that carries its own conditions: what a read or an index said before is a
hint. Times are Unix seconds, costs service units.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from dispatcher.model.fleet import Lease, Snapshot, WaitingQueue, Worker
from dispatcher.model.invocation import Invocation, Slot
from dispatcher.model.outcomes import Settled, Written
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.model.worker_protocol import WorkEvent, WorkOrder
from dispatcher.policies.clocks import Debit, Step


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


class InvocationStore(Protocol):
    """Invocations, lines, slots. Each write method is one atomic, conditional statement."""

    async def snapshot(self, pool: str, queue: str) -> Snapshot:
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
        longer so, or the clock left the lift's branch. FULL at `waiting_max`; EXISTS if the invocation is there.
        """
        ...

    async def waiting_queues(self, pool: str, now: float, limit: int) -> Sequence[WaitingQueue]:
        """Lines with someone waiting: those with tat <= now first, then the rest, each by vft; at most `limit`."""
        ...

    async def head_of(self, queue: str) -> Invocation | None:
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

    async def detach(self, tenant: str, invocation_id: str) -> Written:
        """The caller let go of a QUEUED invocation whose request was kept: the queue's consumer is to execute it.

        CONFLICT if it is not queued any more.
        """
        ...

    async def overdue(self, pool: str, now: float, limit: int) -> Sequence[Invocation]:
        """QUEUED invocations whose deadline has passed."""
        ...


class WorkerRegistry(Protocol):
    async def register(self, worker: Worker) -> Worker | None:
        """Take a seat in the pool's directory (an own or a dead worker's one is reused); None if all are taken."""
        ...

    async def heartbeat(self, worker: Worker) -> Worker | None:
        """Renew: liveness, load, executions. Returns what is stored, its leases included; None if the seat is lost."""
        ...

    async def leave(self, worker: Worker) -> None: ...

    async def workers(self, pool: str) -> Sequence[Worker]: ...

    async def free_slot(self, worker: Worker, slot: Slot, lease: Lease) -> Written:
        """Take away a lease whose invocation is already settled or gone; CONFLICT if the slot holds another."""
        ...


class Store(TenantStore, InvocationStore, WorkerRegistry, Protocol):
    """All three, as one backend implements them."""


class WorkerClient(Protocol):
    def execute(self, worker: Worker, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        """Stream an execution. Closing the iterator aborts the work. Raises WorkerFailed where the stream breaks."""
        ...


class Launcher(Protocol):
    async def launch(self, tenant: str, invocation_id: str, attempt: int) -> None:
        """Have a detached, dispatched invocation executed by the queue's consumer. The message is only a hint."""
        ...
