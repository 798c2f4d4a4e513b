"""All records over one table: the store of every backend, beside its logs."""

from __future__ import annotations

from dispatcher.stores.records.invocations import InvocationRecords, MailboxRecords
from dispatcher.stores.records.kept_objects import BatchRecords, ResponseRecords
from dispatcher.stores.records.tenants import TenantRecords
from dispatcher.stores.records.usage import UsageRecords
from dispatcher.stores.table import ItemTable


class RecordStore(TenantRecords, InvocationRecords, ResponseRecords, BatchRecords, UsageRecords):
    """dispatcher.ports.Store without its logs and `close`."""

    def __init__(self, table: ItemTable) -> None:
        self._table = table
        self._mailboxes = MailboxRecords(table)

    @property
    def mailboxes(self) -> MailboxRecords:
        return self._mailboxes

    async def erase(self, tenant: str) -> None:
        await self.erase_batches(tenant)
        await self.erase_responses(tenant)
        await self.erase_invocations(tenant)
