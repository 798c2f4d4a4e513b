"""Mailboxes in DynamoDB: an item for each put. A poll is one query. With little news it takes one read unit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from dispatcher.stores.dynamodb.attributes import encode_item
from dispatcher.stores.dynamodb.layout import (
    EXPIRY,
    POSITION_DIGITS,
    SORT,
    mailbox_partition,
    news_key,
    position_text,
)
from dispatcher.stores.dynamodb.reads import Reads
from dispatcher.stores.dynamodb.requests import Requests
from dispatcher.stores.limits import ENTRY_BYTES_MAX, MAILBOX_KEEP_S


class DynamoMailboxes:
    """dispatcher.ports.MailboxStore."""

    def __init__(self, requests: Requests, reads: Reads) -> None:
        self._requests, self._reads = requests, reads

    async def put(self, process: str, position: int, news: Sequence[bytes]) -> None:
        expiry = int(self._requests.clock.now() + MAILBOX_KEEP_S)
        for batch in _batches(news):
            digest = hashlib.sha256(b"\0".join(batch)).hexdigest()[:12]  # repeated news replaces itself
            item = {**news_key(process, position, digest), "news": batch, EXPIRY: expiry}
            await self._requests.put(encode_item(item))

    async def read(self, process: str, after: int) -> Sequence[tuple[int, bytes]]:
        start = {":from": position_text(after + 1)}
        items = await self._reads.query(mailbox_partition(process), "#sk >= :from", start)
        kept = [(int(item[SORT][:POSITION_DIGITS]), item["news"]) for item in items if not self._reads.is_expired(item)]
        return [(position, bytes(each)) for position, news in kept for each in news]


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
