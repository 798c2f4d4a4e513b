"""The tables of the file. `user_version` is the number of the layout. A file with a newer layout is refused, and a file
with an older one gets the tables that it lacks.

Entries of the log are opaque. The other tables have columns for the values that queries use, and the rest as JSON in
`record`.
Times are Unix seconds.
"""

from __future__ import annotations

import sqlite3

from dispatcher.model.errors import ConfigurationError

_FIRST = """
CREATE TABLE log (
    shard TEXT NOT NULL, position INTEGER NOT NULL, entry BLOB NOT NULL, written_at REAL NOT NULL,
    PRIMARY KEY (shard, position)) WITHOUT ROWID;
CREATE TABLE snapshots (
    shard TEXT NOT NULL, position INTEGER NOT NULL, nonce TEXT NOT NULL, state BLOB NOT NULL, checksum TEXT NOT NULL,
    written_at REAL NOT NULL, PRIMARY KEY (shard, position, nonce));
CREATE TABLE mailboxes (
    process TEXT NOT NULL, position INTEGER NOT NULL, news BLOB NOT NULL, expires_at REAL NOT NULL,
    PRIMARY KEY (process, position, news));
CREATE INDEX mailboxes_by_expiry ON mailboxes (expires_at);
CREATE TABLE invocations (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, key TEXT NOT NULL, expires_at REAL NOT NULL,
    record TEXT NOT NULL, body TEXT, answer TEXT);
CREATE UNIQUE INDEX invocations_by_key ON invocations (tenant, key) WHERE key <> '';
CREATE INDEX invocations_by_expiry ON invocations (expires_at);
CREATE TABLE usage (
    hour INTEGER NOT NULL, tenant TEXT NOT NULL, app TEXT NOT NULL, shard TEXT NOT NULL, position INTEGER NOT NULL,
    record TEXT NOT NULL, PRIMARY KEY (hour, tenant, app, shard));
CREATE INDEX usage_by_tenant ON usage (tenant, hour);
CREATE TABLE tenant_rows (
    shard TEXT NOT NULL, tenant TEXT NOT NULL, position INTEGER NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (shard, tenant));
CREATE TABLE tenants (name TEXT PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL);
CREATE TABLE keys (prefix TEXT PRIMARY KEY, tenant TEXT NOT NULL, record TEXT NOT NULL);
CREATE INDEX keys_by_tenant ON keys (tenant);
"""
_RESPONSES = """
CREATE TABLE responses (
    tenant TEXT NOT NULL, id TEXT NOT NULL, expires_at REAL NOT NULL, content BLOB NOT NULL, PRIMARY KEY (tenant, id));
CREATE INDEX responses_by_expiry ON responses (expires_at);
CREATE TABLE response_bytes (
    tenant TEXT NOT NULL, hour INTEGER NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (tenant, hour)) WITHOUT ROWID;
CREATE INDEX response_bytes_by_hour ON response_bytes (hour);
"""
_BATCHES = """
CREATE TABLE files (
    tenant TEXT NOT NULL, id TEXT NOT NULL, expires_at REAL NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (tenant, id)) WITHOUT ROWID;
CREATE INDEX files_by_expiry ON files (expires_at);
CREATE TABLE batches (
    tenant TEXT NOT NULL, id TEXT NOT NULL, pool TEXT NOT NULL, is_open INTEGER NOT NULL, version INTEGER NOT NULL,
    expires_at REAL NOT NULL, record TEXT NOT NULL, PRIMARY KEY (tenant, id)) WITHOUT ROWID;
CREATE INDEX batches_by_expiry ON batches (expires_at);
CREATE INDEX open_batches ON batches (pool, id) WHERE is_open;
"""
_AUDIT = """
CREATE TABLE audit (month TEXT NOT NULL, at TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (month, at)) WITHOUT ROWID;
"""
_STEPS = (_FIRST, _RESPONSES, _BATCHES, _AUDIT)
"""What each layout adds to the one before it."""
LAYOUT = len(_STEPS)


def prepare(connection: sqlite3.Connection) -> None:
    """Create the missing tables, within the caller's transaction. Raises ConfigurationError for a newer file."""
    (layout,) = connection.execute("PRAGMA user_version").fetchone()
    if layout > LAYOUT:
        raise ConfigurationError(
            f"the store's file has layout {layout}, this version knows {LAYOUT}: use the newer headgate that wrote it"
        )
    if layout < LAYOUT:
        for statement in filter(str.strip, ";".join(_STEPS[layout:]).split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {LAYOUT}")
