"""One SQLite file for all processes of one machine. A process has a thread for writes, one for reads and one to sync.

The file is in WAL mode.
- If a process dies (kill -9), every acknowledged write survives, because a commit is in the operating system's memory.
- If the machine dies or loses power, every write that was acknowledged as `synced` survives, and every other write that
  is older than SYNC_AFTER_S. If a write is lost, all writes after it are lost too.

A synced write takes as long as the disk's sync, 0.3 to 4 ms on the measured machine; any other write takes 0.05 ms.
Invocations and their answers are synced at once, because a caller relies on them. So are the writes of administrators.
Entries of the log are not: if the machine dies, all plain requests die with its engines, and the log loses at most the
last tenth of a second. All this is not true on a disk that acknowledges a sync before it has written. WAL does not work
on a network file system.

A read returns every write that was acknowledged before the read began, also the writes of other processes.

`user_version` is the number of the file's layout. A file with a newer layout is refused, and a file with an older one
is migrated before it is opened (migration.py). Entries of the log are opaque. `items` is the table of
dispatcher/stores/table.py, and `nonces` counts the processes that named a write. Times are Unix seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from dispatcher.model.errors import ConfigurationError, StoreUnavailable

BUSY_S = 5.0
"""A write waits this long for the writes of other processes."""
QUEUED_MAX_S = 5.0
"""A request that has waited longer than this for a thread of its process is refused.

Otherwise, while another process holds the lock, all waiting requests would wait BUSY_S for it, one after another.
"""
PENDING_MAX = 1024
"""The most requests that wait for a thread. More are refused at once, so that a slow store causes no long queue."""

T = TypeVar("T")
_Apply = Callable[[sqlite3.Connection], T]


class Database:
    def __init__(self, path: str | Path) -> None:
        """Open the file, or create it. Raises ConfigurationError."""
        self._path = Path(path)
        try:
            self._writer, self._reader = self._connect(), self._connect()
            _transact(self._writer, _prepare)
            self._inode = self._path.stat().st_ino
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(f"the store's file {self._path} cannot be opened: {error}") from None
        self._writes, self._reads = ThreadPoolExecutor(1, "headgate-write"), ThreadPoolExecutor(1, "headgate-read")
        self._sync = LateSync(Path(f"{self._path}-wal"))
        self._synchronous = ""
        self._pending = 0

    async def write(self, apply: _Apply[T], *, synced: bool) -> T:
        """Run `apply` in one transaction and return its result. Raises StoreUnavailable.

        `synced`: return when this write and all writes before it are on the disk.
        """
        return await self._run(self._writes, lambda: self._write(apply, synced))

    async def read(self, apply: _Apply[T]) -> T:
        """Run `apply`, which only reads, on one state of the file. Raises StoreUnavailable."""
        return await self._run(self._reads, lambda: self._read(apply))

    async def close(self) -> None:
        """Finish the running requests and close the file."""
        await asyncio.to_thread(self._close)

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._pending >= PENDING_MAX:
            raise StoreUnavailable("Too many requests are waiting for the store.")
        until = time.monotonic() + QUEUED_MAX_S
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        try:
            job = threads.submit(_in_time, work, until)
        except RuntimeError:
            raise StoreUnavailable("The store is closed.") from None
        self._pending += 1
        # A future of its own instead of run_in_executor: half the cost, and a thread goes on when its caller is
        # cancelled.
        job.add_done_callback(partial(_report, loop, partial(self._settle, result)))
        return await result

    def _settle(self, result: asyncio.Future[T], job: Future[T]) -> None:
        """Take over the job's outcome, unless its caller is gone."""
        self._pending -= 1
        if result.done():
            return
        error = job.exception()
        if error is None:
            result.set_result(job.result())
        else:
            result.set_exception(error)

    def _write(self, apply: _Apply[T], synced: bool) -> T:
        try:
            self._check_file()
            self._set_synchronous("FULL" if synced else "NORMAL")
            result = _transact(self._writer, apply)
            if not synced:
                self._sync.request()
            return result
        except (sqlite3.Error, OSError) as error:
            raise _unavailable(error) from error

    def _set_synchronous(self, mode: str) -> None:
        """Tell SQLite how to write, unless the last write was of this mode. It takes a tenth of a log entry's time."""
        if self._synchronous != mode:
            self._writer.execute(f"PRAGMA synchronous = {mode}")
            self._synchronous = mode

    def _read(self, apply: _Apply[T]) -> T:
        try:
            self._check_file()
            return apply(self._reader)
        except (sqlite3.Error, OSError) as error:
            raise _unavailable(error) from error

    def _check_file(self) -> None:
        """Raise OSError if the file was deleted or replaced: other processes would not see this process's writes."""
        if self._path.stat().st_ino != self._inode:
            raise OSError("the file was replaced")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        _use_wal(connection)
        return connection

    def _close(self) -> None:
        self._writes.shutdown(wait=True)
        self._reads.shutdown(wait=True)
        self._sync.close()
        self._writer.close()
        self._reader.close()


def _report(loop: asyncio.AbstractEventLoop, settle: Callable[[Future[T]], None], job: Future[T]) -> None:
    with suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(settle, job)


def _in_time(work: Callable[[], T], until: float) -> T:
    """Do the work, or raise StoreUnavailable if it is too late to begin."""
    if time.monotonic() > until:
        raise StoreUnavailable("The store is too slow.")
    return work()


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL. Retry for BUSY_S, because SQLite does not wait here for a process that opens the file too."""
    until = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def _transact(connection: sqlite3.Connection, apply: _Apply[T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = apply(connection)
        connection.execute("COMMIT")
        return result
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _unavailable(error: Exception) -> StoreUnavailable:
    logging.getLogger("headgate.store").error("the store's file: %s", error)
    return StoreUnavailable(f"The store's file cannot be used: {type(error).__name__}.")


SYNC_AFTER_S = 0.1


class LateSync:
    """Syncs a file within about SYNC_AFTER_S of each request. Its thread runs only while there is something to sync."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def request(self) -> None:
        """Sync all writes so far within about SYNC_AFTER_S."""
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._run, name="headgate-sync", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Finish the requested syncs."""
        self._closing.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        self._closing.wait(SYNC_AFTER_S)
        with self._lock:
            self._thread = None  # later writes request another sync
        try:
            sync(self._path)
        except OSError as error:
            logging.getLogger("headgate.store").error("the store's file is not synced: %s", error)


def sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


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


def _prepare(connection: sqlite3.Connection) -> None:
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
