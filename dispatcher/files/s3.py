"""Files in a bucket of S3. A blob above PART_BYTES is sent as a multipart upload, so memory holds one part of it.

A rule of the bucket deletes old blobs and unfinished uploads; the functions may not list the bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from dispatcher.model.batches import UnknownFile
from dispatcher.model.errors import StoreUnavailable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PART_BYTES = 8 * 1024 * 1024
"""S3 accepts parts of 5 MiB and more, and at most 10,000 of them."""
_READ_BYTES = 256 * 1024
_THREADS = 8


class S3Files:
    """dispatcher.model.batches.FileStore."""

    def __init__(self, client: S3Client, bucket: str, prefix: str = "") -> None:
        """`prefix`: begins the key of every blob, for example "files/"."""
        self._client, self._bucket, self._prefix = client, bucket, prefix
        self._threads = ThreadPoolExecutor(_THREADS, "headgate-s3")

    async def write(self, name: str, parts: AsyncIterable[bytes]) -> int:
        upload: _Upload | None = None
        size, waiting = 0, bytearray()
        try:
            async for each in parts:
                size += len(each)
                waiting += each
                if len(waiting) >= PART_BYTES:
                    upload = upload or await self._begin_upload(name)
                    await upload.send(bytes(waiting))
                    waiting.clear()
            if upload is None:
                await self._call("put_object", name, Body=bytes(waiting))
            else:
                await upload.end(bytes(waiting))
        except BaseException:
            if upload is not None:
                await asyncio.shield(upload.abort())
            raise
        return size

    async def read(self, name: str, start: int = 0) -> AsyncGenerator[bytes, None]:
        try:
            reply = await self._call("get_object", name, Range=f"bytes={start}-")
        except _OutOfRange:
            return
        body = reply["Body"]
        try:
            while data := await self._run(partial(body.read, _READ_BYTES)):
                yield data
        finally:
            body.close()

    async def delete(self, name: str) -> None:
        await self._call("delete_object", name)

    async def delete_older(self, age_s: float) -> None:
        """Do nothing: the lifecycle rule of the bucket deletes old blobs."""

    async def _begin_upload(self, name: str) -> _Upload:
        begun = await self._call("create_multipart_upload", name)
        return _Upload(partial(self._call, name=name, UploadId=begun["UploadId"]))

    async def _call(self, operation: str, name: str, **arguments: Any) -> dict[str, Any]:
        key = f"{self._prefix}{name}"
        method = getattr(self._client, operation)
        found: dict[str, Any] = await self._run(partial(method, Bucket=self._bucket, Key=key, **arguments))
        return found

    async def _run(self, work: Callable[[], Any]) -> Any:
        """Run it in a thread. Raises UnknownFile, _OutOfRange, StoreUnavailable."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code == "NoSuchKey":
                raise UnknownFile("The content of this file does not exist any more.") from None
            if code == "InvalidRange":
                raise _OutOfRange from None
            raise StoreUnavailable(f"The bucket of files refused a request: {code}.") from error
        except (BotoCoreError, OSError) as error:
            raise StoreUnavailable(f"The bucket of files cannot be used: {type(error).__name__}.") from error


class _OutOfRange(Exception):
    """The first byte that is asked for is behind the end of the blob."""


class _Upload:
    """A multipart upload. `call`: as S3Files._call, with the names of blob and upload."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._parts: list[dict[str, Any]] = []

    async def send(self, data: bytes) -> None:
        number = len(self._parts) + 1
        sent = await self._call("upload_part", PartNumber=number, Body=data)
        self._parts.append({"ETag": sent["ETag"], "PartNumber": number})

    async def end(self, last: bytes) -> None:
        """Send the last part, which may be of any size, and make the blob visible."""
        if last:
            await self.send(last)
        await self._call("complete_multipart_upload", MultipartUpload={"Parts": self._parts})

    async def abort(self) -> None:
        await self._call("abort_multipart_upload")
