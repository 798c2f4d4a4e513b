"""Mailboxes: an item for each put. A poll is one query. With little news it takes one read unit in DynamoDB."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from dispatcher.stores.layout import POSITION_DIGITS, mailbox_partition, news_key, position_text
from dispatcher.stores.limits import ENTRY_BYTES_MAX, MAILBOX_KEEP_S
from dispatcher.stores.table import EXPIRY, SORT, Item, ItemTable, PutItem


class MailboxRecords:
    """dispatcher.ports.MailboxStore."""

    def __init__(self, table: ItemTable) -> None:
        self._table = table

    async def put(self, process: str, position: int, news: Sequence[bytes]) -> None:
        expiry = int(self._table.clock.now() + MAILBOX_KEEP_S)
        puts = [PutItem(news_item(process, position, batch, expiry)) for batch in _batches(news)]
        await self._table.put_each(puts, synced=False)

    async def read(self, process: str, after: int) -> Sequence[tuple[int, bytes]]:
        items = await self._table.range(mailbox_partition(process), position_text(after + 1))
        return [(int(item[SORT][:POSITION_DIGITS]), bytes(each)) for item in items for each in item["news"]]


def news_item(process: str, position: int, news: Sequence[bytes], expiry: int) -> Item:
    """Return the item of news that fits into one. Repeated news replaces itself."""
    digest = hashlib.sha256(b"\0".join(news)).hexdigest()[:12]
    return {**news_key(process, position, digest), "news": list(news), EXPIRY: expiry}


def _batches(news: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield the news in batches that fit into one item each."""
    batch: list[bytes] = []
    size = 0
    for each in news:
        if batch and size + len(each) > ENTRY_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += len(each) + 8
    if batch:
        yield batch
