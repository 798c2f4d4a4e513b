"""The store in memory. Its methods have the same outcomes as those of the real stores.

Every method counts as one request (a snapshot: one for each part, and one for its manifest). A request is applied
atomically, also between threads. A `StoreFaults` hook is called before and after. If it raises before, nothing is
written. If it raises after, the reply is lost. The results depend only on the calls, the clock and the hook.

`view` gives each simulated process its own faults and its own clock over the same data.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from dispatcher.model.audit import AuditRecord
from dispatcher.model.batches import Batch
from dispatcher.model.files import FileRecord
from dispatcher.model.invocation import Invocation, StoredAnswer
from dispatcher.model.kept_response import KeptResponse
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.model.usage import TenantRow, UsageRow
from dispatcher.ports import Clock
from dispatcher.stores.limits import checked_invocation, checked_shard, fitting_answer
from dispatcher.stores.memory.batches import MemoryBatches
from dispatcher.stores.memory.invocations import MemoryInvocations
from dispatcher.stores.memory.log import LogData, MemoryLog
from dispatcher.stores.memory.mailboxes import MemoryMailboxes
from dispatcher.stores.memory.requests import CountedRequests, StoreFaults
from dispatcher.stores.memory.responses import MemoryResponses
from dispatcher.stores.memory.tenants import MemoryTenants
from dispatcher.stores.memory.usage import MemoryUsage


class MemoryData:
    """The data that all views of one store share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.logs: dict[str, LogData] = {}
        self.tenants = MemoryTenants()
        self.invocations = MemoryInvocations()
        self.responses = MemoryResponses()
        self.batches = MemoryBatches()
        self.mailboxes = MemoryMailboxes()
        self.usage = MemoryUsage()


class MemoryMailboxStore:
    """dispatcher.ports.MailboxStore."""

    def __init__(self, data: MemoryData, requests: CountedRequests, clock: Clock) -> None:
        self._data, self._requests, self._clock = data, requests, clock

    async def put(self, process: str, position: int, news: Sequence[bytes]) -> None:
        put = self._data.mailboxes.put
        await self._requests.apply("put_mailbox", lambda: put(process, position, news, self._clock.now()))

    async def read(self, process: str, after: int) -> Sequence[tuple[int, bytes]]:
        read = self._data.mailboxes.read
        return await self._requests.apply("read_mailbox", lambda: read(process, after, self._clock.now()))


class MemoryStore:
    """dispatcher.ports.Store."""

    def __init__(self, clock: Clock, faults: StoreFaults | None = None, data: MemoryData | None = None) -> None:
        self.data = data or MemoryData()
        self._requests = CountedRequests(self.data.lock, faults)
        self._clock = clock
        self._mailboxes = MemoryMailboxStore(self.data, self._requests, clock)

    def view(self, clock: Clock, faults: StoreFaults | None = None) -> MemoryStore:
        """Return a store over the same data, for another process with its own clock and faults."""
        return MemoryStore(clock, faults, self.data)

    @property
    def requests(self) -> Counter[str]:
        """The number of requests of this view so far, by operation."""
        return self._requests.counts

    @property
    def faults(self) -> StoreFaults | None:
        return self._requests.faults

    @faults.setter
    def faults(self, faults: StoreFaults | None) -> None:
        self._requests.faults = faults

    @property
    def mailboxes(self) -> MemoryMailboxStore:
        return self._mailboxes

    def log(self, shard: str) -> MemoryLog:
        with self.data.lock:
            data = self.data.logs.setdefault(checked_shard(shard), LogData(shard))
        return MemoryLog(data, self._requests, self._clock)

    async def close(self) -> None:
        return None

    # ── Invocations ────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self, invocation: Invocation) -> Invocation:
        checked, create = checked_invocation(invocation), self.data.invocations.create
        return await self._requests.apply("create", lambda: create(checked, self._clock.now()))

    async def get(self, invocation_id: str) -> Invocation | None:
        get = self.data.invocations.get
        return await self._requests.apply("get", lambda: get(invocation_id, self._clock.now()))

    async def find(self, tenant: str, key: str) -> Invocation | None:
        find = self.data.invocations.find
        return await self._requests.apply("find", lambda: find(tenant, key, self._clock.now()))

    async def answer(self, invocation_id: str, answer: StoredAnswer) -> StoredAnswer | None:
        fitting, keep = fitting_answer(answer), self.data.invocations.answer
        return await self._requests.apply("answer", lambda: keep(invocation_id, fitting, self._clock.now()))

    async def share(self, invocation_id: str) -> Invocation | None:
        share = self.data.invocations.share
        return await self._requests.apply("share", lambda: share(invocation_id, self._clock.now()))

    async def refuse(self, invocation_id: str, answer: StoredAnswer) -> StoredAnswer | None:
        fitting, keep = fitting_answer(answer), self.data.invocations.refuse
        return await self._requests.apply("refuse", lambda: keep(invocation_id, fitting, self._clock.now()))

    # ── Responses ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def keep_response(self, response: KeptResponse, bytes_max: int) -> bool:
        keep = self.data.responses.keep
        return await self._requests.apply("keep_response", lambda: keep(response, bytes_max, self._clock.now()))

    async def response(self, tenant: str, response_id: str) -> KeptResponse | None:
        get = self.data.responses.get
        return await self._requests.apply("response", lambda: get(tenant, response_id, self._clock.now()))

    async def delete_response(self, tenant: str, response_id: str) -> bool:
        delete = self.data.responses.delete
        return await self._requests.apply("delete_response", lambda: delete(tenant, response_id, self._clock.now()))

    # ── Files and batches ──────────────────────────────────────────────────────────────────────────────────────────

    async def put_file(self, record: FileRecord) -> None:
        await self._requests.apply("put_file", lambda: self.data.batches.put_file(record))

    async def file(self, tenant: str, file_id: str) -> FileRecord | None:
        return await self._requests.apply("file", lambda: self.data.batches.file(tenant, file_id, self._clock.now()))

    async def files(self, tenant: str) -> Sequence[FileRecord]:
        return await self._requests.apply("files", lambda: self.data.batches.files(tenant, self._clock.now()))

    async def delete_file(self, tenant: str, file_id: str) -> bool:
        delete = self.data.batches.delete_file
        return await self._requests.apply("delete_file", lambda: delete(tenant, file_id, self._clock.now()))

    async def create_batch(self, batch: Batch) -> None:
        await self._requests.apply("create_batch", lambda: self.data.batches.create_batch(batch))

    async def batch(self, tenant: str, batch_id: str) -> Batch | None:
        return await self._requests.apply("batch", lambda: self.data.batches.batch(tenant, batch_id, self._clock.now()))

    async def batches(self, tenant: str) -> Sequence[Batch]:
        return await self._requests.apply("batches", lambda: self.data.batches.batches(tenant, self._clock.now()))

    async def replace_batch(self, batch: Batch, expected_version: int) -> bool:
        put = self.data.batches.replace_batch
        return await self._requests.apply("replace_batch", lambda: put(batch, expected_version, self._clock.now()))

    async def open_batches(self, pool: str) -> Sequence[tuple[str, str]]:
        return await self._requests.apply("open_batches", lambda: self.data.batches.open_batches(pool))

    async def retire_batch(self, batch: Batch) -> None:
        await self._requests.apply("retire_batch", lambda: self.data.batches.retire_batch(batch))

    async def erase(self, tenant: str) -> None:
        def apply() -> None:
            for part in (self.data.invocations, self.data.responses, self.data.batches):
                part.erase(tenant)

        await self._requests.apply("erase", apply)

    # ── Usage ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def put_usage(self, shard: str, rows: Sequence[UsageRow]) -> None:
        put, named = self.data.usage.put, checked_shard(shard)
        await self._requests.apply("put_usage", lambda: put(named, rows))

    async def usage(self, tenant: str | None, first_hour: int, last_hour: int) -> Sequence[tuple[str, UsageRow]]:
        read = self.data.usage.read
        return await self._requests.apply("usage", lambda: read(tenant, first_hour, last_hour))

    async def put_tenant_rows(self, shard: str, rows: Sequence[TenantRow]) -> None:
        put, named = self.data.usage.put_tenants, checked_shard(shard)
        await self._requests.apply("put_tenant_rows", lambda: put(named, rows))

    async def tenant_rows(self, shard: str) -> Sequence[TenantRow]:
        tenants = self.data.usage.tenants
        return await self._requests.apply("tenant_rows", lambda: tenants(shard, self._clock.now()))

    # ── Tenants ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def find_key(self, prefix: str) -> KeyRecord | None:
        find = self.data.tenants.find_key
        return await self._requests.apply("find_key", lambda: find(prefix, self._clock.now()))

    async def get_tenant(self, identity: str) -> Tenant | None:
        return await self._requests.apply("get_tenant", lambda: self.data.tenants.get(identity))

    async def find_tenant(self, name: str) -> Tenant | None:
        return await self._requests.apply("find_tenant", lambda: self.data.tenants.find(name))

    async def put_tenant(
        self, tenant: Tenant, *, expected_version: int | None, audit: AuditRecord | None = None
    ) -> bool:
        put = self.data.tenants.put
        return await self._requests.apply("put_tenant", lambda: put(tenant, expected_version, audit))

    async def list_tenants(self) -> Sequence[Tenant]:
        return await self._requests.apply("list_tenants", self.data.tenants.all)

    async def delete_tenant(self, identity: str, *, audit: AuditRecord | None = None) -> None:
        await self._requests.apply("delete_tenant", lambda: self.data.tenants.delete(identity, audit))

    async def put_key(self, key: KeyRecord, *, audit: AuditRecord | None = None) -> None:
        await self._requests.apply("put_key", lambda: self.data.tenants.put_key(key, audit))

    async def delete_key(self, prefix: str, *, audit: AuditRecord | None = None) -> None:
        await self._requests.apply("delete_key", lambda: self.data.tenants.delete_key(prefix, audit))

    async def keys_of(self, identity: str) -> Sequence[KeyRecord]:
        keys_of = self.data.tenants.keys_of
        return await self._requests.apply("keys_of", lambda: keys_of(identity, self._clock.now()))

    async def audit_records(self, month: str) -> Sequence[AuditRecord]:
        return await self._requests.apply("audit_records", lambda: self.data.tenants.audit_records(month))
