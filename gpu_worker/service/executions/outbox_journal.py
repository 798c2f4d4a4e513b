"""Keeps the outbox's unacknowledged commands on disk, so that they survive the death of the process.

Each process writes a file of its own and holds a lock on it, which the kernel releases when the process dies. The next
worker that starts with the same folder takes over every file that is not locked. It may recover a command that was
already acknowledged. The log recognizes this repetition by the attempt.

A record is written at once, so it survives kill -9 of the process. The file is not synced at once. A healthy gate
acknowledges a command in some 10 ms, which is about the time of a sync. If the machine dies in that time, the gate
returns the attempt when the worker's lease ends. After the first failed try of a command the file is synced
(outbox.py), so no command is lost if the machine dies while the gate is unavailable.

Errors of the disk are logged, and the commands stay in memory. The next write tries to write all of them to a new file.
The file may hold answers of durable calls, so only its owner can read it. It is truncated when no command is pending.

One record is one line, `crc32 json`: a command with a number, or the number of an acknowledged command. A damaged
record is skipped and counted. A last line without a line feed is an unfinished write, and is ignored.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dispatcher.model.commands import End, Return

AttemptReport = End | Return
_KINDS: dict[str, type[End] | type[Return]] = {"End": End, "Return": Return}


def command_record(number: int, command: AttemptReport) -> bytes:
    return _record({"put": number, "kind": type(command).__name__, **command._asdict()})


def acknowledged_record(number: int) -> bytes:
    return _record({"done": number})


def unacknowledged(raw: bytes) -> tuple[list[AttemptReport], int]:
    """Return the commands that are not acknowledged, oldest first, and the number of damaged records."""
    pending: dict[int, AttemptReport] = {}
    damaged = 0
    for fields in _records(raw):
        try:
            if "done" in fields:
                pending.pop(fields["done"], None)
            else:
                pending[fields["put"]] = _command(fields)
        except (KeyError, TypeError):
            damaged += 1
    return list(pending.values()), damaged


def _record(fields: dict[str, Any]) -> bytes:
    raw = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(raw), raw)


def _records(raw: bytes) -> Iterator[dict[str, Any]]:
    """Yield each record's fields, and an empty dict for a damaged record."""
    *lines, _ = raw.split(b"\n")
    for line in lines:
        crc, _, text = line.partition(b" ")
        try:
            fields = json.loads(text) if int(crc, 16) == zlib.crc32(text) else {}
        except ValueError:
            fields = {}
        yield fields if isinstance(fields, dict) else {}


def _command(fields: dict[str, Any]) -> AttemptReport:
    """Return the recorded command. Fields of a newer version are ignored. Raises KeyError, TypeError."""
    kind = _KINDS[fields["kind"]]
    return kind(**{name: fields[name] for name in kind._fields if name in fields})


logger = logging.getLogger("headgate.outbox")

_SUFFIX = ".outbox"
_FILES_MAX = 1000
"""The most files of one worker in the folder."""
DEAD_RECORDS_MAX = 1000
"""With n pending commands, the file is rewritten when it has 2 n + DEAD_RECORDS_MAX records."""


@dataclass(eq=False)
class Journal:
    """The file of one process. `name` is the worker's name, with which the file's name begins."""

    folder: Path
    name: str
    _fd: int | None = None
    _path: Path | None = None
    _records: int = 0
    _pending: dict[int, bytes] = field(default_factory=dict)
    """The records of the commands that are not acknowledged, by number."""
    _last_number: int = 0
    _failure: str = ""
    """The last error of the disk; empty if the file has all pending commands."""
    _unsynced: bool = False

    def recover(self) -> dict[int, AttemptReport]:
        """Take over the files of dead processes. Return their unacknowledged commands, by number."""
        found: dict[int, AttemptReport] = {}
        taken: list[tuple[Path, int]] = []
        for path in self._files():
            if (locked := _lock(path)) is None:
                continue
            if (commands := _read(path, locked)) is None:
                os.close(locked)
                continue
            taken.append((path, locked))
            found |= {self._number(): command for command in commands}
        self._pending |= {number: command_record(number, command) for number, command in found.items()}
        if self._rewrite():
            for path, _ in taken:
                path.unlink(missing_ok=True)
        for _, locked in taken:
            os.close(locked)
        return found

    def put(self, command: AttemptReport) -> int:
        """Write the command and return its number."""
        number = self._number()
        self._pending[number] = command_record(number, command)
        self._append(self._pending[number])
        return number

    def acknowledge(self, number: int) -> None:
        """Record that the command needs no further repetition."""
        if self._pending.pop(number, None) is None:
            return
        if self._records >= 2 * len(self._pending) + DEAD_RECORDS_MAX:
            self._rewrite()
        elif self._pending:
            self._append(acknowledged_record(number))
        else:
            self._empty()

    async def sync(self) -> None:
        """Sync the file to the disk."""
        if self._fd is None or not self._unsynced:
            return
        self._unsynced = False
        try:
            copy = os.dup(self._fd)  # the file may be replaced meanwhile
            try:
                await asyncio.to_thread(os.fsync, copy)
            finally:
                os.close(copy)
        except OSError as error:
            self._fail(error)
        except RuntimeError as error:  # no thread can be started
            self._fail(OSError(errno.EAGAIN, str(error)))

    def close(self) -> None:
        """Release the file. It is deleted if nothing is pending."""
        if self._fd is None or self._path is None:
            return
        if not self._pending:
            self._path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = None

    def _number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _files(self) -> list[Path]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return sorted(self.folder.glob(f"*{_SUFFIX}"))
        except OSError as error:
            self._fail(error)
            return []

    def _append(self, record: bytes) -> None:
        """Write a record. If an earlier write failed, write all pending commands to a new file."""
        if self._fd is None or self._failure:
            self._rewrite()
            return
        try:
            _write(self._fd, record)
        except OSError as error:
            self._fail(error)
            return
        self._records += 1
        self._unsynced = True

    def _empty(self) -> None:
        if self._fd is None:
            return
        try:
            os.ftruncate(self._fd, 0)
            self._records = 0
        except OSError as error:
            self._fail(error)

    def _rewrite(self) -> bool:
        """Write all pending commands to a new, synced file and delete the old one. Return False if that fails."""
        try:
            path, fd = self._new_file()
            try:
                _write(fd, b"".join(self._pending.values()))
                os.fsync(fd)
            except OSError:
                os.close(fd)
                path.unlink(missing_ok=True)
                raise
        except OSError as error:
            self._fail(error)
            return False
        if self._fd is not None and self._path is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
        self._fd, self._path, self._records, self._unsynced = fd, path, len(self._pending), False
        if self._failure:
            logger.warning("the outbox is on disk again")
            self._failure = ""
        return True

    def _new_file(self) -> tuple[Path, int]:
        for number in range(_FILES_MAX):
            path = self.folder / f"{self.name}-{number}{_SUFFIX}"
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            except FileExistsError:
                continue
            if not _try_lock(fd):
                os.close(fd)
                continue
            _sync_folder(self.folder)
            return path, fd
        raise OSError(0, f"it has {_FILES_MAX} files of this worker")

    def _fail(self, error: OSError) -> None:
        """Log the error, unless it is the same as the last one."""
        reason = error.strerror or str(error)
        if reason != self._failure:
            text = "the outbox folder %s cannot be used: %s; ends stay in memory and are lost if this process dies"
            logger.error(text, self.folder, reason)
        self._failure = reason


def _lock(path: Path) -> int | None:
    """Open and lock the file. Return None if a living process holds it, or if it is gone or cannot be opened."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.error("the outbox file %s cannot be opened: %s; it is left as it is", path, error.strerror)
        return None
    try:
        if _try_lock(fd):
            return fd
    except OSError as error:
        logger.error("the outbox file %s cannot be locked: %s; it is left as it is", path, error.strerror)
    os.close(fd)
    return None


def _try_lock(fd: int) -> bool:
    """Lock the file. Return False if another process holds the lock, or has just taken the file over and deleted it.

    Raises OSError.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(fd).st_nlink > 0


def _read(path: Path, fd: int) -> list[AttemptReport] | None:
    """Return the unacknowledged commands of a file, or None if it cannot be read."""
    parts = []
    try:
        while part := os.read(fd, 1 << 20):
            parts.append(part)
    except OSError as error:
        logger.error("the outbox file %s cannot be read: %s; it is left as it is", path, error.strerror)
        return None
    commands, damaged = unacknowledged(b"".join(parts))
    if damaged:
        logger.warning("%d damaged records of the outbox file %s are skipped", damaged, path)
    return commands


def _write(fd: int, record: bytes) -> None:
    rest = memoryview(record)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
