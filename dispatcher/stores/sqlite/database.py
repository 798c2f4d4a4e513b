"""One SQLite file, used by several processes of one machine: a thread for writes and a thread for reads.

Durability. The file is in WAL mode with `synchronous=FULL`: a commit returns after its pages are on the disk, so that
an acknowledged write survives the death of the process (kill -9), of the machine and of its power. `NORMAL` would save
about 0.3 ms a commit here, but lose the newest writes, up to about half a minute of them, when the power fails; and an
answer that was promised would then never come. A disk that acknowledges before it wrote breaks this; a network file
system breaks WAL.

A reader sees every write that was acknowledged before the read began, also those of other processes.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from dispatcher.model.errors import ConfigurationError, StoreUnavailable
from dispatcher.stores.sqlite.schema import prepare

BUSY_S = 5.0
"""A write waits this long for the writes of other processes."""
PENDING_MAX = 1024
"""Requests waiting for a thread beyond this are refused at once: a slow store must not gather a crowd."""

T = TypeVar("T")
Apply = Callable[[sqlite3.Connection], T]


class Database:
    def __init__(self, path: str | Path) -> None:
        """Open the file, or create it. Raises ConfigurationError."""
        self._path = Path(path)
        try:
            self._writer, self._reader = self._connect(), self._connect()
            _transact(self._writer, prepare)
            self._inode = self._path.stat().st_ino
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(f"the store's file {self._path} cannot be opened: {error}") from None
        self._writes, self._reads = ThreadPoolExecutor(1, "headgate-write"), ThreadPoolExecutor(1, "headgate-read")
        self._pending = 0

    async def write(self, apply: Apply[T]) -> T:
        """Run `apply` in one transaction and return its result once it is on the disk. Raises StoreUnavailable."""
        return await self._run(self._writes, lambda: self._write(apply))

    async def read(self, apply: Apply[T]) -> T:
        """Run `apply`, which only reads, on one state of the file. Raises StoreUnavailable."""
        return await self._run(self._reads, lambda: self._read(apply))

    async def close(self) -> None:
        """Finish what is under way and close the file."""
        await asyncio.to_thread(self._close)

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._pending >= PENDING_MAX:
            raise StoreUnavailable("Too many requests are waiting for the store.")
        try:
            future = asyncio.get_running_loop().run_in_executor(threads, work)
        except RuntimeError:
            raise StoreUnavailable("The store is closed.") from None
        self._pending += 1
        future.add_done_callback(self._done)
        return await asyncio.shield(future)

    def _done(self, future: asyncio.Future[T]) -> None:
        self._pending -= 1
        if not future.cancelled():
            future.exception()  # its caller may be gone

    def _write(self, apply: Apply[T]) -> T:
        try:
            self._check_file()
            return _transact(self._writer, apply)
        except (sqlite3.Error, OSError) as error:
            raise _unavailable(error) from error

    def _read(self, apply: Apply[T]) -> T:
        try:
            self._check_file()
            return apply(self._reader)
        except (sqlite3.Error, OSError) as error:
            raise _unavailable(error) from error

    def _check_file(self) -> None:
        """Raises OSError if the file was deleted or replaced: other processes would not see what this one writes."""
        if self._path.stat().st_ino != self._inode:
            raise OSError("the file was replaced")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def _close(self) -> None:
        for threads, connection in ((self._writes, self._writer), (self._reads, self._reader)):
            threads.shutdown(wait=True)
            connection.close()


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL. Processes that open a new file at the same time exclude each other, and SQLite does not wait."""
    until = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def _transact(connection: sqlite3.Connection, apply: Apply[T]) -> T:
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
