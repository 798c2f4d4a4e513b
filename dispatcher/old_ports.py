"""The interfaces that the operations need: clock, ids, store, worker client, launcher. Simulations implement them too.

Each write of a store is one atomic statement that carries its own conditions; an earlier read of a table or an index is
a hint only. Times are Unix seconds, costs are service units.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from dispatcher.model.old_fleet import Lease, Snapshot, WaitingQueue, Worker
from dispatcher.model.old_invocation import Invocation, Slot
from dispatcher.model.old_outcomes import Settled, Written
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.model.worker_protocol import WorkEvent, WorkOrder
from dispatcher.policies.clocks import Debit, Step


class Clock(Protocol):
    def now(self) -> float:
        """Return the time in Unix seconds."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    def new(self) -> str:
        """Return a new id that is safe in a URL."""
        ...

    def secret(self) -> str:
        """Return at least 128 random bits for a key, safe in a URL."""
        ...


class TenantStore(Protocol):
    async def find_key(self, prefix: str) -> KeyRecord | None: ...

    async def get_tenant(self, name: str) -> Tenant | None: ...

    async def put_tenant(self, tenant: Tenant, *, expected_version: int | None) -> Written:
        """Create the tenant (`expected_version` None) or replace its configuration of that version.

        EXISTS if a new tenant is already there; CONFLICT if the version has changed.
        """
        ...

    async def list_tenants(self) -> Sequence[Tenant]: ...

    async def delete_tenant(self, name: str) -> None:
        """Delete the configuration and the keys. Invocations expire by themselves."""
        ...

    async def put_key(self, key: KeyRecord) -> None: ...

    async def delete_key(self, prefix: str) -> None: ...

    async def keys_of(self, tenant: str) -> Sequence[KeyRecord]: ...


class InvocationStore(Protocol):
    """Invocations, queues and slots. Each write is one atomic, conditional statement."""

    async def snapshot(self, pool: str, queue: str) -> Snapshot:
        """Read the pool, the queue and all workers, in one request."""
        ...

    async def admit(self, invocation: Invocation, debit: Debit, now: float) -> Written:
        """Write a new RUNNING invocation, charge its debit to the queue's clocks and lease its slot.

        CONFLICT if the slot is taken, its worker no longer takes work, a request waits in the queue, or the clocks left
        the debit's branch. EXISTS if the invocation is already there.
        """
        ...

    async def enqueue(self, invocation: Invocation, lift: Step | None, waiting_max: int) -> Written:
        """Write a new QUEUED invocation and append it to its queue.

        `lift` moves the queue's vft if the queue was empty; it is None if a request waited. CONFLICT if that has
        changed, or if the clock left the lift's branch. FULL at `waiting_max`. EXISTS if the invocation is there.
        """
        ...

    async def waiting_queues(self, pool: str, now: float, limit: int) -> Sequence[WaitingQueue]:
        """Return at most `limit` queues that are not empty: those with tat <= now first, then the rest, each by vft."""
        ...

    async def head_of(self, queue: str) -> Invocation | None:
        """Return the oldest waiting invocation of a queue, or None."""
        ...

    async def dispatch(self, invocation: Invocation, debit: Debit, now: float) -> Written:
        """Move a QUEUED invocation to RUNNING, in the form given: out of its queue, its debit charged, its slot leased.

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
        """Raise V to `virtual_time` (V never falls), and set the hints that are given."""
        ...

    async def get(self, tenant: str, invocation_id: str) -> Invocation | None: ...

    async def get_many(self, ids: Sequence[tuple[str, str]]) -> Sequence[Invocation]:
        """Return the invocations that exist of these (tenant, invocation id) pairs. One request reads 100."""
        ...

    async def settle(self, ended: Invocation, tat: Step, vft: Step) -> Settled:
        """End a RUNNING invocation: write its state, answer and true service, settle its queue, and free its slot.

        The steps move the queue's clocks; `reserved` and `spent` follow. FENCED if the invocation is not running under
        this attempt. A slot that holds another execution by now is left alone.
        """
        ...

    async def requeue(self, invocation: Invocation, tat: Step, vft: Step) -> Settled:
        """Put a RUNNING invocation back into its queue, refund its debit and free its slot.

        `invocation` is given in the form in which it ran. FENCED as in `settle`.
        """
        ...

    async def drop(self, ended: Invocation) -> Settled:
        """End a QUEUED invocation (expired or cancelled): write its state and answer, take it out of its queue.

        FENCED if it is no longer queued.
        """
        ...

    async def detach(self, tenant: str, invocation_id: str) -> Written:
        """Mark a QUEUED invocation as detached: the SQS consumer executes it, the caller no longer waits.

        Its request must be in `body`. CONFLICT if it is no longer queued.
        """
        ...

    async def overdue(self, pool: str, now: float, limit: int) -> Sequence[Invocation]:
        """Return at most `limit` overdue QUEUED invocations."""
        ...


class WorkerRegistry(Protocol):
    async def register(self, worker: Worker) -> Worker | None:
        """Assign a seat in the pool's directory, its own earlier one or a dead worker's. None if all are taken."""
        ...

    async def heartbeat(self, worker: Worker) -> Worker | None:
        """Write liveness, load and executions. Return what is stored, with its leases; None if the seat is lost."""
        ...

    async def leave(self, worker: Worker) -> None: ...

    async def workers(self, pool: str) -> Sequence[Worker]: ...

    async def free_slot(self, worker: Worker, slot: Slot, lease: Lease) -> Written:
        """Remove the lease of a settled or deleted invocation. CONFLICT if the slot holds another lease."""
        ...


class Store(TenantStore, InvocationStore, WorkerRegistry, Protocol):
    """The three interfaces that one backend implements."""


class WorkerClient(Protocol):
    def execute(self, worker: Worker, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        """Stream an execution. Closing the iterator aborts the work. Raises WorkerFailed if the stream breaks."""
        ...


class Launcher(Protocol):
    async def launch(self, tenant: str, invocation_id: str, attempt: int) -> None:
        """Send the SQS consumer a message to execute a detached, dispatched invocation. The message is only a hint."""
        ...
