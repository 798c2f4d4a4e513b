"""The store in DynamoDB: one table (layout.py), conditional writes, transactions where items must agree.

Requests: snapshot, admit, enqueue, settle, requeue and most others one each; dispatch and drop one, a second where the
queue's count was not what was last seen; head_of two; settle two where the slot has gone to another since, and one more
in a process that has not seen the worker's seat yet. tests/conformance/test_store_requests.py counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from botocore.config import Config

from dispatcher.model.old_fleet import Lease, Snapshot, WaitingQueue, Worker
from dispatcher.model.old_invocation import Invocation, Slot
from dispatcher.model.old_outcomes import Settled, Written
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.old_ports import Clock
from dispatcher.old_stores.dynamodb.invocations import DynamoInvocations
from dispatcher.old_stores.dynamodb.items import to_invocation
from dispatcher.old_stores.dynamodb.layout import EXPIRY, invocation_key, table_definition
from dispatcher.old_stores.dynamodb.pools import DynamoPools
from dispatcher.old_stores.dynamodb.reads import Reads
from dispatcher.old_stores.dynamodb.requests import Requests
from dispatcher.old_stores.dynamodb.tenants import DynamoTenants
from dispatcher.old_stores.dynamodb.waiting import DynamoQueue
from dispatcher.old_stores.dynamodb.workers import DynamoWorkers
from dispatcher.old_stores.limits import RETENTION_S
from dispatcher.policies.clocks import Debit, Step

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

THREADS = 16
CONNECT_TIMEOUT_S = 1.0
READ_TIMEOUT_S = 3.0


def client_config(threads: int = THREADS) -> Config:
    """Return the configuration of a client for DynamoStore.

    One try a call (the store retries by itself), short timeouts, and a connection for each thread.
    """
    return Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=threads,
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
    )


def create_table(client: DynamoDBClient, name: str) -> None:
    """Create the table and wait until it is active. For local stands-ins and tests: on AWS, infra/ owns it."""
    client.create_table(**table_definition(name))
    client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    client.update_time_to_live(TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": EXPIRY})


class DynamoStore:
    """dispatcher.old_ports.Store. Every method may raise StoreUnavailable."""

    def __init__(
        self,
        client: DynamoDBClient,
        table: str,
        *,
        clock: Clock,
        random: Random,
        threads: int = THREADS,
        retention_s: float = RETENTION_S,
    ) -> None:
        self._requests = Requests(client, table, clock, random, threads)
        self._reads = Reads(self._requests)
        self._tenants = DynamoTenants(self._requests, self._reads)
        self._workers = DynamoWorkers(self._requests, self._reads)
        self._pools = DynamoPools(self._requests, self._reads, self._workers)
        self._queue = DynamoQueue(self._reads)
        self._invocations = DynamoInvocations(self._requests, self._reads, self._workers, retention_s)

    def close(self) -> None:
        """Let the threads go. What is under way ends by itself."""
        self._requests.close()

    # ── Tenants ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def find_key(self, prefix: str) -> KeyRecord | None:
        return await self._tenants.find_key(prefix)

    async def get_tenant(self, name: str) -> Tenant | None:
        return await self._tenants.get(name)

    async def put_tenant(self, tenant: Tenant, *, expected_version: int | None) -> Written:
        return await self._tenants.put(tenant, expected_version)

    async def list_tenants(self) -> Sequence[Tenant]:
        return await self._tenants.all()

    async def delete_tenant(self, name: str) -> None:
        await self._tenants.delete(name)

    async def put_key(self, key: KeyRecord) -> None:
        await self._tenants.put_key(key)

    async def delete_key(self, prefix: str) -> None:
        await self._tenants.delete_key(prefix)

    async def keys_of(self, tenant: str) -> Sequence[KeyRecord]:
        return await self._tenants.keys_of(tenant)

    # ── Invocations ────────────────────────────────────────────────────────────────────────────────────────────────

    async def snapshot(self, pool: str, queue: str) -> Snapshot:
        return await self._pools.snapshot(pool, queue)

    async def admit(self, invocation: Invocation, debit: Debit, now: float) -> Written:
        return await self._invocations.admit(invocation, debit, now)

    async def enqueue(self, invocation: Invocation, lift: Step | None, waiting_max: int) -> Written:
        return await self._invocations.enqueue(invocation, lift, waiting_max)

    async def waiting_queues(self, pool: str, now: float, limit: int) -> Sequence[WaitingQueue]:
        return await self._queue.waiting_queues(pool, now, limit)

    async def head_of(self, queue: str) -> Invocation | None:
        head, is_last = await self._queue.head_of(queue)
        self._invocations.remember_last(queue, is_last=is_last)
        return head

    async def dispatch(self, invocation: Invocation, debit: Debit, now: float) -> Written:
        return await self._invocations.dispatch(invocation, debit, now)

    async def note_pool(
        self,
        pool: str,
        *,
        virtual_time: float | None = None,
        backlogged: bool | None = None,
        rate_scale: float | None = None,
    ) -> None:
        await self._pools.note(pool, virtual_time, backlogged, rate_scale)

    async def get(self, tenant: str, invocation_id: str) -> Invocation | None:
        item = await self._reads.item(invocation_key(tenant, invocation_id))
        return to_invocation(item) if item else None

    async def get_many(self, ids: Sequence[tuple[str, str]]) -> Sequence[Invocation]:
        keys = [invocation_key(tenant, invocation_id) for tenant, invocation_id in dict.fromkeys(ids)]
        return [to_invocation(item) for item in (await self._reads.items(keys)).values()]

    async def settle(self, ended: Invocation, tat: Step, vft: Step) -> Settled:
        return await self._invocations.settle(ended, tat, vft)

    async def requeue(self, invocation: Invocation, tat: Step, vft: Step) -> Settled:
        return await self._invocations.requeue(invocation, tat, vft)

    async def drop(self, ended: Invocation) -> Settled:
        return await self._invocations.drop(ended)

    async def detach(self, tenant: str, invocation_id: str) -> Written:
        return await self._invocations.detach(tenant, invocation_id)

    async def overdue(self, pool: str, now: float, limit: int) -> Sequence[Invocation]:
        return await self._queue.overdue(pool, now, limit)

    # ── Workers ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def register(self, worker: Worker) -> Worker | None:
        return await self._workers.register(worker)

    async def heartbeat(self, worker: Worker) -> Worker | None:
        return await self._workers.heartbeat(worker)

    async def leave(self, worker: Worker) -> None:
        await self._workers.leave(worker)

    async def workers(self, pool: str) -> Sequence[Worker]:
        return await self._workers.workers(pool)

    async def free_slot(self, worker: Worker, slot: Slot, lease: Lease) -> Written:
        return await self._workers.free_slot(worker, slot, lease)
