"""A shard's log in memory. Tests can remove entries and damage snapshots, as expiry and disk errors do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from dispatcher.ports import Clock
from dispatcher.stores.limits import CUT_AFTER_S, checked_entry, gap_at
from dispatcher.stores.memory.requests import CountedRequests
from dispatcher.stores.snapshot_parts import Manifest, join, split

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
