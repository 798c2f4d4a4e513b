"""The SQLite file: what cannot be opened is said at once, what breaks later is unavailable."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dispatcher.model.errors import ConfigurationError, LogGap, StoreUnavailable
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.processes.bootstrap import RealClock, make_store
from dispatcher.settings.config import load_config
from dispatcher.stores.layout import USAGE_KEEP_S
from dispatcher.stores.sqlite import database
from dispatcher.stores.sqlite.store import SqliteStore
from tests.conformance.store_world import FakeClock, answer, invocation, usage_row
from tests.support.hang_guard import HANG_S


async def test_the_environment_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = make_store(load_config({"HEADGATE_STORE": f"sqlite:{path}"}))
    assert isinstance(store, SqliteStore)
    await store.log("s").append(0, b"x")
    await store.close()
    assert path.stat().st_size > 0


@pytest.mark.parametrize("named", ["sqlite", "sqlite:", "sqlite:/", "sqlite: ", "dynamo", "", "sqlite:/tmp/"])
def test_a_store_that_is_none_is_refused(named: str) -> None:
    with pytest.raises(ConfigurationError, match=r'^HEADGATE_STORE: use "dynamodb", or "sqlite:PATH"'):
        load_config({"HEADGATE_STORE": named})


def test_a_path_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{tmp_path / 'none' / 'store.db'} cannot be opened"):
        SqliteStore(tmp_path / "none" / "store.db", RealClock())


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigurationError, match="not a database"):
        SqliteStore(path, RealClock())


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigurationError, match="layout 99, this version knows 5: use the newer headgate"):
        SqliteStore(path, RealClock())


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "store.db", RealClock())
    yield opened
    await opened.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """It is set when the file is synced to the disk."""
    event = threading.Event()
    monkeypatch.setattr(database, "sync", lambda path: event.set())
    return event


async def test_a_log_entry_is_synced_soon_and_without_its_writer(
    monkeypatch: pytest.MonkeyPatch, synced: threading.Event, store: SqliteStore
) -> None:
    monkeypatch.setattr(database, "SYNC_AFTER_S", 0.0)
    for position in range(3):
        synced.clear()
        await store.log("s").append(position, b"x")
        assert await asyncio.to_thread(synced.wait, HANG_S)


async def test_closing_syncs_what_is_not_synced_yet(
    monkeypatch: pytest.MonkeyPatch, synced: threading.Event, store: SqliteStore
) -> None:
    monkeypatch.setattr(database, "SYNC_AFTER_S", HANG_S)
    await store.log("s").append(0, b"x")
    assert not synced.is_set()
    await store.close()
    assert synced.is_set()


async def test_what_is_promised_is_synced_before_it_is_acknowledged(store: SqliteStore) -> None:

    async def mode() -> object:
        """FULL is 2, NORMAL is 1."""
        return await store._database._run(
            store._database._writes, lambda: store._database._writer.execute("PRAGMA synchronous").fetchone()[0]
        )

    for call, expected in (
        (store.log("s").append(0, b"x"), 1),
        (store.create(invocation()), 2),
        (store.mailboxes.put("p", 0, [b"x"]), 1),
        (store.answer("p-0", answer()), 2),
        (store.put_usage("s", [usage_row()]), 1),
        (store.put_tenant(Tenant("a"), expected_version=None), 2),
        (store.put_key(KeyRecord("k", "d", "a")), 2),
    ):
        await call
        assert await mode() == expected
    assert await store._database.read(lambda db: db.execute("PRAGMA journal_mode").fetchone()) == ("wal",)


async def test_a_file_that_is_deleted_or_replaced_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path, RealClock())
    await store.log("s").append(0, b"x")
    path.rename(tmp_path / "moved.db")
    with pytest.raises(StoreUnavailable, match="FileNotFoundError"):
        await store.log("s").append(1, b"y")
    other = SqliteStore(path, RealClock())
    with pytest.raises(StoreUnavailable, match="OSError"):
        await store.log("s").last()
    assert await other.log("s").last() is None
    await store.close()
    await other.close()


async def test_a_file_that_another_process_keeps_locked_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: SqliteStore
) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.01)
    await store.log("s").append(0, b"x")
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        await store.log("s").append(1, b"y")
    assert await store.log("s").last() == (0, b"x")  # readers do not wait for writers
    other.execute("ROLLBACK")
    assert await store.log("s").append(1, b"y") == b"y"
    other.close()


async def test_waiting_writes_do_not_wait_for_a_lock_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: SqliteStore
) -> None:
    """With 5 s for each, the last of 1,024 would wait for an hour and a half."""
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    monkeypatch.setattr(database, "QUEUED_MAX_S", 0.05)
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    statements: list[str] = []
    store._database._writer.set_trace_callback(statements.append)
    appends = [store.log("s").append(position, b"x") for position in range(20)]
    ended = await asyncio.gather(*appends, return_exceptions=True)
    assert all(isinstance(error, StoreUnavailable) for error in ended)
    assert statements.count("BEGIN IMMEDIATE") < 5
    other.close()


async def test_too_many_requests_at_once_are_refused(monkeypatch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    monkeypatch.setattr(database, "PENDING_MAX", 3)
    calls = [store.log("s").append(number, b"x") for number in range(9)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert outcomes[:3] == [b"x"] * 3
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes[3:])
    assert await store.log("s").append(3, b"x") == b"x"


async def test_a_closed_store_is_unavailable(store: SqliteStore) -> None:
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.log("s").last()


async def test_a_cut_does_not_read_what_is_too_young(store: SqliteStore) -> None:
    """It is made every minute, and a day's entries stay: reading all of them would keep every append waiting."""
    await fill(store, 20_000, written_at=RealClock().now())
    steps: list[None] = []
    store._database._writer.set_progress_handler(lambda: steps.append(None), 1000)
    await store.log("s").cut(19_000)
    assert len(steps) < 20


async def test_a_cut_of_many_entries_lets_appends_in_between(store: SqliteStore) -> None:
    await fill(store, 5_000, written_at=0.0)
    statements: list[str] = []
    store._database._writer.set_trace_callback(statements.append)
    await store.log("s").cut(4_900)
    assert statements.count("COMMIT") > 5
    assert await store.log("s").read(4_900, 1) == [b"x"]
    with pytest.raises(LogGap):
        await store.log("s").read(4_899)


async def test_expired_items_are_deleted_by_later_writes(tmp_path: Path) -> None:
    clock = FakeClock()
    store = SqliteStore(tmp_path / "store.db", clock)
    await store.put_usage("s", [usage_row("a"), usage_row("b")])
    clock.time += USAGE_KEEP_S
    assert await store.usage(None, 0, 10_000) == []
    assert await items_of(store) == 2
    await store.put_usage("s", [usage_row("c")])
    assert await items_of(store) == 1
    await store.close()


async def items_of(store: SqliteStore) -> int:
    return await store._database.read(lambda db: int(db.execute("SELECT COUNT(*) FROM items").fetchone()[0]))


async def fill(store: SqliteStore, entries: int, written_at: float) -> None:
    rows = [("s", position, b"x", written_at) for position in range(entries)]
    put = "INSERT INTO log VALUES (?, ?, ?, ?)"
    await store._database.write(lambda db: db.executemany(put, rows), synced=False)
