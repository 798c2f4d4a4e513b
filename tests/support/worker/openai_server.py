"""An OpenAI-compatible server in memory, as a script, for tests of the openai engine in virtual time.

A script is an async generator of the bytes of one answer's body. It gets the request's body.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from gpu_worker.engines.interface import EngineError, EngineEvent, Finished, Started, Token, WorkOrder
from gpu_worker.engines.openai.engine import OpenAiEngine
from gpu_worker.engines.openai.server_api import ServerOptions
from gpu_worker.policies.fairness.tiered import make_queue

MODEL = "their-model"
CARD = {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 1000}
EVENTS = "text/event-stream; charset=utf-8"
JSON = "application/json"
DONE = b"data: [DONE]\n\n"

Script = Callable[[dict[str, Any]], AsyncGenerator[bytes, None]]


def data(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(
    text: str | None = None, *, reason: str | None = None, index: int = 0, usage: Any = None, **delta: Any
) -> bytes:
    """A chunk of a chat: one choice. `usage`: (prompt tokens, completion tokens)."""
    content = {} if text is None else {"content": text}
    found: dict[str, Any] = {"choices": [{"index": index, "delta": {**content, **delta}, "finish_reason": reason}]}
    if usage is not None:
        found["usage"] = usage_of(*usage)
    return data(found)


def usage(prompt: Any, completion: Any) -> bytes:
    return data({"choices": [], "usage": usage_of(prompt, completion)})


def usage_of(prompt: Any, completion: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


def says(*parts: bytes) -> Script:
    """A server that sends these parts, whatever the request."""

    async def script(_body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        for part in parts:
            yield part

    return script


async def counting(body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    """A server as it should be: `max_tokens` tokens, one each 0.01 s."""
    yield chunk("", role="assistant", usage=(7, 0))
    for number in range(1, body["max_tokens"] + 1):
        await asyncio.sleep(0.01)
        yield chunk(f" {number}", usage=(7, number))
    yield chunk("", reason="length", usage=(7, body["max_tokens"]))
    yield usage(7, body["max_tokens"])
    yield DONE


@dataclass
class FakeServer(httpx.AsyncBaseTransport):
    """In memory. `bodies`: of the requests for tokens, in order. `open`: answers that are not read to the end."""

    script: Script = counting
    status: int = 200
    content_type: str = EVENTS
    headers: dict[str, str] = field(default_factory=dict)
    cards: list[dict[str, Any]] = field(default_factory=lambda: [CARD])
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    open: int = 0
    open_most: int = 0
    is_gone: bool = False
    breaks: int = 0
    """So many of the next POSTs end without an answer, as on a connection that the server has just closed."""
    models_status: int = 200

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.is_gone:
            raise httpx.ConnectError("refused")
        if request.method == "GET":
            return httpx.Response(
                self.models_status, stream=httpx.ByteStream(json.dumps({"data": self.cards}).encode())
            )
        if self.breaks:
            self.breaks -= 1
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        body = json.loads(await request.aread())
        self.bodies.append(body)
        self.paths.append(request.url.path)
        stream = _Body(self, self.script(body))
        return httpx.Response(self.status, headers={"content-type": self.content_type, **self.headers}, stream=stream)


@dataclass
class _Body(httpx.AsyncByteStream):
    server: FakeServer
    parts: AsyncGenerator[bytes, None]
    is_open: bool = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.is_open = True
        self.server.open += 1
        self.server.open_most = max(self.server.open_most, self.server.open)
        async for part in self.parts:
            yield part

    async def aclose(self) -> None:
        if self.is_open:
            self.is_open = False
            self.server.open -= 1
        await self.parts.aclose()


def options(server: httpx.AsyncBaseTransport | None = None, **given: Any) -> ServerOptions:
    transport = None if server is None else lambda: server
    return ServerOptions(**{"url": "http://engine/v1", "transport": transport, "probe": False, **given})


@asynccontextmanager
async def engine_of(
    server: FakeServer, *, policy: str = "vtc", places: int = 4, **given: Any
) -> AsyncIterator[OpenAiEngine]:
    clock = asyncio.get_running_loop().time
    engine = OpenAiEngine(make_queue(policy), options(server, **given), places=places, monotonic_s=clock)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def outcome(engine: OpenAiEngine, asked: WorkOrder) -> tuple[list[EngineEvent], EngineError | None]:
    """Return the events of a request, and the error that ended it."""
    events: list[EngineEvent] = []
    try:
        async with aclosing(engine.generate(asked)) as arriving:
            async for event in arriving:
                events.append(event)
    except EngineError as error:
        return events, error
    return events, None


def text(events: Iterable[EngineEvent], choice: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, Token) and event.choice == choice)


def last(events: list[EngineEvent]) -> Finished:
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished), events[-1]
    return events[-1]
