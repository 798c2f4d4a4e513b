"""Where the entries of a shard's log are in the table: in one partition, or striped over several.

DynamoDB takes at most 1,000 write units a second in a partition. In a *striped* log, entry p is in the partition of the
stripe p mod n. The log becomes striped at a position by a *mark*: an item at this position of the first partition, put
under the same condition as an entry. So the mark or an entry has the position there, never both, and a process that
does not know of the change learns of it when it writes there. The mark takes no position of the log: the entry itself
is in its stripe. A mark has no expiry, and its number of stripes holds for good.

Whoever holds the log's end at a position p has read entry p - 1. The only other way to p is a snapshot. So before the
first partition is read or written at p without its entry p - 1, its last item is looked at, which is the mark if there
is one. And snapshots of a striped log are in a partition of their own: an older version of headgate does not find them,
gets to the mark by the entries before it, and takes the mark for an entry of a newer version (`LogNewer`).

An entry is written after the entry before it, so it is kept at least as long. So while entry p - 1 is known and will be
kept for a while, entry p is in its stripe, or there is no later one either: one stripe shows whether there is a new
entry. In all other cases all stripes are asked: an expired entry with a later one is a gap. That a position was found
free is not enough, because its entry and all later ones may have expired before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from dispatcher.stores.dynamodb.requests import Reads, Requests, encode_item
from dispatcher.stores.dynamodb.server_time import times
from dispatcher.stores.layout import log_partition, position_text, snapshot_partition, stripe_partition
from dispatcher.stores.table import EXPIRY, PARTITION, SORT, ConditionFailed, Item

ENTRY, _STRIPES = "entry", "stripes"
_NEWER_ENTRY = b'j[1000,0,0,"","",0,[]]'
"""What an older version reads at a mark: an entry of a format that it does not know."""
_IS_FREE = "attribute_not_exists(pk)"
_KEPT_S = 3600.0
"""An entry that expires later than this is there, and so is the next one. Right clocks differ by seconds."""


class _Mark(NamedTuple):
    """Entries from `position` on are striped."""

    position: int
    stripes: int


class LogItems:
    """The items of one log's entries. `wanted`: the number of stripes that a log gets which is not striped yet; 1
    leaves it as it is."""

    def __init__(self, requests: Requests, reads: Reads, shard: str, wanted: int) -> None:
        self._requests, self._reads, self._shard, self._wanted = requests, reads, shard, wanted
        self._mark: _Mark | None = None
        self._last_unstriped = -1
        """The highest position at which the first partition is known to have an entry."""
        self._known: Item | None = None
        """An entry: the one that was written or read here last."""

    async def put(self, position: int, attributes: dict[str, Any]) -> None:
        """Write the entry's item at the position. Raises ConditionFailed with the item that is there."""
        await self._look_before(position)
        if self._mark is None and self._wanted > 1:
            await self._put_mark(position)
        if self._mark is None or position < self._mark.position:
            try:
                await self._put(log_partition(self._shard), position, attributes)
                self._last_unstriped = max(position, self._last_unstriped)
                self._known = {SORT: position_text(position), **attributes}
                return
            except ConditionFailed as refused:
                self._learn(refused.old[0] or {})
                if self._mark is None or position < self._mark.position:
                    raise
        await self._put(stripe_partition(self._shard, position % self._mark.stripes), position, attributes)
        self._known = {SORT: position_text(position), **attributes}

    async def entries(self, position: int, limit: int) -> list[Item]:
        """Return the items of entries from `position` on, in order, at most `limit`. Some may be missing.

        If those right before the mark are missing, the last item is the mark's: it shows that there were some.
        """
        await self._look_before(position)
        found: list[Item] = []
        if self._mark is None or position < self._mark.position:
            found = await self._read_first_partition(position, limit)
        if self._mark is not None and len(found) < limit:
            start = self._mark.position
            if position + len(found) < start:
                return [*found, {SORT: position_text(start)}]
            found += await self._read_stripes(max(position, start), limit - len(found))
        if found:
            self._known = found[-1]
        return found

    async def last(self) -> Item | None:
        """Return the item of the last entry."""
        if self._mark is None:
            last = await self._last_of_first_partition()
            if self._mark is None:
                return last
        mark, known = self._mark, self._known
        if known is not None and (after := _position(known) + 1) >= mark.position and self._is_next(after):
            condition, values = "#sk >= :from", {":from": position_text(after)}
            if not await self._reads.query(self._partitions(mark, after)[0], condition, values, 1):
                return known
        newest = await asyncio.gather(
            *(self._reads.query(each, limit=1, ScanIndexForward=False) for each in self._partitions(mark))
        )
        if found := list(chain.from_iterable(newest)):
            self._known = max(found, key=_position)
            return self._known
        before, values = "#sk < :from", {":from": position_text(mark.position)}
        first = log_partition(self._shard)
        items = await self._reads.query(first, before, values, limit=1, ScanIndexForward=False)
        return items[0] if items else None

    async def snapshot_partitions(self) -> Sequence[str]:
        """Return the partitions that may have snapshots. A new one goes to the first."""
        if self._mark is None:
            await self._last_of_first_partition()
        usual = snapshot_partition(self._shard)
        return (usual,) if self._mark is None else (snapshot_partition(self._shard, is_striped=True), usual)

    async def _look_before(self, position: int) -> None:
        """Learn of the mark, if it may be below the position."""
        if self._mark is None and position > self._last_unstriped + 1:
            await self._last_of_first_partition()

    async def _last_of_first_partition(self) -> Item | None:
        items = await self._reads.query(log_partition(self._shard), limit=1, ScanIndexForward=False)
        return next(iter(self._learn_all(items)), None)

    async def _read_first_partition(self, position: int, limit: int) -> list[Item]:
        condition, values = "#sk >= :from", {":from": position_text(position)}
        return self._learn_all(await self._reads.query(log_partition(self._shard), condition, values, limit))

    async def _read_stripes(self, position: int, limit: int) -> list[Item]:
        """Return the entries from `position` on. If the entry before it is known, its stripe alone may answer."""
        assert self._mark is not None  # noqa: S101 (the caller has seen it)
        each_limit = -(-limit // self._mark.stripes)
        condition, values = "#sk >= :from", {":from": position_text(position)}
        asked, own = self._partitions(self._mark, position), list[Item]()
        if self._is_next(position):
            own = await self._reads.query(asked.pop(0), condition, values, each_limit)
            if not own:
                return []
        others = await asyncio.gather(*(self._reads.query(each, condition, values, each_limit) for each in asked))
        return sorted(chain(own, *others), key=_position)[:limit]

    async def _put_mark(self, position: int) -> None:
        """Let the log be striped from the position on. Raises ConditionFailed with an entry that is there.

        The end is looked at again just before: a mark at a position that has expired would mislead all others.
        """
        await self._last_of_first_partition()
        if self._mark is not None or self._last_unstriped >= position:
            return
        try:
            await self._put(log_partition(self._shard), position, {ENTRY: _NEWER_ENTRY, _STRIPES: self._wanted})
            self._mark = _Mark(position, self._wanted)
        except ConditionFailed as refused:
            self._learn(refused.old[0] or {})
            if self._mark is None:
                raise

    async def _put(self, partition: str, position: int, attributes: dict[str, Any]) -> None:
        key = {PARTITION: partition, SORT: position_text(position)}
        await self._requests.put(encode_item({**key, **attributes}), _IS_FREE)

    def _partitions(self, mark: _Mark, first: int = 0) -> list[str]:
        """Return the partitions of all stripes, that of the position `first` first."""
        return [stripe_partition(self._shard, (first + number) % mark.stripes) for number in range(mark.stripes)]

    def _learn_all(self, items: list[Item]) -> list[Item]:
        """Learn what the items of the first partition show. Return them without the mark."""
        for item in items:
            self._learn(item)
        return [item for item in items if _STRIPES not in item]

    def _learn(self, item: Item) -> None:
        if _STRIPES in item:
            self._mark = _Mark(_position(item), int(item[_STRIPES]))
        elif item:
            self._last_unstriped = max(_position(item), self._last_unstriped)

    def _is_next(self, position: int) -> bool:
        """Return whether there is no entry from the position on unless there is one at the position."""
        clock, known = self._requests.clock, self._known
        if known is None or _position(known) != position - 1:
            return False
        is_kept = float(known[EXPIRY]) - clock.now() > _KEPT_S
        return is_kept and self._requests.server_time.is_right(times(clock))


def _position(item: Item) -> int:
    return int(item[SORT])
