"""The real app behind the real server and event loop, in a thread, for tests that send raw bytes over real sockets.

`python -m tests.support.world.raw_front` is the same as a process: it prints its port and serves until its standard
input is closed.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
import uvloop
from starlette.types import Message, Receive, Scope, Send

from dispatcher.operations.limits import LimitSettings
from functions.http_api.app import make_app
from functions.http_api.protocol import BoundedHeads
from gpu_worker.__main__ import bound
from tests.support.asgi import Reply
from tests.support.hang_guard import HANG_S
from tests.support.world.memory_gate import Gate, make_gate

_HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")


@dataclass
class Seen:
    """One request as the app got it.

    `body`: what it has read so far; `whole`: it read the body's end; `gone`: it learned that the caller has gone.
    """

    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    client: int
    """The port of its connection."""
    body: bytes = b""
    whole: bool = False
    gone: bool = False


@dataclass
class RawFront:
    gate: Gate
    port: int
    loop: asyncio.AbstractEventLoop
    server: uvicorn.Server
    all_seen: list[Seen] = field(default_factory=list)
    client: int = 0
    """The port of the last connection."""

    @property
    def seen(self) -> list[Seen]:
        """What reached the app from the last connection."""
        return [each for each in self.all_seen if each.client == self.client]

    def connect(self) -> socket.socket:
        caller = socket.create_connection(("127.0.0.1", self.port), timeout=HANG_S)
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client = caller.getsockname()[1]
        return caller

    def exchange(self, *parts: bytes) -> list[Reply]:
        """Send the parts, and return the answers until the server closes the connection."""
        with self.connect() as caller:
            for part in parts:
                caller.sendall(part)
            return read_replies(caller)


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread or process does. Raises TimeoutError."""
    pause = threading.Event()
    for _ in range(int(HANG_S * 100)):
        if holds():
            return
        pause.wait(0.01)
    raise TimeoutError


def read_replies(caller: socket.socket) -> list[Reply]:
    received = b""
    while part := caller.recv(65536):
        received += part
    return parse_replies(received)


def parse_replies(received: bytes) -> list[Reply]:
    """Return the answers, of which each must be whole and have a length."""
    replies = []
    while received:
        head = _HEAD.match(received)
        assert head, received[:200]
        pairs = [line.split(": ", 1) for line in head[2].decode().splitlines()]
        reply = Reply(int(head[1]), {name.lower(): value for name, value in pairs})
        size = head.end() + int(reply.headers.get("content-length", "0"))
        reply.body, received = received[head.end() : size], received[size:]
        assert len(reply.body) == size - head.end(), "the answer is cut off"
        replies.append(reply)
    return replies


class _Recorder:
    """ASGI middleware around the app. It records every request."""

    def __init__(self, app: Any, seen: list[Seen]) -> None:
        self._app, self._seen = app, seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seen = Seen(scope["method"], scope["path"], scope["headers"], scope["client"][1])
        self._seen.append(seen)

        async def receive_recorded() -> Message:
            message = await receive()
            seen.body += message.get("body", b"")
            seen.gone = seen.gone or message["type"] == "http.disconnect"
            seen.whole = seen.whole or (message["type"] == "http.request" and not message.get("more_body", False))
            return message

        await self._app(scope, receive_recorded, send)


@contextmanager
def raw_front(limits: LimitSettings | None = None, idle_s: float = 60.0) -> Iterator[RawFront]:
    """Serve the app until the block ends. Nothing may be open then: neither a request nor a call."""
    protocol = type("Protocol", (BoundedHeads,), {"idle_s": idle_s})
    started = threading.Event()
    made: list[RawFront] = []

    async def serve() -> None:
        gate = await make_gate()
        if limits is not None:
            gate.process(limits)
        app, seen = make_app(lambda: gate.contexts[-1], lambda _: None), list[Seen]()
        config = uvicorn.Config(
            _Recorder(app, seen), http=protocol, ws="none", log_level="critical", timeout_keep_alive=600
        )
        server = uvicorn.Server(config)
        with bound("127.0.0.1", 0) as listening:
            listening.listen(1024)
            front = RawFront(gate, listening.getsockname()[1], asyncio.get_running_loop(), server, seen)
            serving = asyncio.ensure_future(server.serve(sockets=[listening]))
            while not server.started and not serving.done():  # uvicorn has no event
                await asyncio.sleep(0.001)
            made.append(front)
            started.set()
            await serving
        await gate.at_rest()

    failed: list[BaseException] = []

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(HANG_S)
    if made:
        try:
            yield made[0]
        finally:
            made[0].server.should_exit = True
            thread.join(HANG_S)
    if failed:
        raise failed[0]


def chat_body(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], **more}).encode()


if __name__ == "__main__":
    with raw_front() as serving:
        sys.stdout.write(f"{serving.port}\n")
        sys.stdout.flush()
        sys.stdin.read()
