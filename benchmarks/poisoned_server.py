"""A scripted OpenAI-compatible server for benchmarks/neighbour.py: the last message chooses how a request ends.

`S:plain` is answered in ANSWER_S, streamed; every other name in POISONS goes wrong in its own way, at once. It counts
the requests of each name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

ANSWER_S = 0.2
TOKENS = 4
MODEL = "m"
OVERLOADS = {"429": b"Retry-After: 7\r\n", "503": b""}
FAULTS: dict[str, Any] = {
    "error": {"error": {"message": "boom", "code": 500}},
    "not an object": [1],
    "broken off": None,
    "index": {"choices": [{"index": 7, "delta": {"content": "x"}}]},
}
POISONS = ("500", *OVERLOADS, *FAULTS)


class PoisonedServer:
    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with server:
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1")
                lines = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(lines.get("content-length", 0)))
                if head.startswith("GET"):
                    _whole(writer, 200, {"data": [{"id": MODEL, "object": "model", "max_model_len": 4096}]})
                elif not await self._answer(writer, json.loads(body)["messages"][-1]["content"]):
                    return
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the worker closed the connection
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, text: str) -> bool:
        """Answer a chat. Return False if the connection must end."""
        name = text.removeprefix("S:")
        self.seen[name] += 1
        if name in OVERLOADS:
            _whole(writer, int(name), {"error": {"message": "slow down"}}, OVERLOADS[name])
            return True
        if name == "500":
            _whole(writer, 500, {"error": {"message": "boom"}})
            return True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if name in FAULTS:
            if FAULTS[name] is None:
                _piece(writer, _chunk("Hel"))
                return False
            _piece(writer, FAULTS[name])
        else:
            for _ in range(TOKENS):
                await asyncio.sleep(ANSWER_S / TOKENS)
                _piece(writer, _chunk("word "))
            _piece(writer, _chunk("", "stop"))
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        return True


def _chunk(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}


def _piece(writer: asyncio.StreamWriter, value: Any) -> None:
    data = b"data: " + json.dumps(value).encode() + b"\n\n"
    writer.write(b"%x\r\n" % len(data) + data + b"\r\n")


def _whole(writer: asyncio.StreamWriter, status: int, value: Any, headers: bytes = b"") -> None:
    data = json.dumps(value).encode()
    head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (status, len(data))
    writer.write(head + headers + b"\r\n" + data)
