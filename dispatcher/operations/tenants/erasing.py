"""Deletes what is kept for a deleted tenant: its responses, files, batches, and answers under idempotency keys.

No key leads to the tenant any more, so nothing of this can be read. What is not deleted here expires by itself: what a
process writes after this, and on DynamoDB the responses and answers (ports.Store.erase).
"""

from __future__ import annotations

from dispatcher.model.batches import FileStore
from dispatcher.ports import Store


class TenantData:
    """The kept data of deleted tenants. `files`: None if the service has no batch API."""

    def __init__(self, store: Store, files: FileStore | None) -> None:
        self._store, self._files = store, files

    async def erase(self, identity: str) -> bool:
        """Delete the data, unless a batch of the tenant is open. Return whether it is deleted.

        An open batch still reads its file. The process that runs it stops it soon, and then deletes everything
        (batches/runner.py). May be repeated. Raises StoreUnavailable.
        """
        if any(batch.is_open for batch in await self._store.batches(identity)):
            return False
        await self.erase_all(identity)
        return True

    async def erase_all(self, identity: str) -> None:
        """Delete the data, also that of open batches. Bytes are deleted before the records that name them.

        Raises StoreUnavailable.
        """
        if self._files is not None:
            parts = [part for batch in await self._store.batches(identity) for part in batch.parts]
            for name in [*parts, *(record.blob for record in await self._store.files(identity))]:
                await self._files.delete(name)
        await self._store.erase(identity)
