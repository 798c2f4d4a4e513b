"""Lambda's Runtime API, 2018-06-01, for one environment: HTTP/1.1 on a loopback port of its own.

Written on asyncio streams: its one client is AWS's own runtime, which always sends Content-Length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

HEAD_BYTES_MAX = 2 * 1024 * 1024
"""The runtime puts an X-Ray cause of up to 1 MB into a header."""
BODY_BYTES_MAX = 64 * 1024 * 1024
PREFIX = "/2018-06-01/runtime/"


@dataclass(frozen=True)
class RuntimeReply:
    """What the handler answered, or the error that it raised (`is_error`)."""

    body: bytes
    is_error: bool


@dataclass(frozen=True)
class _Event:
    payload: bytes
    headers: Mapping[str, str]
    reply: asyncio.Future[RuntimeReply]

    @property
    def request_id(self) -> str:
        return self.headers["Lambda-Runtime-Aws-Request-Id"]


class RuntimeApi:
    """Start it, hand its `address` to the runtime, then `wait_until_asked` and `hand_over` events, one at a time."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._events: asyncio.Queue[_Event | None] = asyncio.Queue()
        self._current: _Event | None = None
        self._asked = asyncio.Event()
        self._init_error: bytes | None = None
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    @property
    def address(self) -> str:
        """host:port. Raises RuntimeError before start."""
        if self._server is None:
            raise RuntimeError("not started")
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        serving = list(self._connections.items())
        for writer, _ in serving:
            self._events.put_nowait(None)  # whoever waits in `next` gives up
            writer.close()
        await asyncio.gather(*(task for _, task in serving))

    async def wait_until_asked(self) -> bytes | None:
        """Until the runtime has asked for work (None) or could not load the handler (the error's JSON)."""
        await self._asked.wait()
        return self._init_error

    async def hand_over(self, payload: bytes, headers: Mapping[str, str]) -> RuntimeReply:
        event = _Event(payload, headers, asyncio.get_running_loop().create_future())
        self._events.put_nowait(event)
        return await event.reply

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections[writer] = task
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # the runtime died, or is no runtime: the sandbox notices the former
        finally:
            self._connections.pop(writer, None)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request_line, *lines = head.split("\r\n")
        method, path, _ = request_line.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if not 0 <= length <= BODY_BYTES_MAX or "transfer-encoding" in headers:
            raise ValueError("a body that is no runtime's")
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(length)
        status, more, payload = await self._route(method, path, body)
        _write(writer, status, more, payload)
        await writer.drain()
        return headers.get("connection", "").lower() != "close"

    async def _route(self, method: str, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        match method, path.removeprefix(PREFIX).split("/"):
            case "GET", ["invocation", "next"]:
                self._asked.set()
                event = await self._events.get()
                if event is None:
                    raise ConnectionAbortedError
                self._current = event
                return 200, event.headers, event.payload
            case "POST", ["invocation", request_id, "response" | "error" as kind]:
                return self._finish(request_id, RuntimeReply(body, is_error=kind == "error"))
            case "POST", ["init", "error"]:
                self._init_error = body
                self._asked.set()
                return 202, {}, b'{"status":"OK"}'
        return 404, {}, b'{"errorType":"NotFound"}'

    def _finish(self, request_id: str, reply: RuntimeReply) -> tuple[int, Mapping[str, str], bytes]:
        event = self._current
        if event is None or event.request_id != request_id or event.reply.done():
            return 400, {}, b'{"errorType":"InvalidRequestID"}'
        event.reply.set_result(reply)
        self._current = None
        return 202, {}, b'{"status":"OK"}'


def _write(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str], body: bytes) -> None:
    lines = [f"HTTP/1.1 {status} -", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
