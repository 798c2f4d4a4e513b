"""The store in memory: exact, deterministic, with injectable faults.

Its methods have the same outcomes as those of the real stores. Every request to the table or to a log is applied
atomically, also between threads (a snapshot is one request for each part, and one for its manifest). A `StoreFaults`
hook is called before and after. If it raises before, nothing is written. If it raises after, the reply is lost. The
results depend only on the calls, the clock and the hook.

`view` gives each simulated process its own faults and its own clock over the same data.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar

from dispatcher.ports import Clock
from dispatcher.stores.layout import CUT_AFTER_S, checked_entry, checked_shard, gap_at
from dispatcher.stores.records.record_store import RecordStore
from dispatcher.stores.snapshot_parts import Manifest, join, split
from dispatcher.stores.table import (
    PARTITION,
    SORT,
    Condition,
    ConditionFailed,
    DeleteItem,
    Item,
    Key,
    PutItem,
    check_conditions,
    is_live,
    key_of,
    update_item,
    without_none,
)


class MemoryData:
    """The data that all views of one store share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.logs: dict[str, LogData] = {}
        self.items = ItemData()


class MemoryStore(RecordStore):
    """dispatcher.ports.Store."""

    def __init__(self, clock: Clock, faults: StoreFaults | None = None, data: MemoryData | None = None) -> None:
        self.data = data or MemoryData()
        self._requests = CountedRequests(self.data.lock, faults)
        self._clock = clock
        super().__init__(MemoryTable(self.data.items, self._requests, clock))

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

    def log(self, shard: str) -> MemoryLog:
        with self.data.lock:
            data = self.data.logs.setdefault(checked_shard(shard), LogData(shard))
        return MemoryLog(data, self._requests, self._clock)

    async def close(self) -> None:
        return None


T = TypeVar("T")

_KINDS = ("MAIL", "INV", "CALL", "RESP", "FILE", "BATCH", "OPEN", "USAGE", "STATE", "TENANT", "TENANTS", "KEY", "AUDIT")
"""The kinds of partitions with records (dispatcher/stores/layout.py)."""
WRITES = frozenset(
    ["append", "save_snapshot_part", "save_snapshot_manifest", "cut"]
    + [f"{operation} {kind}" for operation in ("put", "update", "transact") for kind in _KINDS]
)
"""The names of the operations that write, as a StoreFaults hook gets them."""
READS = frozenset(
    ["read_log", "last_entry", "load_snapshot"]
    + [f"{operation} {kind}" for operation in ("get", "range", "partitions") for kind in _KINDS]
)


class StoreFaults(Protocol):
    """Injects faults. Each method may raise StoreUnavailable, or wait on the clock."""

    async def before(self, operation: str) -> None:
        """Called before the request is applied."""
        ...

    async def after(self, operation: str) -> None:
        """Called after the request was applied, before its reply."""
        ...


class CountedRequests:
    """Counts requests and injects faults. `lock` is shared by all views of the same data."""

    def __init__(self, lock: threading.Lock, faults: StoreFaults | None) -> None:
        self.counts: Counter[str] = Counter()
        self.faults = faults
        self._lock = lock

    async def apply(self, operation: str, apply: Callable[[], T]) -> T:
        """Apply one operation atomically and return its result. ConditionFailed is a reply too."""
        if self.faults is not None:
            await self.faults.before(operation)
        refusal = None
        with self._lock:
            self.counts[operation] += 1
            try:
                reply = apply()
            except ConditionFailed as error:
                refusal = error
        if self.faults is not None:
            await self.faults.after(operation)
        if refusal is not None:
            raise refusal
        return reply


class ItemData:
    """The items of one table, by partition and sort key. Its methods are single steps, without faults."""

    def __init__(self) -> None:
        self.partitions: dict[str, dict[str, Item]] = defaultdict(dict)
        self.nonces = count()

    def get(self, key: Mapping[str, Any], now: float) -> Item | None:
        item = self.partitions.get(key[PARTITION], {}).get(key[SORT])
        return dict(item) if item is not None and is_live(item, now) else None

    def range(self, partition: str, low: str, high: str, now: float) -> list[Item]:
        items = self.partitions.get(partition, {})
        for sort in [sort for sort, item in items.items() if not is_live(item, now)]:
            del items[sort]
        return [dict(items[sort]) for sort in sorted(items) if low <= sort and (not high or sort <= high)]

    def write(self, writes: Sequence[PutItem | DeleteItem], now: float) -> None:
        """Make all writes, or raise ConditionFailed."""
        check_conditions(writes, [self.get(key_of(write), now) for write in writes])
        for write in writes:
            partition, sort = key_of(write)[PARTITION], key_of(write)[SORT]
            if isinstance(write, PutItem):
                self.partitions[partition][sort] = without_none(write.item)
            else:
                self.partitions[partition].pop(sort, None)


class MemoryTable:
    """dispatcher.stores.table.ItemTable."""

    def __init__(self, data: ItemData, requests: CountedRequests, clock: Clock) -> None:
        self._data, self._requests, self._clock = data, requests, clock

    @property
    def clock(self) -> Clock:
        return self._clock

    async def nonce(self) -> str:
        return f"{next(self._data.nonces):032x}"

    async def get(self, key: Key) -> Item | None:
        get = self._data.get
        return await self._requests.apply(_operation_name("get", key[PARTITION]), lambda: get(key, self._clock.now()))

    async def range(self, partition: str, low: str = "", high: str = "") -> Sequence[Item]:
        find = self._data.range
        return await self._requests.apply(
            _operation_name("range", partition), lambda: find(partition, low, high, self._clock.now())
        )

    async def put(self, item: Item, condition: Condition = None, *, synced: bool = True) -> Item | None:
        def apply() -> Item | None:
            now = self._clock.now()
            old = self._data.get(item, now)
            self._data.write([PutItem(item, condition)], now)
            return old

        return await self._requests.apply(_operation_name("put", item[PARTITION]), apply)

    async def put_each(self, puts: Sequence[PutItem], *, synced: bool = True) -> None:
        def apply() -> None:
            for each in puts:
                try:
                    self._data.write([each], self._clock.now())
                except ConditionFailed:
                    continue

        if puts:
            await self._requests.apply(_operation_name("put", puts[0].item[PARTITION]), apply)

    async def update(
        self,
        key: Key,
        values: Mapping[str, Any],
        *,
        removed: Sequence[str] = (),
        added: Mapping[str, int] | None = None,
        condition: Condition = None,
        returned: bool = False,
        synced: bool = True,
    ) -> Item | None:
        def apply() -> Item:
            now = self._clock.now()
            new = update_item(key, self._data.get(key, now), values, removed, added)
            self._data.write([PutItem(new, condition)], now)
            return new

        new = await self._requests.apply(_operation_name("update", key[PARTITION]), apply)
        return new if returned else None

    async def transact(self, writes: Sequence[PutItem | DeleteItem], nonce: str) -> None:
        write, named = self._data.write, _operation_name("transact", key_of(writes[0])[PARTITION])
        await self._requests.apply(named, lambda: write(writes, self._clock.now()))

    async def partitions(self, prefix: str) -> Sequence[str]:
        names = self._data.partitions
        return await self._requests.apply(
            _operation_name("partitions", prefix), lambda: sorted(name for name in names if name.startswith(prefix))
        )


def _operation_name(operation: str, partition: str) -> str:
    return f"{operation} {partition.partition('#')[0]}"


SnapshotName = tuple[int, str]
"""Position and nonce."""


@dataclass
class LogData:
    """The data of one shard. Its methods are single steps of the store, without faults."""

    shard: str
    entries: dict[int, bytes] = field(default_factory=dict)
    written_at: dict[int, float] = field(default_factory=dict)
    parts: dict[SnapshotName, dict[int, bytes]] = field(default_factory=dict)
    manifests: dict[SnapshotName, tuple[Manifest, float]] = field(default_factory=dict)
    """Each with the time at which it was written."""
    end: int = 0
    """The position after the last entry."""

    def append(self, position: int, entry: bytes, now: float) -> bytes:
        if position not in self.entries:
            self.entries[position], self.written_at[position] = entry, now
            self.end = max(self.end, position + 1)
        return self.entries[position]

    def read(self, position: int, limit: int) -> list[bytes]:
        found = []
        for at in range(position, min(self.end, position + limit)):
            if at not in self.entries:
                raise gap_at(self.shard, at)
            found.append(self.entries[at])
        return found

    def last(self) -> tuple[int, bytes] | None:
        return (self.end - 1, self.entries[self.end - 1]) if self.entries else None

    def load_snapshot(self) -> tuple[int, bytes] | None:
        for name in sorted(self.manifests, reverse=True):
            parts = self.parts.get(name, {})
            state = join(self.manifests[name][0], [parts[number] for number in sorted(parts)])
            if state is not None:
                return name[0], state
        return None

    def cut(self, position: int, now: float) -> None:
        self.expire(at for at, written in self.written_at.items() if at < position and written <= now - CUT_AFTER_S)
        old = [name for name, (_, written) in self.manifests.items() if written <= now - CUT_AFTER_S]
        for name in old:
            if name[0] < position:
                del self.manifests[name]
                self.parts.pop(name, None)

    def expire(self, positions: Iterable[int]) -> None:
        """Delete entries, in any order, as expiry does."""
        for position in list(positions):
            self.entries.pop(position, None)
            self.written_at.pop(position, None)
        if self.end - 1 not in self.entries:
            self.end = max(self.entries, default=-1) + 1

    def tear_snapshot(self, position: int) -> None:
        """Lose the last part of every snapshot of the position."""
        for (at, _), parts in self.parts.items():
            if at == position:
                parts.popitem()

    def damage_snapshot(self, position: int) -> None:
        """Change a byte of every snapshot of the position."""
        for (at, _), parts in self.parts.items():
            if at == position:
                parts[0] = bytes([(parts[0] or b"\0")[0] ^ 1]) + parts[0][1:]

    def unfinish_snapshot(self, position: int) -> None:
        """Lose the manifest of every snapshot of the position."""
        self.manifests = {name: kept for name, kept in self.manifests.items() if name[0] != position}


class MemoryLog:
    """dispatcher.ports.Log."""

    def __init__(self, data: LogData, requests: CountedRequests, clock: Clock) -> None:
        self.data = data
        self._requests = requests
        self._clock = clock

    async def append(self, position: int, entry: bytes) -> bytes:
        checked_entry(position, entry)
        return await self._requests.apply("append", lambda: self.data.append(position, entry, self._clock.now()))

    async def read(self, position: int, limit: int = 1000) -> Sequence[bytes]:
        return await self._requests.apply("read_log", lambda: self.data.read(position, limit))

    async def last(self) -> tuple[int, bytes] | None:
        return await self._requests.apply("last_entry", self.data.last)

    async def save_snapshot(self, position: int, nonce: str, state: bytes) -> None:
        parts, manifest = split(position, nonce, state)
        for number, part in enumerate(parts):
            await self._requests.apply("save_snapshot_part", partial(self._put_part, manifest, number, part))
        await self._requests.apply("save_snapshot_manifest", lambda: self._put_manifest(manifest))

    def _put_part(self, manifest: Manifest, number: int, part: bytes) -> None:
        self.data.parts.setdefault((manifest.position, manifest.nonce), {})[number] = part

    def _put_manifest(self, manifest: Manifest) -> None:
        self.data.manifests[manifest.position, manifest.nonce] = manifest, self._clock.now()

    async def load_snapshot(self) -> tuple[int, bytes] | None:
        return await self._requests.apply("load_snapshot", self.data.load_snapshot)

    async def cut(self, position: int) -> None:
        await self._requests.apply("cut", lambda: self.data.cut(position, self._clock.now()))
