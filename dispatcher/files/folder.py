"""Files in a folder of this machine. A blob is written beside its place, synced, and then moved there."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from dispatcher.model.batches import UnknownFile
from dispatcher.model.errors import StoreUnavailable
from dispatcher.ports import Clock

_READ_BYTES = 256 * 1024
_PART = ".part"
"""The ending of a blob that is being written."""
_NAME = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")

T = TypeVar("T")


class FolderFiles:
    """dispatcher.model.batches.FileStore."""

    def __init__(self, folder: str | Path, clock: Clock) -> None:
        self._folder = Path(folder)
        self._clock = clock

    async def write(self, name: str, parts: AsyncIterable[bytes]) -> int:
        place = self._place(name)
        part = place.with_name(f"{place.name}.{secrets.token_hex(4)}{_PART}")
        file = await _run(lambda: _create(part))
        size = 0
        try:
            try:
                async for each in parts:
                    size += len(each)
                    await _run(lambda data=each: _write_all(file, data))  # type: ignore[misc]
                await _run(lambda: os.fsync(file))
            finally:
                os.close(file)
            await _run(lambda: part.replace(place))
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return size

    async def read(self, name: str, start: int = 0) -> AsyncGenerator[bytes, None]:
        place = self._place(name)
        try:
            file = await _run(lambda: os.open(place, os.O_RDONLY))
        except FileNotFoundError:
            raise UnknownFile("The content of this file does not exist any more.") from None
        try:
            while data := await _run(lambda at=start: os.pread(file, _READ_BYTES, at)):  # type: ignore[misc]
                start += len(data)
                yield data
        finally:
            os.close(file)

    async def delete(self, name: str) -> None:
        await _run(lambda: self._place(name).unlink(missing_ok=True))

    async def delete_older(self, age_s: float) -> None:
        until = self._clock.now() - age_s
        await _run(lambda: _delete_older(self._folder, until))

    def _place(self, name: str) -> Path:
        """Return the path of a blob. Raises ValueError for a name that could lead out of the folder."""
        if not _NAME.fullmatch(name) or any(part in (".", "..") for part in name.split("/")):
            raise ValueError(f"not a name of a blob: {name!r}")
        return self._folder / name


async def _run(work: Callable[[], T]) -> T:
    """Run it in a thread. Raises FileNotFoundError as it is, StoreUnavailable for any other failure of the disk."""
    try:
        return await asyncio.to_thread(work)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreUnavailable(f"The folder of files cannot be used: {error.strerror}.") from error


def _create(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _delete_older(folder: Path, until: float) -> None:
    for path in folder.glob("*/*"):
        with suppress(FileNotFoundError):  # another process deleted it meanwhile
            if path.stat().st_mtime < until:
                path.unlink()
