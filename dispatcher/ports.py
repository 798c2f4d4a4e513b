"""The interfaces that the gate needs: clock, ids, log, stores, transport, workers. Simulations implement them too.

Times are Unix seconds, costs are service units. Every method of a store raises StoreUnavailable if the store does not
answer; then a write may have been applied.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from dispatcher.model.batches import BatchStore, FileRecords
from dispatcher.model.commands import Command, Offer, Outcome, Over
from dispatcher.model.errors import StoreUnavailable, WorkerFailed
from dispatcher.model.facts import WorkerSet
from dispatcher.model.formats import Reader
from dispatcher.model.kept import Invocation, ResponseStore, StoredAnswer
from dispatcher.model.tenants import TenantStore
from dispatcher.model.usage import TenantRow, UsageRow
from dispatcher.model.worker_protocol import WorkEvent, WorkOrder


class Clock(Protocol):
    def now(self) -> float:
        """Return the time in Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Return the seconds since a fixed moment. This clock is never set back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    def new(self) -> str:
        """Return a new name of 12 characters of a-z and 0-9."""
        ...

    def secret(self) -> str:
        """Return at least 128 random bits for a key, safe in a URL."""
        ...


class Log(Protocol):
    """One shard's history. Positions count from 0; each is written once and never changes. Entries are opaque bytes.

    Two different entries never have equal bytes, because each entry names its writer and the writer's count.
    """

    async def append(self, position: int, entry: bytes) -> bytes:
        """Write the entry unless the position is occupied. Return the bytes at the position: `entry`, or other bytes.

        Repeating an append is safe. If the position has equal bytes, the entry was written.
        Raises EntryTooLarge above 380,000 bytes.
        """
        ...

    async def read(self, position: int, limit: int = 1000) -> Sequence[bytes]:
        """Return the entries from `position` on, without a gap, at most `limit`; empty if there is none yet.

        The read is strongly consistent: it returns every append that succeeded before the read began. Raises LogGap if
        an entry is missing and the read finds a later one. Then the entry was cut or has expired, and the reader must
        load a snapshot.
        """
        ...

    async def last(self) -> tuple[int, bytes] | None:
        """Return the position and the bytes of the last entry, or None. The read is strongly consistent."""
        ...

    async def save_snapshot(self, position: int, nonce: str, state: bytes) -> None:
        """Store the state after all entries below `position`, the parts first and the manifest last.

        Entries may expire 7 days after they were written, snapshots 14 days after. So a shard needs a snapshot at least
        once a day, even if it is idle.
        """
        ...

    async def load_snapshot(self) -> tuple[int, bytes] | None:
        """Return the newest complete snapshot as (position, state), or None. Skip incomplete and damaged snapshots."""
        ...

    async def cut(self, position: int) -> None:
        """Allow the store to delete entries and snapshots below `position`, not before 24 h after they were written."""
        ...


class InvocationStore(Protocol):
    """Durable invocations: every `lambda.invoke`, and every HTTP request with an idempotency key."""

    async def create(self, invocation: Invocation) -> Invocation:
        """Write the invocation unless its tenant has another one with its `key`. Return the one that is stored now."""
        ...

    async def get(self, invocation_id: str) -> Invocation | None: ...

    async def find(self, tenant: str, key: str) -> Invocation | None:
        """Return the tenant's invocation with this key, or None."""
        ...

    async def answer(self, invocation_id: str, answer: StoredAnswer) -> StoredAnswer | None:
        """Store the answer unless there is one, and delete the body. Return the stored answer; None if there is no such
        invocation."""
        ...

    async def share(self, invocation_id: str) -> Invocation | None:
        """Mark the invocation as shared unless it is answered: a repetition of its key will send the call to the gate.

        Return the invocation after that; None if there is no such invocation.
        """
        ...

    async def refuse(self, invocation_id: str, answer: StoredAnswer) -> StoredAnswer | None:
        """Store the answer of a call that the gate refused, unless there is an answer or the invocation is shared.

        Return the answer that is stored after that; None if there is none, or no such invocation.
        """
        ...


class MailboxStore(Protocol):
    """Offers and ends for processes that hold no connection to a leader."""

    async def put(self, process: str, position: int, news: Sequence[bytes]) -> None: ...

    async def read(self, process: str, after: int) -> Sequence[tuple[int, bytes]]:
        """Return the news above position `after`, oldest first."""
        ...


class UsageStore(Protocol):
    """Projections of the log: usage per tenant, application and hour, and the state of active tenants."""

    async def put_usage(self, shard: str, rows: Sequence[UsageRow]) -> None:
        """Replace each row of this shard, unless the stored row has the same or a higher `position`."""

    async def usage(self, tenant: str | None, first_hour: int, last_hour: int) -> Sequence[tuple[str, UsageRow]]:
        """Return (shard, row) for each row of a tenant (None: of all tenants), both hours included.

        They are ordered by hour, tenant, application and shard.
        """
        ...

    async def put_tenant_rows(self, shard: str, rows: Sequence[TenantRow]) -> None:
        """Replace each row, unless the stored row has the same or a higher `position`."""
        ...

    async def tenant_rows(self, shard: str) -> Sequence[TenantRow]:
        """Return the rows of a shard's tenants, ordered by tenant."""
        ...


class Store(TenantStore, InvocationStore, ResponseStore, FileRecords, BatchStore, UsageStore, Protocol):
    """One backend: the logs of all shards, and everything that the shards share."""

    @property
    def mailboxes(self) -> MailboxStore: ...

    def log(self, shard: str) -> Log:
        """Open the log of a shard (its name: model/shards.py)."""
        ...

    async def erase(self, tenant: str) -> None:
        """Delete what is kept for a deleted tenant: responses, records of files and batches, answers of durable calls.

        `tenant`: its identity. Usage and audit records stay, and so do calls that have no answer yet. DynamoDB's table
        cannot list responses and answers by tenant: there they stay until they expire. May be repeated.
        """
        ...

    async def close(self) -> None: ...


class Connection(Protocol):
    """A two-way stream of frames to another process. Frames arrive in order, each completely or not at all."""

    def send(self, frame: bytes) -> None:
        """Send the frame after those before it, and wait for nothing. Raises ConnectionLost."""
        ...

    async def receive(self) -> bytes:
        """Return the next frame. Raises ConnectionLost, also after `close`."""
        ...

    async def deliver(self, received: Callable[[bytes], None]) -> None:
        """Call `received` with each further frame when it arrives. Raises ConnectionLost at the end of the connection,
        and before that what `received` raises."""
        ...

    def close(self) -> None: ...


class Listener(Protocol):
    @property
    def address(self) -> str: ...

    async def close(self) -> None: ...


class Transport(Protocol):
    async def connect(self, address: str) -> Connection:
        """Return a connection to "host:port". Raises ConnectionLost; `refused` is true if no process listens there."""
        ...

    async def listen(self, address: str, serve: Callable[[Connection], Awaitable[None]]) -> Listener:
        """Accept connections at "host:port" (port 0: a free one) until the listener is closed."""
        ...


class GateLink(Protocol):
    """Sends a process's commands to a pool's shards: through their leaders, or by the process's own append."""

    @property
    def process(self) -> str:
        """The name of this process. It is new at every start."""
        ...

    def new_id(self, tenant: str, /) -> str:
        """Return the id of this process's next call. `tenant`: the identity of the call's tenant."""
        ...

    async def do(self, command: Command) -> Outcome:
        """Send the command, and return its outcome when the log contains it. Raises StoreUnavailable if neither the
        leader nor the log answers."""
        ...

    def send(self, command: Command, take: Callable[[Outcome | StoreUnavailable], None]) -> None:
        """Send the command. `take` gets what `do` would return or raise, once, in a later step of the event loop."""
        ...

    def hold(self, call_id: str, take: Callable[[Offer | Over], None]) -> None:
        """Give `take` each new offer and the end of a call of this process, in order, until `forget`.

        Each is given in a later step of the event loop: an offer may still come after `forget`.
        """
        ...

    def forget(self, call_id: str) -> None:
        """Drop the call's news, and allow the shard to forget its sequence number."""
        ...

    async def launched(self) -> tuple[str, int]:
        """Wait for a durable call that the leader launches on this process. Return its id and attempt.

        The first use registers this process as an executor. Only long-lived processes use it. On Lambda an SQS message
        launches the call.
        """
        ...

    async def readers(self) -> Sequence[Reader] | None:
        """Return the processes that are connected to the leader and what they read; none if no process leads; None if
        the leader does not answer this question."""
        ...

    async def fleet(self) -> Sequence[WorkerSet]:
        """Return the workers that the shards hold, from the leader, or from this process's replica if none leads.

        The answer is at most some seconds old. Raises StoreUnavailable.
        """
        ...

    async def usage(self, tenant: str | None, first_hour: int, last_hour: int) -> Sequence[tuple[int, UsageRow]]:
        """Return the usage rows of a tenant (None: of all tenants) that the shards hold, both hours included, each with
        the number of its shard.

        They are totals, like those of UsageStore. If both have a row of a shard for an hour, use the one with the
        higher `position`.
        """
        ...

    async def rest(self) -> None:
        """Finish the running work, and stay idle until the next command. After this Lambda may freeze the process."""
        ...


class AttemptEvents(Protocol):
    """The receiver of one attempt's events. Exactly one last event or failure comes, unless the attempt is closed.

    No method is called from within `execute` or a method of the attempt. If one raises, the attempt fails.
    """

    def take(self, event: WorkEvent) -> None:
        """Take the next event. Finished and WorkRefused are last ones."""
        ...

    def fail(self, error: WorkerFailed) -> None:
        """The events broke off. `error.began` is False if the worker surely did not begin the attempt."""
        ...


class RunningAttempt(Protocol):
    def pause(self) -> None:
        """Deliver nothing more until `resume`, and stop reading from the worker."""
        ...

    def resume(self) -> None: ...

    def close(self) -> None:
        """Close the connection, which aborts work that is not durable. Nothing more is delivered.

        After the last event or the failure it has no effect.
        """
        ...


class WorkerClient(Protocol):
    def execute(self, offer: Offer, order: WorkOrder, events: AttemptEvents) -> RunningAttempt:
        """Send the order, or begin to connect."""
        ...

    async def close(self) -> None:
        """Close the connections. Nothing can be executed after this."""
        ...


class Launcher(Protocol):
    async def launch(self, invocation_id: str, attempt: int) -> None:
        """Make another process execute a durable, dispatched call that no process holds.

        The message is only a hint: the process asks the gate before it executes the call. Raises StoreUnavailable.
        """
        ...
