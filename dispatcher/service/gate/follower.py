"""A process's copy of the shard's state, which follows the log. A lock lets one method run at a time.

If an entry does not fold, the copy may be at fault and not the entry. So the state is loaded again from the snapshot,
once. If the entry does not fold then either, the log is corrupt.

`ClockGuard` guards a copy against wrong clocks (rule 10): entry times never go back, and no deadline passes on a
doubtful clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any, NamedTuple

from dispatcher.model.commands import Offer, Over
from dispatcher.model.errors import LogCorrupt, LogGap
from dispatcher.model.facts import Entry
from dispatcher.ports import Clock, Log
from dispatcher.shard.codec import decode_entry_at
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import load

logger = logging.getLogger("headgate.gate")

_JUMP_S = 1.0
"""The wall clock counts as jumped if it moved this much more or less than the monotonic clock."""
CALM_S = 5.0
"""A calm time lasts so long. It begins with a takeover, a jump of the clock or a pause. During it the leader decides no
deadline, and declares no process and no worker lost."""
POSITION_MAX_AGE_S = 3600.0
"""If a position was read longer ago than this, another process may have written it, and its entry may have expired
since (rule 1)."""
READ_MAX = 1000
_REASON_CHARS_MAX = 200
PAUSE_BYTES = 30_000
"""After a fold of this many bytes of entries, other tasks of the process may run."""


class Delivery(NamedTuple):
    """News for a process, from the entry at `position`. `process` is empty if no process holds the durable call."""

    process: str
    position: int
    news: Offer | Over


class StateLost(Exception):
    """An entry was folded in part. The state is loaded again before it is used."""


def ignore_entry(_entry: Entry, _deliveries: list[Delivery]) -> None:
    """Do nothing with an entry. This is the default of `on_entry`."""


def ignore_orders(_workers: Sequence[str]) -> None:
    """Do nothing for workers with a new order. This is the default of `on_ordered`."""


def ignore_load() -> None:
    """Do nothing after the load of a snapshot. This is the default of `on_load`."""


Offload = Callable[..., Awaitable[Any]]
"""Calls a function with arguments and returns its result, in a thread if the event loop must not pause."""


async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function in this thread."""
    return work(*arguments)


class Follower:
    """A shard that is kept up to date with its log.

    `on_entry` is called with each entry of another process and its news, after the fold of the entry. `on_load` is
    called after the load of a snapshot; the news of the entries before it are lost to this process. `offload` runs the
    decoding of snapshots.
    """

    def __init__(self, log: Log, settings: ShardSettings, clock: Clock, offload: Offload = at_once) -> None:
        self._log, self._settings, self._clock, self._offload = log, settings, clock, offload
        self.shard = Shard(settings)
        self.on_entry: Callable[[Entry, list[Delivery]], None] = ignore_entry
        self.on_load: Callable[[], None] = ignore_load
        self.saved_position = 0
        """The position of the last snapshot that this copy loaded or wrote."""
        self.saved_at = 0.0
        """The time of the last entry in that snapshot, or of the log's first entry if there is no snapshot."""
        self.unsaved_bytes = 0
        """The bytes of the entries since that snapshot."""
        self._named: Moment | None = None
        """The start of the last read or append which showed that `shard.position` was free; None if there was none."""
        self._corrupt: LogCorrupt | None = None
        self._is_lost = False
        """True if the state may differ from the log, and must be loaded again."""
        self._failed_at = -1
        """The position of the last entry that did not fold."""
        self._lock = asyncio.Lock()

    @property
    def is_loaded(self) -> bool:
        return self._named is not None

    @property
    def age_s(self) -> float:
        """Return the seconds since this copy surely contained the whole log; infinity if it never did."""
        return inf if self._named is None else self._named.age_s()

    async def catch_up(self) -> None:
        """Fold all entries that were written before this call. Raises StoreUnavailable, LogGap, LogCorrupt."""
        async with self._lock:
            await self._catch_up()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Shard]:
        """Hold the lock, so that inside the block no other task folds or decides."""
        async with self._lock:
            if self._is_lost:
                await self._catch_up()
            yield self.shard

    async def _catch_up(self) -> None:
        while True:
            if self._needs_reload():
                await self._load()
            named, began = self._named, Moment(self._clock)
            try:
                entries = await self._log.read(self.shard.position, READ_MAX)
            except LogGap as gap:
                await self._load(gap)
                continue
            if named is None or named.age_s() > POSITION_MAX_AGE_S:
                self._named = None
                continue
            try:
                await self._fold_all(entries)
            except StateLost:
                continue
            self._named = began
            if len(entries) < READ_MAX:
                return

    async def _fold_all(self, entries: Sequence[bytes]) -> None:
        """Fold entries. Other tasks of this process run after each PAUSE_BYTES."""
        size = 0
        for data in entries:
            self._fold(data)
            size += len(data)
            if size > PAUSE_BYTES:
                size = 0
                await asyncio.sleep(0)

    def _needs_reload(self) -> bool:
        if self._corrupt is not None:
            raise self._corrupt
        return self._named is None or self._named.age_s() > POSITION_MAX_AGE_S

    async def _load(self, gap: LogGap | None = None) -> None:
        """Load the newest snapshot. `gap`: the entry at the shard's position is missing. Raises LogGap if no snapshot
        is newer than that."""
        began = Moment(self._clock)
        found = await self._log.load_snapshot()
        position = 0 if found is None else found[0]
        if gap is not None and position <= self.shard.position:
            self._named = None  # so that this copy decides and writes nothing until a read finds no gap
            raise LogGap(f"{gap} There is no snapshot above it, so this shard stops.")
        shard = Shard(self._settings) if found is None else await self._offload(load, found[1], self._settings)
        self.shard, self._is_lost = shard, False
        if shard.position != position:
            raise LogCorrupt(f"The snapshot of position {position} contains another position.")
        self.saved_position, self.saved_at, self.unsaved_bytes = position, self.shard.at, 0
        self._named = began
        self.on_load()

    def _fold(self, data: bytes) -> None:
        """Fold the entry at the shard's position. Raises LogCorrupt; StateLost if the state must be loaded again."""
        position = self.shard.position
        try:
            entry = decode_entry_at(position, data)
        except LogCorrupt as error:
            self._corrupt = error
            raise
        try:
            news = self.shard.fold(entry)
        except Exception as error:
            if self._failed_at == position:
                named = error if isinstance(error, LogCorrupt) else LogCorrupt(f"entry {position}: {error!r}")
                self._corrupt = named
                raise named from error
            self._failed_at = position
            self._lose_state(error)
            raise StateLost() from error
        self._count_unsaved(entry, data)
        self.on_entry(entry, deliveries_of(entry.position, news))

    def _lose_state(self, error: Exception) -> None:
        """Load the state again before it is used, because it may differ from the log."""
        logger.error("the state is loaded again: %s: %r", type(error).__name__, str(error)[:_REASON_CHARS_MAX])
        self._named, self._is_lost = None, True

    def _count_unsaved(self, entry: Entry, data: bytes) -> None:
        self.unsaved_bytes += len(data)
        self.saved_at = self.saved_at or entry.at


def deliveries_of(position: int, news: Sequence[tuple[str, Offer | Over]]) -> list[Delivery]:
    return [Delivery(process, position, item) for process, item in news]


class Moment:
    """A point in time on both clocks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall, self._monotonic = clock.now(), clock.monotonic()

    def age_s(self) -> float:
        """Return the seconds since this moment, by the clock that shows the longer time."""
        return max(self._clock.now() - self._wall, self._clock.monotonic() - self._monotonic)

    def drift_s(self) -> float:
        """Return by how many seconds the wall clock has moved more than the monotonic clock since this moment."""
        return (self._clock.now() - self._wall) - (self._clock.monotonic() - self._monotonic)


class ClockGuard:
    """Watches this process's clocks. The store watches them too: it refuses an append if this process's clock differs
    too much from the store's (stores/dynamodb/server_time.py)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = Moment(clock)
        self._calm_until = 0.0

    def entry_time(self, previous: float) -> float:
        """Return the time of a new entry: now, but not before `previous`, the time of the entry before."""
        self.check()
        return max(previous, self._clock.now())

    def check(self) -> None:
        """Begin a calm time if the wall clock has jumped since the last check."""
        if abs(self._last.drift_s()) > _JUMP_S:
            self.stay_calm()
        self._last = Moment(self._clock)

    def stay_calm(self) -> None:
        self._calm_until = self._clock.monotonic() + CALM_S

    @property
    def is_calm(self) -> bool:
        """True while deadlines and losses may not be decided."""
        return self._clock.monotonic() < self._calm_until
