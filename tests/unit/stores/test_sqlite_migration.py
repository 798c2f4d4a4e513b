"""A file of an older layout becomes one of the present layout: whole, or it stays as it was."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dispatcher.model.errors import ConfigurationError
from dispatcher.stores.sqlite import migration
from dispatcher.stores.sqlite.database import LAYOUT
from dispatcher.stores.sqlite.store import SqliteStore
from tests.conformance.store_world import SHARD, FakeClock
from tests.golden import written
from tests.golden.stores import read
from tests.support.hang_guard import HANG_S

ROOT = Path(__file__).parents[3]
DIES = """
import os, signal, sys
from pathlib import Path
from dispatcher.processes.bootstrap import RealClock
from dispatcher.stores.sqlite import migration
from dispatcher.stores.sqlite.store import SqliteStore

last, path = sys.argv[1:]
left = int(last)

def kill(*arguments):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return put(*arguments)

if left < 0:
    migration._sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)
put, migration.insert = migration.insert, kill
SqliteStore(path, RealClock())
"""
"""Migrates a file until it dies: before the copy is complete (-1), or before so many items are written."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Make a file of layout 4, in the mode in which headgate leaves it."""
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(written("rows-4.sql"))
        connection.execute("PRAGMA journal_mode = WAL")
    return path


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [*connection.iterdump(), str(layout_of(connection))]


def layout_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


async def answers(path: Path) -> str:
    store = SqliteStore(path, FakeClock())
    try:
        return await read(store)
    finally:
        await store.close()


def copy_of(path: Path) -> Path:
    return Path(f"{path}.layout-4")


def test_a_migrated_file_has_one_table_and_its_copy_is_the_old_file(old: Path) -> None:
    before = dump(old)
    assert asyncio.run(answers(old)) == written("answers.txt")
    with closing(sqlite3.connect(old)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert (tables, layout_of(connection)) == ({"items", "nonces", "log", "snapshots"}, LAYOUT)
    assert dump(copy_of(old)) == before
    assert copy_of(old).stat().st_mode == old.stat().st_mode
    assert not Path(f"{old}.copying").exists()


def test_the_copy_is_the_way_back(old: Path) -> None:
    asyncio.run(answers(old))
    for name in old.parent.glob("store.db-*"):
        name.unlink()
    copy_of(old).replace(old)
    with closing(sqlite3.connect(old)) as connection:
        assert layout_of(connection) == 4
    assert asyncio.run(answers(old)) == written("answers.txt")


@pytest.mark.parametrize("moment", [-1, 0, 1, 12])
def test_a_migration_that_is_killed_changes_nothing_and_is_done_again(old: Path, moment: int) -> None:
    before = dump(old)
    command = [sys.executable, "-c", DIES, str(moment), str(old)]
    died = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=HANG_S)
    assert died.returncode == -signal.SIGKILL
    with closing(sqlite3.connect(f"file:{old}?mode=ro", uri=True)) as connection:
        assert layout_of(connection) == 4
    assert dump(old) == before
    assert asyncio.run(answers(old)) == written("answers.txt")
    assert dump(copy_of(old)) == before


@pytest.mark.parametrize("layout", [1, 2, 3])
async def test_files_that_are_older_still_lack_tables(old: Path, layout: int) -> None:
    newer = {1: ("responses", "response_bytes", "files", "batches", "audit"), 2: ("files", "batches", "audit")}
    with closing(sqlite3.connect(old)) as connection:
        for table in newer.get(layout, ("audit",)):
            connection.execute(f"DROP TABLE {table}")
        connection.execute(f"PRAGMA user_version = {layout}")
    store = SqliteStore(old, FakeClock())
    assert [tenant.identity for tenant in await store.list_tenants()] == ["acme.k3f9x2m7q8ab", "zoë"]
    assert await store.audit_records("1970-01") == []
    assert await store.log(SHARD).last() == (2, b"z\x00\xff")
    await store.close()
    assert {f"store.db.layout-{layout}"} <= {each.name for each in old.parent.iterdir()}


def test_a_process_that_has_the_file_open_must_stop_first(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "BUSY_S", 0.05)
    with closing(sqlite3.connect(old)) as other:
        other.execute("SELECT * FROM tenants").fetchall()
        with pytest.raises(ConfigurationError, match=f"{old} has an older layout.*stop all processes that use it"):
            SqliteStore(old, FakeClock())
        assert layout_of(other) == 4
    assert asyncio.run(answers(old)) == written("answers.txt")


def spoil_a_page(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:8192] + b"\xff" * 4096 + data[12288:])


def spoil_a_row(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE tenants SET record = '{' WHERE name = 'zoë'")
        connection.commit()


@pytest.mark.parametrize("damage", [spoil_a_page, spoil_a_row])
def test_a_damaged_file_is_named_and_left_as_it_is(old: Path, damage: Callable[[Path], None]) -> None:
    damage(old)
    before = old.read_bytes()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"the store's file {old} is damaged and was left as it is: "):
            SqliteStore(old, FakeClock())
        assert old.read_bytes() == before


async def test_many_processes_may_open_an_old_file_at_once(old: Path) -> None:
    stores = await asyncio.gather(*(asyncio.to_thread(SqliteStore, old, FakeClock()) for _ in range(8)))
    assert {await read(store) for store in stores} == {written("answers.txt")}
    await asyncio.gather(*(store.close() for store in stores))
