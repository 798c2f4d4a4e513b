"""The tables of the file. `user_version` is the number of the layout. A file with a newer layout is refused, and a file
with an older one is migrated before it is opened (migration.py).

Entries of the log are opaque. `items` is the table of dispatcher/stores/table.py, and `nonces` counts the
processes that named a write. Times are Unix seconds.
"""

from __future__ import annotations

import sqlite3

from dispatcher.model.errors import ConfigurationError

LAYOUT = 5
ITEMS = """
CREATE TABLE items (
    pk TEXT NOT NULL, sk TEXT NOT NULL, expires_at INTEGER, attributes TEXT NOT NULL, PRIMARY KEY (pk, sk));
CREATE INDEX items_by_expiry ON items (expires_at);
CREATE TABLE nonces (taken INTEGER NOT NULL);
INSERT INTO nonces VALUES (0);
"""
_LOG = """
CREATE TABLE log (
    shard TEXT NOT NULL, position INTEGER NOT NULL, entry BLOB NOT NULL, written_at REAL NOT NULL,
    PRIMARY KEY (shard, position)) WITHOUT ROWID;
CREATE TABLE snapshots (
    shard TEXT NOT NULL, position INTEGER NOT NULL, nonce TEXT NOT NULL, state BLOB NOT NULL, checksum TEXT NOT NULL,
    written_at REAL NOT NULL, PRIMARY KEY (shard, position, nonce));
"""


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables of a new file, within the caller's transaction. Raises ConfigurationError for a newer file."""
    (layout,) = connection.execute("PRAGMA user_version").fetchone()
    if layout > LAYOUT:
        raise ConfigurationError(
            f"the store's file has layout {layout}, this version knows {LAYOUT}: use the newer headgate that wrote it"
        )
    if layout == 0:
        create(connection, _LOG + ITEMS)


def create(connection: sqlite3.Connection, tables: str) -> None:
    """Create the tables, and give the file the number of this layout."""
    for statement in filter(str.strip, tables.split(";")):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {LAYOUT}")
