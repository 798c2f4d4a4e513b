"""The golden files of the stores: the items of a DynamoDB table and the rows of an SQLite file, with every record.

Both stores get the same story, and both are read back by the same calls. So an old table and an old file are read by
the present code (test_golden.py). The table is moto's.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import closing
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from dispatcher.model.tenants import AuditRecord, KeyRecord, Tenant
from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier
from dispatcher.ports import Store
from dispatcher.stores.dynamodb.store import DynamoStore
from dispatcher.stores.sqlite.store import SqliteStore
from tests.conformance.store_backends import TablePlace, moto
from tests.conformance.store_world import (
    SHARD,
    START,
    FakeClock,
    answer,
    batch,
    file,
    invocation,
    kept_response,
    tenant_row,
    usage_row,
)
from tests.support.server_time import IgnoredServerTime

T = TypeVar("T")
ACME = Tenant("acme.k3f9x2m7q8ab", Share(0.1, 1e9 / 3, 12345.678901234567), Tier.PREMIUM, ("m", "n"), 7, 8, 1, "night")
OLD = Tenant("zoë")
KEY = KeyRecord("hg-92P86yxr", "ab" * 32, ACME.identity, START + 3600.0, START + 0.5, "batch")
MONTH = "1970-01"


def audit(number: int, action: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> AuditRecord:
    return AuditRecord(f"id{number}", START + number, "local:zoë@host", action, ACME.identity, before, after)


async def write(store: Store) -> None:
    """Write each kind of record, and change and delete some of them."""
    await store.put_tenant(ACME, expected_version=None, audit=audit(1, "tenant.create", None, {"weight": 0.1}))
    second = replace(ACME, queue_items_max=9, version=2)
    await store.put_tenant(
        second, expected_version=1, audit=audit(2, "tenant.change", {"queue_items_max": 7}, {"queue_items_max": 9})
    )
    await store.put_tenant(OLD, expected_version=None)
    await store.put_key(KEY, audit=audit(3, "key.create", None, {"prefix": KEY.prefix}))
    await store.put_key(KeyRecord("hg-old", "cd" * 32, OLD.identity))
    await store.put_tenant(Tenant("gone.1"), expected_version=None)
    await store.put_key(KeyRecord("hg-gone", "ef" * 32, "gone.1"))
    await store.delete_tenant("gone.1", audit=audit(4, "tenant.delete", {}, None))
    await store.create(invocation("p-0", ACME.identity, "key é", trace="00-1-2-01"))
    await store.create(invocation("p-1", "zoë", "answered"))
    await store.answer("p-1", answer("an answer"))
    await store.create(invocation("p-2", "zoë", "shared"))
    await store.share("p-2")
    await store.create(invocation("p-3", "zoë", "refused"))
    await store.refuse("p-3", answer('{"error":{"code":"queue_full"},"status":429}', outcome="failed"))
    await store.keep_response(kept_response("resp_p-1", ACME.identity), 1_000_000)
    await store.keep_response(kept_response("resp_p-2", ACME.identity), 1_000_000)
    await store.delete_response(ACME.identity, "resp_p-2")
    await store.put_file(file(0, ACME.identity))
    await store.put_file(file(1, ACME.identity))
    await store.delete_file(ACME.identity, "file-1")
    for number in range(2):
        await store.create_batch(batch(number, ACME.identity))
    await store.replace_batch(
        replace(
            batch(0, ACME.identity), status="in_progress", version=2, parts=("part",), times={"in_progress": START}
        ),
        1,
    )
    await store.retire_batch(batch(1, ACME.identity))
    await store.put_usage(SHARD, [usage_row(ACME.identity, "chat"), usage_row("zoë", cached_tokens=1)])
    await store.put_tenant_rows(SHARD, [tenant_row(ACME.identity)])
    await store.mailboxes.put("p", 7, [b'["o","p-0",1,"w1","http://w1:8000",7]', b'["d"]'])
    log = store.log(SHARD)
    await log.append(0, b"j[0]")
    await log.append(1, b"j[1]")
    await log.save_snapshot(1, "first", b"jsnapshot")
    await log.append(2, b"z\x00\xff")
    await log.save_snapshot(2, "second", b"z\x00\xff")
    await log.cut(1)


async def read(store: Store) -> str:
    """Return what the store answers to each question, a line each."""
    acme, log = ACME.identity, store.log(SHARD)
    questions: dict[str, Awaitable[Any]] = {
        "find_key": store.find_key(KEY.prefix),
        "get_tenant": store.get_tenant(acme),
        "find_tenant": store.find_tenant("acme"),
        "list_tenants": store.list_tenants(),
        "keys_of": store.keys_of(acme),
        "audit_records": store.audit_records(MONTH),
        **{f"get {name}": store.get(name) for name in ("p-0", "p-1", "p-2", "p-3", "p-4")},
        "find": store.find("zoë", "answered"),
        "response": store.response(acme, "resp_p-1"),
        "response that was deleted": store.response(acme, "resp_p-2"),
        "files": store.files(acme),
        "batches": store.batches(acme),
        "open_batches": store.open_batches("default"),
        "usage": store.usage(None, 0, 1000),
        "tenant_rows": store.tenant_rows(SHARD),
        "mailbox": store.mailboxes.read("p", 0),
        "last": log.last(),
        "read": log.read(2),
        "load_snapshot": log.load_snapshot(),
    }
    return "".join(
        [f"{name}: {json.dumps(_plain(await question), ensure_ascii=False)}\n" for name, question in questions.items()]
    )


def _plain(value: Any) -> Any:
    """Return the value for JSON, without names of classes: they may change."""
    if isinstance(value, bytes):
        return repr(value)
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def make_items() -> str:
    """Return the items of the table after the story, in the order of their keys."""
    with moto() as make_place:
        place = make_place()
        assert isinstance(place, TablePlace)
        asyncio.run(_used(_opened(place), write))
        pages = place.client.get_paginator("scan").paginate(TableName=place.table)
        items = [item for page in pages for item in page["Items"]]
    items.sort(key=lambda item: (item["pk"]["S"], item["sk"]["S"]))
    return "".join(json.dumps(item, sort_keys=True, ensure_ascii=False, default=_as_text) + "\n" for item in items)


def read_items(text: str) -> str:
    """Return what a store over these items answers."""
    with moto() as make_place:
        place = make_place()
        assert isinstance(place, TablePlace)
        for line in text.splitlines():
            place.client.put_item(TableName=place.table, Item=json.loads(line, object_hook=_as_bytes))
        return asyncio.run(_used(_opened(place), read))


def make_rows() -> str:
    """Return the SQL of the file after the story."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "golden.db"
        asyncio.run(_used(SqliteStore(path, FakeClock()), write))
        with closing(sqlite3.connect(path)) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            return "".join(f"{line}\n" for line in [*connection.iterdump(), f"PRAGMA user_version = {version};"])


def read_rows(text: str) -> str:
    """Return what a store over a file of this SQL answers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "golden.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(text)
        return asyncio.run(_used(SqliteStore(path, FakeClock()), read))


async def _used(store: Store, use: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
    try:
        return await use(store)
    finally:
        await store.close()


def _opened(place: TablePlace) -> DynamoStore:
    return DynamoStore(
        place.client, place.table, clock=FakeClock(), random=Random(1), threads=1, server_time=IgnoredServerTime()
    )


def _as_text(value: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode()}


def _as_bytes(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if "base64" in value else value
