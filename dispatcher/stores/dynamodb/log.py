"""A shard's log in DynamoDB: an item for each entry (log_items.py has their places), and snapshots in parts.

An append is one put under the condition that the position is free. If the condition fails, the reply contains the other
process's entry (`ReturnValuesOnConditionCheckFailure`), so a lost position costs one request. A put without a known
result is repeated with the same bytes: if the position has equal bytes, the put was applied.

Entries and snapshots expire by themselves, _ENTRY_KEEP_S and _SNAPSHOT_KEEP_S after they were written. So `cut` does
nothing: a delete or a change of the expiry would cost as much as the entry did. A shard therefore needs a new snapshot
within _ENTRY_KEEP_S (the service makes one at least daily). An entry that is expired but not deleted yet still counts.
The log has a gap only where DynamoDB has deleted an entry, which it does in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dispatcher.stores.dynamodb.log_items import ENTRY, LogItems
from dispatcher.stores.dynamodb.requests import Reads, Requests, encode_item
from dispatcher.stores.dynamodb.server_time import times
from dispatcher.stores.layout import (
    MANIFEST_PREFIX,
    checked_entry,
    checked_shard,
    gap_at,
    manifest_key,
    part_key,
    parts_prefix,
)
from dispatcher.stores.snapshot_parts import Manifest, join, split
from dispatcher.stores.table import EXPIRY, SORT, ConditionFailed, Item

DAY_S = 24 * 3600
_ENTRY_KEEP_S = 7 * DAY_S
_SNAPSHOT_KEEP_S = 14 * DAY_S
"""Longer than _ENTRY_KEEP_S, so that an entry never outlives the snapshot from which a reader gets to it."""
_PART_KEEP_S = _SNAPSHOT_KEEP_S + 3 * DAY_S
"""Longer than a manifest exists, including DynamoDB's delay of its deletion."""
_MANIFESTS_READ = 4
"""So many manifests are read at once, newest first. All but the first only matter if a snapshot is torn."""


class DynamoLog:
    """dispatcher.ports.Log."""

    def __init__(self, requests: Requests, reads: Reads, shard: str, stripes: int = 1) -> None:
        self._requests, self._reads = requests, reads
        self._shard = checked_shard(shard)
        self._items = LogItems(requests, reads, shard, stripes)

    async def append(self, position: int, entry: bytes) -> bytes:
        await self._check_clock()
        attributes = {ENTRY: checked_entry(position, entry), EXPIRY: self._expiry(_ENTRY_KEEP_S)}
        try:
            await self._items.put(position, attributes)
        except ConditionFailed as refused:
            return _entry(refused.old[0] or {})
        return entry

    async def _check_clock(self) -> None:
        """Raise WrongClock if this process's clock is wrong. Before that, one read compares it with DynamoDB's
        again."""
        clock, server_time = self._requests.clock, self._requests.server_time
        if not server_time.is_right(times(clock)):
            await self.last()
            server_time.check(times(clock))

    async def read(self, position: int, limit: int = 1000) -> Sequence[bytes]:
        """Return the entries (ports.Log.read). An apparent gap is read again before it counts as one.

        A query takes a while. An entry may be written meanwhile at a position that the query has already passed.
        """
        found: list[bytes] = []
        missing = -1
        while True:
            start = position + len(found)
            items = await self._items.entries(start, limit - len(found))
            new = [_entry(item) for number, item in enumerate(items) if int(item[SORT]) == start + number]
            found += new
            if len(new) == len(items):
                return found
            if start + len(new) == missing:
                raise gap_at(self._shard, missing)
            missing = start + len(new)

    async def last(self) -> tuple[int, bytes] | None:
        item = await self._items.last()
        return None if item is None else (int(item[SORT]), _entry(item))

    async def save_snapshot(self, position: int, nonce: str, state: bytes) -> None:
        partition, *_ = await self._items.snapshot_partitions()
        parts, manifest = split(position, nonce, state)
        for number, part in enumerate(parts):
            await self._put({**part_key(partition, position, nonce, number), "part": part}, _PART_KEEP_S)
        await self._put({**manifest_key(partition, position, nonce), **_manifest_item(manifest)}, _SNAPSHOT_KEEP_S)

    async def load_snapshot(self) -> tuple[int, bytes] | None:
        for partition in await self._items.snapshot_partitions():
            if (found := await self._load_from(partition)) is not None:
                return found
        return None

    async def _load_from(self, partition: str) -> tuple[int, bytes] | None:
        start: dict[str, Any] = {}
        while True:
            manifests = await self._manifests(partition, start)
            for item in manifests:
                state = await self._state(partition, _manifest(item))
                if state is not None:
                    return int(item["position"]), state
            if len(manifests) < _MANIFESTS_READ:
                return None
            last = manifest_key(partition, int(manifests[-1]["position"]), manifests[-1]["nonce"])
            start = {"ExclusiveStartKey": encode_item(last)}

    async def cut(self, position: int) -> None:
        return None

    async def _manifests(self, partition: str, start: dict[str, Any]) -> list[Item]:
        prefix = {":prefix": MANIFEST_PREFIX}
        newest_first = {"ScanIndexForward": False, **start}
        return await self._reads.query(partition, "begins_with(#sk, :prefix)", prefix, _MANIFESTS_READ, **newest_first)

    async def _state(self, partition: str, manifest: Manifest) -> bytes | None:
        items = await self._reads.partition(partition, parts_prefix(manifest.position, manifest.nonce))
        return join(manifest, [bytes(item["part"]) for item in items])

    async def _put(self, item: Item, keep_s: int) -> None:
        await self._requests.put(encode_item({**item, EXPIRY: self._expiry(keep_s)}))

    def _expiry(self, keep_s: int) -> int:
        return int(self._requests.clock.now()) + keep_s


def _entry(item: Item) -> bytes:
    return bytes(item[ENTRY])


def _manifest_item(manifest: Manifest) -> Item:
    return {
        "position": manifest.position,
        "nonce": manifest.nonce,
        "parts": manifest.parts,
        "checksum": manifest.checksum,
    }


def _manifest(item: Item) -> Manifest:
    return Manifest(int(item["position"]), item["nonce"], int(item["parts"]), item["checksum"])
