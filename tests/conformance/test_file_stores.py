"""Stores for the bytes of files: a folder, and S3 behind moto, with an unmodified client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from dispatcher.files.folder import FolderFiles
from dispatcher.files.s3 import PART_BYTES, S3Files
from dispatcher.model.batches import FileStore, UnknownFile
from dispatcher.model.errors import StoreUnavailable
from dispatcher.processes.bootstrap import RealClock
from tests.conformance.store_backends import moto_server

BUCKET = "headgate-files"


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """An unmodified client."""
    keys: dict[str, Any] = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
    with moto_server() as url:
        yield boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys)


@pytest.fixture(params=["folder", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore:
    if request.param == "folder":
        return FolderFiles(tmp_path / "files", RealClock())
    client = request.getfixturevalue("s3")
    client.create_bucket(Bucket=BUCKET)
    return S3Files(client, BUCKET, "files/")


async def parts_of(*parts: bytes) -> AsyncIterator[bytes]:
    for each in parts:
        yield each


async def content(files: FileStore, name: str, start: int = 0) -> bytes:
    return b"".join([each async for each in files.read(name, start)])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*/*"))


@pytest.mark.parametrize("size", [0, 1, 300_000, PART_BYTES, 2 * PART_BYTES + 17])
async def test_a_blob_is_read_as_it_was_written(files: FileStore, size: int) -> None:
    data = (b"0123456789abcde\n" * (size // 16 + 1))[:size]
    pieces = [data[at : at + 1_000_000] for at in range(0, size, 1_000_000)]
    assert await files.write("a/file-1", parts_of(*pieces)) == size
    assert await content(files, "a/file-1") == data
    for start in (size // 2, max(0, size - 1), size, size + 5):
        assert await content(files, "a/file-1", start) == data[start:]


async def test_a_blob_is_replaced_as_a_whole(files: FileStore) -> None:
    await files.write("a/f", parts_of(b"old content"))
    await files.write("a/f", parts_of(b"new"))
    assert await content(files, "a/f") == b"new"


@pytest.mark.parametrize("size", [10, PART_BYTES])
async def test_a_write_that_fails_stores_nothing(files: FileStore, size: int) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"x" * size
        raise RuntimeError

    await files.write("a/f", parts_of(b"old"))
    with pytest.raises(RuntimeError):
        await files.write("a/f", failing())
    assert await content(files, "a/f") == b"old"
    with pytest.raises(RuntimeError):
        await files.write("a/g", failing())
    with pytest.raises(UnknownFile):
        await content(files, "a/g")


async def test_a_deleted_blob_is_gone(files: FileStore) -> None:
    await files.write("a/f", parts_of(b"x"))
    await files.delete("a/f")
    await files.delete("a/f")
    with pytest.raises(UnknownFile):
        await content(files, "a/f")


async def test_a_name_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    files = FolderFiles(tmp_path / "files", RealClock())
    for name in ("../f", "a/../../f", "a/..", "./f", "/etc/passwd", "f", "", "a/b/c", "a/f\n"):
        with pytest.raises(ValueError, match="not a name"):
            await files.write(name, parts_of(b"x"))


async def test_a_folder_deletes_what_is_old_and_a_part_that_a_dead_process_left(tmp_path: Path) -> None:
    class LaterClock(RealClock):
        later_s = 0.0

        def now(self) -> float:
            return super().now() + self.later_s

    clock = LaterClock()
    files = FolderFiles(tmp_path, clock)
    await files.write("a/f", parts_of(b"x"))
    (tmp_path / "a" / "g.1234.part").write_bytes(b"half")
    await files.delete_older(100.0)
    assert names(tmp_path) == ["f", "g.1234.part"]
    clock.later_s = 101.0
    await files.delete_older(100.0)
    assert not names(tmp_path)


async def test_a_folder_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("a file, not a folder")
    files = FolderFiles(tmp_path / "files", RealClock())
    with pytest.raises(StoreUnavailable, match="folder of files"):
        await files.write("a/f", parts_of(b"x"))


async def test_a_bucket_that_does_not_exist_is_reported(s3: Any) -> None:
    with pytest.raises(StoreUnavailable, match="NoSuchBucket"):
        await S3Files(s3, "no-such-bucket").write("a/f", parts_of(b"x"))
