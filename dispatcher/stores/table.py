"""The port to one table of items. DynamoDB and SQLite implement it, and each record is written once above it.

An item is a dictionary with a key of two texts, PARTITION and SORT. Its other attributes are text, bytes, numbers,
booleans, lists and dictionaries of these; an attribute that is None is left out. A number may come back as
another type: `int` or `float` makes the same number of it.

An item with EXPIRY, whole Unix seconds, counts as none from this time on, for every method and every condition. The
backends delete it later. A process that may not delete items writes an expired one instead.

Each method raises StoreUnavailable if the table does not answer; then a write may have been applied. The table repeats
a write without a known result, and its condition then fails against the write itself. So a caller compares the item of
ConditionFailed with its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dispatcher.ports import Clock

PARTITION, SORT, EXPIRY = "pk", "sk", "ttl"

Key = dict[str, str]
"""PARTITION and SORT."""
Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Write only if there is no item with this key."""


@dataclass(frozen=True, slots=True)
class IfPresent:
    """Write only if there is an item, with these values and without these attributes."""

    values: Mapping[str, Any] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IfLower:
    """Write only if there is no item, or a lower number in its attribute than in that of the new item."""

    attribute: str


Condition = IfAbsent | IfPresent | IfLower | None
"""What must be true of the stored item for a write; None: anything."""


@dataclass(frozen=True, slots=True)
class PutItem:
    item: Item
    condition: Condition = None


@dataclass(frozen=True, slots=True)
class DeleteItem:
    key: Key


@dataclass
class ConditionFailed(Exception):
    """The table refused a write, and nothing of it was applied."""

    old: tuple[Item | None, ...]
    """For each item of the write, in its order, the one that is stored, if its own condition failed."""


class ItemTable(Protocol):
    """`synced`: the write is on the disk when it is acknowledged, with all writes before it. Otherwise SQLite may lose
    the last tenth of a second if the machine dies. DynamoDB loses nothing."""

    @property
    def clock(self) -> Clock: ...

    async def nonce(self) -> str:
        """Return a new text that names one write."""
        ...

    async def get(self, key: Key) -> Item | None: ...

    async def range(self, partition: str, low: str = "", high: str = "") -> Sequence[Item]:
        """Return the items of a partition from the sort key `low` to `high` (empty: to the end), in their order."""
        ...

    async def put(self, item: Item, condition: Condition = None, *, synced: bool = True) -> Item | None:
        """Write the item in place of the one with its key, and return that one. Raises ConditionFailed."""
        ...

    async def put_each(self, puts: Sequence[PutItem], *, synced: bool = True) -> None:
        """Write each item unless its own condition fails."""
        ...

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
        """Set these values, remove attributes and add to numbers. An item that does not exist begins empty.

        Return the item after that if `returned`. Raises ConditionFailed.
        """
        ...

    async def transact(self, writes: Sequence[PutItem | DeleteItem], nonce: str) -> None:
        """Make all writes or none: at most 100 on DynamoDB. `nonce`: the name of this write. Raises ConditionFailed."""
        ...

    async def partitions(self, prefix: str) -> Sequence[str]:
        """Return the names of the partitions that begin with the prefix. DynamoDB cannot list them: there it is empty,
        and what a caller would have done with them is left to the expiry."""
        ...


def without_none(item: Mapping[str, Any]) -> Item:
    return {name: value for name, value in item.items() if value is not None}


def is_live(item: Item | None, now: float) -> bool:
    """Return whether there is an item that has not expired."""
    return item is not None and (EXPIRY not in item or now < float(item[EXPIRY]))


def _allows(condition: Condition, old: Item | None, new: Mapping[str, Any]) -> bool:
    """Return whether the condition allows a write. `old`: the stored item, None if there is none or it has expired."""
    match condition:
        case IfAbsent():
            return old is None
        case IfLower(attribute):
            return old is None or old[attribute] < new[attribute]
        case IfPresent(values, lacks):
            equal = old is not None and all(old.get(name) == value for name, value in values.items())
            return equal and old is not None and not any(name in old for name in lacks)
    return True


def check_conditions(writes: Sequence[PutItem | DeleteItem], old: Sequence[Item | None]) -> None:
    """Raise ConditionFailed unless all conditions allow the writes. `old`: the stored item of each, as in `allows`."""
    pairs = list(zip(writes, old, strict=True))
    refused = [isinstance(write, PutItem) and not _allows(write.condition, was, write.item) for write, was in pairs]
    if any(refused):
        raise ConditionFailed(tuple(was if is_refused else None for was, is_refused in zip(old, refused, strict=True)))


def key_of(write: PutItem | DeleteItem) -> Mapping[str, Any]:
    """Return a dictionary with the key of the item that is written."""
    return write.item if isinstance(write, PutItem) else write.key


def update_item(
    key: Key, old: Item | None, values: Mapping[str, Any], removed: Sequence[str], added: Mapping[str, int] | None
) -> Item:
    """Return the item that an update makes of the old one."""
    kept: Item = {name: value for name, value in (old or key).items() if name not in removed}
    sums = {name: kept.get(name, 0) + number for name, number in (added or {}).items()}
    return without_none({**kept, **sums, **values})
