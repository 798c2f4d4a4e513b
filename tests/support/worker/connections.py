"""Connections to workers without sockets, so that virtual time passes: to an application in memory, or scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from dispatcher.workers.http_connection import CLOSING_S, AnswerReceiver, BrokenConnection, Exchange, NotSent
from tests.support.asgi import App, Call


class Source(Protocol):
    """Where the bytes of an answer come from."""

    @property
    def status(self) -> int: ...

    async def begun(self) -> None:
        """Wait for the head of the answer. Raises NotSent, BrokenConnection."""
        ...

    async def read(self) -> bytes:
        """Return the next bytes of the body, or no bytes at its end. Raises BrokenConnection."""
        ...

    def close(self) -> None: ...


class MemoryExchange:
    """worker_connections.Exchange: a task that reads a source. A pause has no effect."""

    def __init__(self, source: Source, answer: AnswerReceiver) -> None:
        self._source, self._answer = source, answer
        self.is_released = False
        self.task = asyncio.ensure_future(self._run())

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def release(self) -> None:
        self.is_released = True
        asyncio.get_running_loop().call_later(CLOSING_S, self.task.cancel)

    def close(self) -> None:
        if not self.is_released:
            self.task.cancel()

    async def _run(self) -> None:
        answer = self._answer
        try:
            await self._source.begun()
            answer.on_head(self._source.status)
            while data := await self._source.read():
                if self.is_released:
                    return
                answer.on_body(data)
                await asyncio.sleep(0)
            if not self.is_released:
                answer.on_end()
        except (NotSent, BrokenConnection) as error:
            if not self.is_released:
                answer.on_broken(error)
        finally:
            self._source.close()


class AsgiConnections:
    """worker_connections.Connections to one ASGI application, whatever the address."""

    def __init__(self, app: App) -> None:
        self._app = app

    def post(self, url: str, headers: Mapping[str, str], body: bytes, answer: AnswerReceiver) -> Exchange:
        source = _AsgiAnswer(self._app, "POST", urlsplit(url).path, headers=headers, body=body)
        return MemoryExchange(source, answer)

    async def close(self) -> None: ...


class _AsgiAnswer(Call):
    """An answer under way. Closing it hangs up."""

    def __init__(self, app: App, method: str, path: str, *, headers: Mapping[str, str], body: bytes) -> None:
        self._began = asyncio.Event()
        self._parts: asyncio.Queue[bytes] = asyncio.Queue()
        super().__init__(app, method, path, headers=headers, body=body)
        self.task.add_done_callback(lambda _: self._end())

    @property
    def status(self) -> int:
        return self.reply.status

    async def begun(self) -> None:
        """Wait for the head of the answer. Raises Broken if the application ends without it."""
        await self._began.wait()
        self._raise_failure()
        if not self.status:
            raise BrokenConnection("no answer")

    async def read(self) -> bytes:
        part = await self._parts.get()
        if not part:
            self._parts.put_nowait(part)
            self._raise_failure()
        return part

    def close(self) -> None:
        self.hang_up()

    async def _send(self, message: dict[str, Any]) -> None:
        await super()._send(message)
        self._began.set()
        if message.get("body"):
            self._parts.put_nowait(message["body"])
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._parts.put_nowait(b"")

    def _raise_failure(self) -> None:
        if self.task.done():
            self.task.result()

    def _end(self) -> None:
        self._began.set()
        self._parts.put_nowait(b"")


@dataclass(frozen=True)
class Posted:
    url: str
    headers: Mapping[str, str]
    body: bytes


class ScriptedAnswer:
    """Sends `chunks`, and ends `then_s` seconds after the last of them."""

    def __init__(self, *chunks: bytes, status: int = 200, then_s: float = 0.0) -> None:
        self.status = status
        self.chunks = list(chunks)
        self.then_s = then_s
        self.was_read_to_end = False
        self.is_closed = False

    async def begun(self) -> None: ...

    async def read(self) -> bytes:
        if self.chunks:
            return self.chunks.pop(0)
        await asyncio.sleep(self.then_s)
        self.was_read_to_end = True
        return b""

    def close(self) -> None:
        self.is_closed = True


class ScriptedConnections:
    """worker_connections.Connections. `answer` makes the answer to an order, or raises NotSent or BrokenConnection."""

    def __init__(self, answer: Callable[[Posted], ScriptedAnswer]) -> None:
        self._answer = answer
        self.exchanges: list[MemoryExchange] = []

    def post(self, url: str, headers: Mapping[str, str], body: bytes, answer: AnswerReceiver) -> Exchange:
        source: Source
        try:
            source = self._answer(Posted(url, headers, body))
        except (NotSent, BrokenConnection) as error:
            source = _NoAnswer(error)
        self.exchanges.append(MemoryExchange(source, answer))
        return self.exchanges[-1]

    async def close(self) -> None: ...


class _NoAnswer(ScriptedAnswer):
    def __init__(self, error: NotSent | BrokenConnection) -> None:
        super().__init__()
        self._error = error

    async def begun(self) -> None:
        raise self._error
