"""Durable invocations, and the mailboxes with the news of calls.

There is an item for each invocation, and an item that maps the caller's key to the invocation's id. An invocation is
created by two puts, because a transaction would cost twice as much in DynamoDB. The first writes the key's item, under
the condition that there is none. The second writes the invocation's item. If the process dies between the puts, the key
leads to an id without an item. The next call with the key then writes its own request under that id. The first write of
an item wins.

A mailbox has an item for each put. A poll is one query. With little news it takes one read unit in DynamoDB.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import ceil
from typing import Any

from dispatcher.model.errors import RequestTooLarge
from dispatcher.model.kept import Invocation, StoredAnswer
from dispatcher.model.requests import Endpoint
from dispatcher.stores.layout import (
    ENTRY_BYTES_MAX,
    INVOCATION_KEEP_S,
    MAILBOX_KEEP_S,
    POSITION_DIGITS,
    TEXT_BYTES_MAX,
    caller_key,
    caller_partition,
    invocation_key,
    mailbox_partition,
    news_key,
    position_text,
)
from dispatcher.stores.table import (
    EXPIRY,
    SORT,
    ConditionFailed,
    DeleteItem,
    IfAbsent,
    IfPresent,
    Item,
    ItemTable,
    PutItem,
)

_UNANSWERED = IfPresent(lacks=("answer",))
_UNANSWERED_AND_UNSHARED = IfPresent(lacks=("answer", "shared"))


class InvocationRecords:
    """dispatcher.ports.InvocationStore."""

    def __init__(self, table: ItemTable) -> None:
        self._table = table

    async def create(self, invocation: Invocation) -> Invocation:
        _check_size(invocation)
        named = await self._take_key(invocation) if invocation.key else invocation.id
        if named != invocation.id:
            found = await self.get(named)
            if found is not None:
                return found
        return await self._put(replace(invocation, id=named))

    async def get(self, invocation_id: str) -> Invocation | None:
        item = await self._table.get(invocation_key(invocation_id))
        return None if item is None else _to_invocation(item)

    async def find(self, tenant: str, key: str) -> Invocation | None:
        item = await self._table.get(caller_key(tenant, key)) if key else None
        return None if item is None else await self.get(item["id"])

    async def answer(self, invocation_id: str, answer: StoredAnswer) -> StoredAnswer | None:
        return await self._keep(invocation_id, answer, _UNANSWERED)

    async def share(self, invocation_id: str) -> Invocation | None:
        key = invocation_key(invocation_id)
        try:
            item = await self._table.update(key, {"shared": True}, condition=_UNANSWERED, returned=True)
        except ConditionFailed as refused:
            (item,) = refused.old
        return None if item is None else _to_invocation(item)

    async def refuse(self, invocation_id: str, answer: StoredAnswer) -> StoredAnswer | None:
        return await self._keep(invocation_id, answer, _UNANSWERED_AND_UNSHARED)

    async def erase_invocations(self, tenant: str) -> None:
        """Delete the tenant's invocations that have an answer, where the table can list partitions."""
        keys = []
        if caller_partition(tenant) in await self._table.partitions(caller_partition(tenant)):
            for item in await self._table.range(caller_partition(tenant)):
                invocation = await self.get(item["id"])
                if invocation is not None and invocation.answer is not None:
                    keys += [caller_key(tenant, invocation.key), invocation_key(invocation.id)]
        if keys:
            await self._table.transact([DeleteItem(key) for key in keys], await self._table.nonce())

    async def _keep(self, invocation_id: str, answer: StoredAnswer, condition: IfPresent) -> StoredAnswer | None:
        key, fitting = invocation_key(invocation_id), _fitting_answer(answer)
        try:
            await self._table.update(key, {"answer": asdict(fitting)}, removed=("body",), condition=condition)
        except ConditionFailed as refused:
            (old,) = refused.old
            return None if old is None or "answer" not in old else _stored_answer(old["answer"])
        return fitting

    async def _take_key(self, invocation: Invocation) -> str:
        """Return the id under the caller's key: that of this invocation, or of an earlier one."""
        try:
            await self._table.put(_key_item(invocation), IfAbsent(), synced=False)  # the put after this one is synced
        except ConditionFailed as refused:
            return str((refused.old[0] or {})["id"])
        return invocation.id

    async def _put(self, invocation: Invocation) -> Invocation:
        try:
            await self._table.put(_invocation_item(invocation), IfAbsent())
        except ConditionFailed as refused:
            return _to_invocation(refused.old[0] or {})
        return invocation


def _key_item(invocation: Invocation) -> Item:
    key = caller_key(invocation.tenant, invocation.key)
    return {**key, "id": invocation.id, EXPIRY: ceil(_expires_at(invocation))}


def _invocation_item(invocation: Invocation) -> Item:
    """Return the item of a new invocation. `answer` and `shared` come later."""
    fields = {name: value for name, value in asdict(invocation).items() if name not in ("answer", "shared")}
    expiry = ceil(_expires_at(invocation))
    return {**invocation_key(invocation.id), **fields, "endpoint": invocation.endpoint.value, EXPIRY: expiry}


def _to_invocation(record: Mapping[str, Any]) -> Invocation:
    answer = record.get("answer")
    return Invocation(
        id=record["id"],
        tenant=record["tenant"],
        key=record["key"],
        pool=record["pool"],
        model=record["model"],
        fingerprint=record["fingerprint"],
        created_at=float(record["created_at"]),
        deadline_at=float(record["deadline_at"]),
        endpoint=_endpoint(record),
        body=record.get("body"),
        answer=None if answer is None else _stored_answer(answer),
        shared=bool(record.get("shared", False)),
        trace=record.get("trace") or "",
    )


def _endpoint(record: Mapping[str, Any]) -> Endpoint:
    """Return the endpoint. (An older version stored whether it is a chat.)"""
    if "endpoint" in record:
        return Endpoint(record["endpoint"])
    return Endpoint.CHAT if record["chat"] else Endpoint.COMPLETION


def _stored_answer(record: Mapping[str, Any]) -> StoredAnswer:
    return StoredAnswer(
        outcome=record["outcome"],
        attempt=int(record["attempt"]),
        input_tokens=int(record["input_tokens"]),
        output_tokens=int(record["output_tokens"]),
        body=record["body"],
        ended_at=float(record["ended_at"]),
    )


def _check_size(invocation: Invocation) -> None:
    """Raise RequestTooLarge if the invocation's body is too long to be kept."""
    if len((invocation.body or "").encode()) > TEXT_BYTES_MAX:
        raise RequestTooLarge(f"A request that is kept for its answer may have at most {TEXT_BYTES_MAX} bytes.")


def _fitting_answer(answer: StoredAnswer) -> StoredAnswer:
    """Replace an answer that is too long by an error. Its tokens stay, so that the charge equals the service."""
    if len(answer.body.encode()) <= TEXT_BYTES_MAX:
        return answer
    message = f"The answer is longer than {TEXT_BYTES_MAX} bytes and was not kept; stream it instead."
    error = {"message": message, "type": "server_error", "param": None, "code": "result_too_large"}
    return replace(answer, outcome="failed", body=json.dumps({"error": error, "status": 500}))


def _expires_at(invocation: Invocation) -> float:
    """Return when the invocation and its key are forgotten, in Unix seconds. An answer does not change this time."""
    return invocation.deadline_at + INVOCATION_KEEP_S


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
