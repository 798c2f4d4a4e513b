"""Records of files and batches in memory."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model.batches import Batch
from dispatcher.model.files import FileRecord


class MemoryBatches:
    def __init__(self) -> None:
        self._files: dict[tuple[str, str], FileRecord] = {}
        self._batches: dict[tuple[str, str], Batch] = {}
        self._open: dict[tuple[str, str], str] = {}
        """The pool of each batch that is not retired."""

    def put_file(self, record: FileRecord) -> None:
        self._files[record.tenant, record.id] = record

    def file(self, tenant: str, file_id: str, now: float) -> FileRecord | None:
        found = self._files.get((tenant, file_id))
        return None if found is None or now >= found.expires_at else found

    def files(self, tenant: str, now: float) -> Sequence[FileRecord]:
        own = [each for each in self._files.values() if each.tenant == tenant and now < each.expires_at]
        return sorted(own, key=lambda each: each.id, reverse=True)

    def delete_file(self, tenant: str, file_id: str, now: float) -> bool:
        found = self.file(tenant, file_id, now)
        self._files.pop((tenant, file_id), None)
        return found is not None

    def erase(self, tenant: str) -> None:
        for records in (self._files, self._batches, self._open):
            for named in [named for named in records if named[0] == tenant]:
                records.pop(named)

    def create_batch(self, batch: Batch) -> None:
        self._open[batch.tenant, batch.id] = batch.pool
        self._batches[batch.tenant, batch.id] = batch

    def batch(self, tenant: str, batch_id: str, now: float) -> Batch | None:
        found = self._batches.get((tenant, batch_id))
        return None if found is None or now >= found.forgotten_at else found

    def batches(self, tenant: str, now: float) -> Sequence[Batch]:
        own = [each for each in self._batches.values() if each.tenant == tenant and now < each.forgotten_at]
        return sorted(own, key=lambda each: each.id, reverse=True)

    def replace_batch(self, batch: Batch, expected_version: int, now: float) -> bool:
        found = self.batch(batch.tenant, batch.id, now)
        if found is None or found.version != expected_version:
            return False
        self._batches[batch.tenant, batch.id] = batch
        return True

    def open_batches(self, pool: str) -> Sequence[tuple[str, str]]:
        return sorted((named for named, own in self._open.items() if own == pool), key=lambda named: named[1])

    def retire_batch(self, batch: Batch) -> None:
        self._open.pop((batch.tenant, batch.id), None)
