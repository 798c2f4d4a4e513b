"""`headgate serve` on a folder whose log cannot be used: one line says what is wrong, and no process is started."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher.model.commands import Report
from dispatcher.model.errors import ConfigurationError
from dispatcher.model.formats import NEWEST
from dispatcher.processes.bootstrap import RealClock, make_store
from dispatcher.service.gate.replica import Replica
from dispatcher.settings.config import load_config
from dispatcher.shard.codec import pack
from headgate.serve.server import POOL, ServeOptions, Server


async def written(folder: Path, entries: int) -> None:
    config = load_config({"HEADGATE_STORE": f"sqlite:{folder}/headgate.sqlite", "HEADGATE_POOL": POOL})
    store = make_store(config)
    replica = Replica(store.log(config.pool), config.shard_settings(), RealClock(), "test")
    for number in range(entries):
        await replica.commit([Report(f"w{number}", "http://w", "m", 1, 0, 1.0, 1.0, False, 0.0, 0, ())])
    await store.close()


def change(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / "headgate.sqlite")
    connection.execute(statement)
    connection.commit()
    connection.close()


def damage_entry(folder: Path) -> None:
    change(folder, "UPDATE log SET entry = x'6a7b' WHERE position = 2")


def lose_entry(folder: Path) -> None:
    change(folder, "DELETE FROM log WHERE position = 2")


def write_newer_entry(folder: Path) -> None:
    entry = pack([NEWEST + 1, 4, 0.0, "p:1", "", 0, []])
    change(folder, f"INSERT INTO log VALUES ('{POOL}', 4, x'{entry.hex()}', 0)")  # noqa: S608


def spoil_pages(folder: Path) -> None:
    change(folder, "PRAGMA wal_checkpoint(TRUNCATE)")
    database = folder / "headgate.sqlite"
    data = database.read_bytes()
    database.write_bytes(data[:8192] + b"\xff" * (len(data) - 8192))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_entry, r"the log in .* cannot be used: entry 2 .* do not decode.*[^.]\. Restore .* --data"),
        (write_newer_entry, "the log in .* newer headgate: entry 4 has format .*: update this process.* changed$"),
        (lose_entry, "the log in .* cannot be used: .* no entry 2, .* --data"),
        (spoil_pages, "the database in .* cannot be used: "),
    ],
)
async def test_a_damaged_folder_is_named_before_any_process_starts(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    await written(tmp_path, 4)
    damage(tmp_path)
    server = Server(ServeOptions(home=tmp_path, port=0, engine="modelled"), report=print)
    try:
        with pytest.raises(ConfigurationError, match=reason):
            await server.start()
        assert not list((tmp_path / "logs").glob("*.log"))
    finally:
        await server.stop()
