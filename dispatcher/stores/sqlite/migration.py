"""Migrates a file of layout 1 to 4, which had tables for each record, to the one table of items.

No other process may have the file open meanwhile. First the pages are checked, then the file is copied, then all is
converted in one transaction. So if the process dies at any moment, the file is as it was, and the next process that
opens it begins again. A damaged file is named and left as it is.

The copy, `PATH.layout-4` for instance, is the way back: an older headgate uses it under the name of the file.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import Any

from dispatcher.model.batches import FileRecord, to_batch
from dispatcher.model.errors import ConfigurationError
from dispatcher.model.kept import KeptResponse
from dispatcher.model.tenants import has_id
from dispatcher.model.usage import HOUR_S
from dispatcher.stores.layout import (
    TENANT_ROW_KEEP_S,
    USAGE_KEEP_S,
    audit_key,
    caller_key,
    invocation_key,
    response_bytes_key,
    tenant_row_key,
    usage_key,
)
from dispatcher.stores.records.invocations import news_item
from dispatcher.stores.records.kept_objects import batch_item, file_item, open_item, response_items
from dispatcher.stores.records.tenants import claim_item, key_items, tenant_items, to_key, to_tenant
from dispatcher.stores.sqlite.database import BUSY_S, ITEMS, LAYOUT, create
from dispatcher.stores.sqlite.table import insert
from dispatcher.stores.table import EXPIRY, Item


def migrate(path: Path) -> None:
    """Bring the file to the present layout, unless it is new or has this layout already. Raises ConfigurationError.

    Waits while another process migrates a file of this folder.
    """
    try:
        if path.exists():
            with _alone_in(path.parent):
                layout = _layout_of(path)
                if 0 < layout < LAYOUT:
                    _migrate(path, layout)
    except (sqlite3.Error, OSError) as error:
        raise ConfigurationError(f"the store's file {path} cannot be opened: {error}") from None


def _migrate(path: Path, layout: int) -> None:
    _check(path)
    with closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as connection:
        _take(connection, path)
        copy = _copy(connection, path, layout)
        connection.execute("BEGIN EXCLUSIVE")
        try:
            _convert(connection)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            what = f"a row cannot be read ({type(error).__name__}: {error})"
            raise ConfigurationError(f"the store's file {path} is damaged and was left as it is: {what}") from error
        connection.execute("COMMIT")
    logging.getLogger("headgate.store").warning("the store's file %s has a new layout; %s has the old one", path, copy)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from migrating in this folder. If this process dies, they go on."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _layout_of(path: Path) -> int:
    with closing(_open_to_read(path)) as connection:
        (layout,) = connection.execute("PRAGMA user_version").fetchone()
    return int(layout)


def _open_to_read(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)


def _check(path: Path) -> None:
    """Raise ConfigurationError if a page of the file is damaged. Nothing is written."""
    try:
        with closing(_open_to_read(path)) as connection:
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        found = str(error)
    if found != "ok":
        raise ConfigurationError(f"the store's file {path} is damaged and was left as it is: {found}")


def _take(connection: sqlite3.Connection, path: Path) -> None:
    """Lock the file for this connection alone, until it is closed."""
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        raise ConfigurationError(
            f"the store's file {path} has an older layout, and another process has it open: "
            f"stop all processes that use it, and start again ({error})"
        ) from None


def _copy(connection: sqlite3.Connection, path: Path, layout: int) -> Path:
    """Write a copy of the file beside it, whole or not at all, and return its path."""
    copy, partial = Path(f"{path}.layout-{layout}"), Path(f"{path}.copying")
    partial.unlink(missing_ok=True)
    partial.touch(0o600)
    shutil.copymode(path, partial)
    with closing(sqlite3.connect(partial)) as target:
        connection.backup(target)
    _sync(partial)
    partial.replace(copy)
    _sync(path.parent)
    return copy


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _convert(connection: sqlite3.Connection) -> None:
    """Replace the tables of the records by the table of items, within the caller's transaction."""
    create(connection, ITEMS)
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for name, (columns, order, items) in _OLD.items():
        if name in there:
            rows = connection.execute(f"SELECT {columns} FROM {name} {order}")  # noqa: S608
            for item in items(rows):
                insert(connection, item)
            connection.execute(f"DROP TABLE {name}")


# ── The items of each old table ────────────────────────────────────────────────────────────────────────────────────


def _news(rows: sqlite3.Cursor) -> Iterator[Item]:
    for (process, position), together in groupby(rows, key=lambda row: (row[0], row[1])):
        news = list(together)
        yield news_item(process, position, [row[2] for row in news], int(max(row[3] for row in news)))


def _invocations(rows: sqlite3.Cursor) -> Iterator[Item]:
    for named, tenant, key, expires_at, record, body, answer in rows:
        expiry = {EXPIRY: ceil(expires_at)}
        texts = {"body": body, "answer": None if answer is None else json.loads(answer)}
        yield {**invocation_key(named), **json.loads(record), **texts, **expiry}
        if key:
            yield {**caller_key(tenant, key), "id": named, **expiry}


def _usage(rows: sqlite3.Cursor) -> Iterator[Item]:
    for hour, tenant, app, shard, record in rows:
        expiry = (hour + 1) * HOUR_S + int(USAGE_KEEP_S)
        yield {**usage_key(tenant, hour, shard, app), **json.loads(record), "shard": shard, EXPIRY: expiry}


def _states(rows: sqlite3.Cursor) -> Iterator[Item]:
    for shard, tenant, record in rows:
        row = json.loads(record)
        yield {**tenant_row_key(shard, tenant), **row, EXPIRY: int(row["at"] + TENANT_ROW_KEEP_S)}


def _tenants(rows: sqlite3.Cursor) -> Iterator[Item]:
    for _, record in rows:
        tenant = to_tenant(json.loads(record))
        yield from tenant_items(tenant, "")
        if has_id(tenant.identity):
            yield claim_item(tenant)


def _keys(rows: sqlite3.Cursor) -> Iterator[Item]:
    for _, record in rows:
        yield from key_items(to_key(json.loads(record)))


def _responses(rows: sqlite3.Cursor) -> Iterator[Item]:
    for number, (tenant, named, expires_at, content) in enumerate(rows):
        yield from response_items(KeptResponse(tenant, named, content, expires_at), f"0-{number}")


def _response_bytes(rows: sqlite3.Cursor) -> Iterator[Item]:
    for tenant, hour, size in rows:
        yield {**response_bytes_key(tenant, hour), "bytes": size, EXPIRY: hour * HOUR_S}


def _files(rows: sqlite3.Cursor) -> Iterator[Item]:
    for _, _, record in rows:
        yield file_item(FileRecord(**json.loads(record)))


def _batches(rows: sqlite3.Cursor) -> Iterator[Item]:
    for _, _, is_open, record in rows:
        batch = to_batch(json.loads(record))
        yield batch_item(batch)
        if is_open:
            yield open_item(batch, ceil(batch.forgotten_at))


def _audit(rows: sqlite3.Cursor) -> Iterator[Item]:
    for month, at, record in rows:
        yield {**audit_key(month, at), **json.loads(record)}


_OLD: dict[str, tuple[str, str, Callable[[Any], Iterator[Item]]]] = {
    "mailboxes": ("process, position, news, expires_at", "ORDER BY process, position, rowid", _news),
    "invocations": ("id, tenant, key, expires_at, record, body, answer", "", _invocations),
    "usage": ("hour, tenant, app, shard, record", "", _usage),
    "tenant_rows": ("shard, tenant, record", "", _states),
    "tenants": ("name, record", "", _tenants),
    "keys": ("prefix, record", "", _keys),
    "responses": ("tenant, id, expires_at, content", "", _responses),
    "response_bytes": ("tenant, hour, bytes", "", _response_bytes),
    "files": ("tenant, id, record", "", _files),
    "batches": ("tenant, id, is_open, record", "", _batches),
    "audit": ("month, at, record", "", _audit),
}
"""The columns of each old table, the order in which its rows are read, and what makes their items."""
