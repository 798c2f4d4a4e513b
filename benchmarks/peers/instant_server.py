"""A worker that answers at once, for headgate and for gateways that forward to OpenAI's API.

    python -m benchmarks.peers.instant_server                     OpenAI's face only
    python -m benchmarks.peers.instant_server POSITION ENTRY      a headgate worker too

It prints one JSON line, `{"url"}`, and serves until it is killed. Both faces cost it about the same, so that a
measurement shows the gateway. POSITION and ENTRY (hexadecimal) are the last entry of a log, which names the leader: the
worker sends it heartbeats and the end of each attempt, as a worker does. It sends whole answers at once, and the tokens
of a stream PACE_S apart, so that a gateway reads each by itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from dispatcher.model.commands import End, Report
from dispatcher.model.worker_protocol import Finished, Started, Token
from dispatcher.ports import GateLink
from dispatcher.processes.bootstrap import NoLauncher, RealClock, make_links
from dispatcher.settings.config import load_config
from dispatcher.workers.wire import encode_event
from gpu_worker.__main__ import bound
from tests.support.world.memory_store import MemoryStore

MODEL, WORKER_ID, SLOTS = "instant", "w-instant", 64
PACE_S = 0.002
HEARTBEAT_S = 1.0
INPUT_TOKENS = 5

Answer = Callable[["Exchange", dict[str, Any]], Awaitable[None]]


class Exchange(asyncio.Protocol):
    """A connection that carries one request at a time. Its requests have a body with a known length."""

    def __init__(self, faces: dict[bytes, Answer]) -> None:
        self._faces = faces
        self._received = bytearray()
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = bytes(self._received).partition(b"\r\n\r\n")
        if not found:
            return
        size = int(head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0] or 0)
        if len(body) >= size:
            self._received.clear()
            answer = self._faces[head.split(b" ", 2)[1]]
            task = asyncio.ensure_future(answer(self, json.loads(body[:size])))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def whole(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % len(body) + body)

    async def stream(self, kind: bytes, pieces: list[bytes], pace_s: float) -> None:
        """Send the head and the pieces, each in a chunk and, with a pace, in a packet of its own."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % kind
        chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
        if not pace_s:
            self._transport.write(head + b"".join(chunks))
            return
        self._transport.write(head)
        for chunk in chunks:
            await asyncio.sleep(pace_s)
            self._transport.write(chunk)

    def end(self, last: bytes = b"") -> None:
        """End a stream, after a last piece if there is one."""
        self._transport.write((b"%x\r\n%b\r\n" % (len(last), last) if last else b"") + b"0\r\n\r\n")


def _chat(**more: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, **more}


async def serve_chat(exchange: Exchange, body: dict[str, Any]) -> None:
    """Answer POST /v1/chat/completions with as many tokens as max_tokens."""
    count = int(body["max_tokens"])
    usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": count, "total_tokens": INPUT_TOKENS + count}
    if not body.get("stream"):
        message = {"role": "assistant", "content": "x" * count}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        exchange.whole(json.dumps({**_chat(choices=[choice], usage=usage), "object": "chat.completion"}).encode())
        return
    choices = [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}] * count
    choices.append({"index": 0, "delta": {}, "finish_reason": "length"})
    events = [b"data: " + json.dumps(_chat(choices=[choice])).encode() + b"\n\n" for choice in choices]
    await exchange.stream(b"text/event-stream", events, PACE_S)
    exchange.end(b"data: [DONE]\n\n")


class HeadgateFace:
    def __init__(self, link: GateLink, url: str) -> None:
        self._link = link
        self._report = Report(WORKER_ID, url, MODEL, SLOTS, 200_000, 4.0, 0.0, False, 0.0, 0, ())
        self._live: set[str] = set()

    async def join(self) -> None:
        await self._link.do(self._report)

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._link.do(self._report._replace(live=tuple(self._live)))

    async def serve(self, exchange: Exchange, order: dict[str, Any]) -> None:
        """Answer POST /v1/execute. The last event follows when the log contains the end."""
        name, count = f"{order['invocation']}#{order['attempt']}", int(order["max_tokens"])
        self._live.add(name)
        tokens = [encode_event(Token("x", done)) for done in range(1, count + 1)]
        if not order["streamed"]:  # bundled, as a worker does it (gpu_worker/service/executions/execution.py)
            tokens[1:] = [encode_event(Token("x" * (count - 1), count))]
        pace_s = PACE_S if order["streamed"] else 0.0
        await exchange.stream(b"application/x-ndjson", [encode_event(Started(INPUT_TOKENS)), *tokens], pace_s)
        end = End(
            order["invocation"], order["attempt"], "done", INPUT_TOKENS, count, order["tenant"], first_token_s=1e-3
        )
        await self._link.do(end)
        self._live.discard(name)
        exchange.end(encode_event(Finished("length", INPUT_TOKENS, count)))


async def main(leader: list[str]) -> None:
    listening = bound("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    faces: dict[bytes, Answer] = {b"/v1/chat/completions": serve_chat}
    beating: asyncio.Task[None] | None = None
    if leader:
        config, clock = load_config(), RealClock()
        store = MemoryStore(clock)
        await store.log(config.pool).append(int(leader[0]), bytes.fromhex(leader[1]))
        face = HeadgateFace(make_links(config, store, clock, NoLauncher())[0], url)
        faces[b"/v1/execute"] = face.serve
        await face.join()
        beating = asyncio.create_task(face.beat())
    server = await asyncio.get_running_loop().create_server(lambda: Exchange(faces), sock=listening)
    sys.stdout.write(json.dumps({"url": url}) + "\n")
    sys.stdout.flush()
    await (beating or server.serve_forever())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
