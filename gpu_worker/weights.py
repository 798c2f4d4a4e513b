"""`python -m gpu_worker.weights s3://BUCKET/PREFIX/ FOLDER …` copies a model's files to a local disk, and those of its
adapters, each to a folder of its own.

Large files come in parallel ranges. A file that is already there, complete and unchanged in S3, is not copied again: so
a copy that was interrupted goes on with the next file, and a second worker of the same host copies nothing. A file
appears under its name only when it is complete. Exit codes: 0 the folder has exactly the model's files; 2 it could not
be copied, with one line on standard error.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

RECORD, LOCK, _PARTIAL = ".headgate-weights.json", ".headgate-weights.lock", ".partial"
_TRANSFER = TransferConfig(multipart_chunksize=64 * 1024 * 1024, max_concurrency=16)
_SPARE_BYTES = 1 << 30
"""Stays free on the disk, for the engine's compile cache."""


class CopyFailed(Exception):
    """The model cannot be copied. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """An object of the model. `path`: within the folder."""

    key: str
    path: str
    size: int
    etag: str


def copy(client: S3Client, source: str, folder: Path) -> int:
    """Make the folder have exactly the files below `source`. Return how many were copied. Raises CopyFailed."""
    bucket, prefix = _parse_source(source)
    folder.mkdir(parents=True, exist_ok=True)
    with _lock_folder(folder):
        wanted = _list_objects(client, bucket, prefix)
        known = _record(folder)
        missing = [each for each in wanted if not _is_there(folder, each, known)]
        _remove_others(folder, {each.path for each in wanted})
        _check_space(folder, missing)
        for each in missing:
            _copy_one(client, bucket, each, folder)
            known[each.path] = each.etag
            _write_record(folder, {path: etag for path, etag in known.items() if path in {one.path for one in wanted}})
    return len(missing)


def _parse_source(source: str) -> tuple[str, str]:
    scheme, _, rest = source.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise CopyFailed(f"{source[:80]!r} is no place in S3: use s3://BUCKET/PREFIX/")
    return bucket, prefix if not prefix or prefix.endswith("/") else f"{prefix}/"


def _list_objects(client: S3Client, bucket: str, prefix: str) -> list[Source]:
    found = []
    try:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for each in page.get("Contents", []):
                path = each["Key"].removeprefix(prefix)
                if path and not path.endswith("/"):
                    found.append(Source(each["Key"], _safe(path), each["Size"], each["ETag"]))
    except (BotoCoreError, ClientError) as error:
        raise CopyFailed(f"s3://{bucket}/{prefix} cannot be listed: {error}") from None
    if not found:
        raise CopyFailed(f"there is no object below s3://{bucket}/{prefix}: check the model's address")
    return found


def _safe(path: str) -> str:
    """Return the path if it stays within the folder and is none of our own files."""
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or path in (RECORD, LOCK) or path.endswith(_PARTIAL):
        raise CopyFailed(f"the object {path[:80]!r} has a name that cannot be a file of a model")
    return path


def _record(folder: Path) -> dict[str, str]:
    """Return the ETags of the files that were copied completely, by path; nothing if the record cannot be read."""
    try:
        known = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _write_record(folder: Path, known: dict[str, str]) -> None:
    unfinished = folder / f"{RECORD}{_PARTIAL}"
    unfinished.write_text(json.dumps(known), encoding="utf-8")
    unfinished.replace(folder / RECORD)


def _is_there(folder: Path, source: Source, known: dict[str, str]) -> bool:
    path = folder / source.path
    return known.get(source.path) == source.etag and path.is_file() and path.stat().st_size == source.size


def _remove_others(folder: Path, wanted: set[str]) -> None:
    """Remove the files that are not the model's, such as those of an older version."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.relative_to(folder).as_posix() not in wanted | {RECORD, LOCK}:
            path.unlink()


def _check_space(folder: Path, missing: Sequence[Source]) -> None:
    """Raises CopyFailed if the disk cannot hold what is missing. A file that is replaced does not count as free."""
    needed = sum(each.size for each in missing) + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if missing and free < needed:
        raise CopyFailed(
            f"{folder} has {free / 1e9:.1f} GB free, and the model needs {needed / 1e9:.1f} GB more: use an instance "
            "type with a larger disk"
        )


def _copy_one(client: S3Client, bucket: str, source: Source, folder: Path) -> None:
    target = folder / source.path
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}{_PARTIAL}")
    sys.stderr.write(f"copying {source.path} ({source.size / 1e6:,.0f} MB)\n")
    try:
        client.download_file(bucket, source.key, str(partial), Config=_TRANSFER)
    except (BotoCoreError, ClientError, OSError) as error:
        raise CopyFailed(f"s3://{bucket}/{source.key} cannot be copied: {error}") from None
    if partial.stat().st_size != source.size:
        raise CopyFailed(f"s3://{bucket}/{source.key} changed while it was copied: start again")
    partial.replace(target)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Let only one process at a time copy into the folder; another one waits."""
    with (folder / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_worker.weights", description="Copy a model from S3.")
    parser.add_argument("source", help="s3://BUCKET/PREFIX/ of the model's files")
    parser.add_argument("folder", help="the folder that will have exactly these files")
    parser.add_argument("others", nargs="*", help="the sources and folders of its adapters, in pairs")
    options = parser.parse_args(argv)
    if len(options.others) % 2:
        parser.error("each source needs a folder")
    places = [options.source, options.folder, *options.others]
    try:
        for source, folder in zip(places[::2], places[1::2], strict=True):
            copied = copy(boto3.client("s3"), source, Path(folder))
            sys.stderr.write(f"{folder}: {copied} files copied\n")
    except (CopyFailed, BotoCoreError, OSError) as error:
        sys.stderr.write(f"gpu_worker.weights: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
