"""Forwards requests to a server and hands out their events: the part that every engine behind HTTP shares.

Each request in the server has a task that reads its answer as fast as the server sends it. So a caller that reads
slowly keeps no place in the server. The events wait in the request's queue.

A subclass decides when a request enters the server (`_on_arrival` calls `_enter`), and what its tokens and its end mean
for others (`_on_progress`, `_on_end`). This class lets every request enter at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx

from gpu_worker.engines.interface import (
    EngineError,
    EngineEvent,
    EngineFacts,
    EventQueue,
    Finished,
    Started,
    Token,
    WorkOrder,
    probe_order,
)
from gpu_worker.engines.openai.client import NotConnected, OpenAiClient
from gpu_worker.engines.openai.normal.answer import Oddities
from gpu_worker.engines.openai.normal.faults import failed
from gpu_worker.engines.openai.server_api import (
    ServerFacts,
    ServerOptions,
    estimated_input_tokens,
    server_facts,
)
from gpu_worker.engines.openai.sse import Nonsense

logger = logging.getLogger("headgate.engine")

_FATAL = frozenset({401, 403, 404, 405})
"""Statuses of GET /models that no waiting changes."""
_LOG_EVERY_S = 10.0


@dataclass(eq=False)
class Stream:
    """A request and its counts so far. `task` reads its answer; None while it waits."""

    request: WorkOrder
    input_tokens: int
    output_tokens: int = 0
    cached_tokens: int = 0
    events: EventQueue = field(default_factory=EventQueue)
    task: asyncio.Task[None] | None = None


class Forwarding:
    """An `Engine` but for `stats`."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self._server: ServerFacts | None = None
        self._client: OpenAiClient | None = None
        self._streams: dict[str, Stream] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        """Tasks of requests that have ended, while they close their connections."""
        self._is_dead = False

    @property
    def facts(self) -> EngineFacts:
        """The model's facts, known after `start`."""
        if self._server is None:
            raise RuntimeError("the server's facts are known after start")
        return self._server.facts

    @property
    def oddities(self) -> Oddities:
        """What the server sends that is not OpenAI's form, counted since the start."""
        return Oddities() if self._client is None else self._client.oddities

    async def start(self) -> None:
        """Wait until the server answers, and read its facts. Raises ValueError if it cannot be used, and TimeoutError
        if it does not answer within `wait_s`."""
        self._client = OpenAiClient(self.options)
        loop = asyncio.get_running_loop()
        began_s, logged_s = loop.time(), loop.time()
        while (reason := await self._connect()) is not None:
            now_s = loop.time()
            if now_s - began_s >= self.options.wait_s:
                raise TimeoutError(f"no server answers at {self.options.url}: {reason}")
            if now_s - logged_s >= _LOG_EVERY_S:
                logged_s = now_s
                logger.warning("still waiting for the server at %s: %s", self.options.url, reason)
            await asyncio.sleep(self.options.pause_s)

    async def stop(self) -> None:
        for request_id in list(self._streams):
            await self.abort(request_id)
        if self._leaving:
            await asyncio.wait(set(self._leaving))
        if self._client is not None:
            await self._client.close()

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        """See Engine. The first Started has an estimate. Another follows before the first token if the server reports
        another count by then. Finished has the true count."""
        if self._client is None or self._is_dead:
            raise EngineError("engine_stopped", "the engine is not running")
        if request.execution in self._streams:
            raise EngineError("duplicate_request", f"request {request.execution} is here already")
        stream = Stream(request, estimated_input_tokens(request, self.options.bytes_per_token))
        self._on_arrival(stream)
        self._streams[request.execution] = stream
        try:
            yield Started(stream.input_tokens)
            async for event in stream.events:
                yield event
        finally:
            if self._streams.get(request.execution) is stream:
                await self.abort(request.execution)

    async def abort(self, request_id: str) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            self._end(stream, Finished("aborted", stream.input_tokens, stream.output_tokens))
            if stream.task is not None:
                stream.task.cancel()

    def _on_arrival(self, stream: Stream) -> None:
        """Take a new request. Raises RefusedByPolicy."""
        self._enter(stream)

    def _on_progress(self, stream: Stream) -> None:
        """The counts of a request have changed."""

    def _on_end(self, stream: Stream) -> None:
        """A request has ended, in the server or while it waited."""

    def _enter(self, stream: Stream) -> None:
        """Send a request to the server."""
        stream.task = asyncio.create_task(self._forward(stream))
        self._leaving.add(stream.task)
        stream.task.add_done_callback(self._leaving.discard)

    async def _connect(self) -> str | None:
        """Read the server's facts. Return why it does not answer yet, or None."""
        assert self._client is not None  # noqa: S101 - `start` has set it
        try:
            self._server = server_facts(await self._models(self._client), self.options)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status in _FATAL:
                advice = "check the server's key" if status in (401, 403) else "the URL usually ends in /v1"
                raise ValueError(f"GET {self.options.url}/models: HTTP status {status}: {advice}") from None
            return f"HTTP status {status}"
        except (httpx.InvalidURL, httpx.UnsupportedProtocol):
            raise ValueError(f"{self.options.url!r} is not a URL such as http://127.0.0.1:8000/v1") from None
        except httpx.HTTPError as error:
            return type(error).__name__
        except Nonsense as error:
            raise ValueError(f"GET {self.options.url}/models: {error}") from None
        return await self._probe(self._server) if self.options.probe else None

    async def _models(self, client: OpenAiClient) -> dict[str, Any]:
        """Return the list of models. A server without a usable one is no obstacle if the options have all facts."""
        try:
            return await client.models()
        except (httpx.HTTPStatusError, Nonsense):
            if self.options.model is None or self.options.context_tokens is None:
                raise
            return {}

    async def _probe(self, server: ServerFacts) -> str | None:
        """Let the server compute one token. Return why it does not, or None. Raises ValueError if it refuses."""
        assert self._client is not None  # noqa: S101 - `start` has set it
        request = probe_order("probe", "", server.facts)
        try:
            async with aclosing(self._client.events(request, server, 1)) as events:
                async for _ in events:
                    pass
        except NotConnected as error:
            return str(error)
        except EngineError as error:
            if error.code == "invalid_request":
                advice = "set what it supports with --capabilities"
                raise ValueError(
                    f"the server refuses a {request.endpoint} request: {error.message}: {advice}"
                ) from None
            return error.message
        return None

    async def _forward(self, stream: Stream) -> None:
        """Read the answer to its end. Every failure ends this request alone, unless the server has gone."""
        try:
            await self._read(stream)
            self._end(stream, failed("its answer has no end"))
        except EngineError as error:
            self._end(stream, error)
        except NotConnected as error:
            self._end(stream, await self._unreachable(error))
        except Exception as error:  # a bug must end the request, not leave it waiting
            logger.error("a request failed: %s", type(error).__name__, extra={"execution": stream.request.execution})
            self._end(stream, failed("it sent an unexpected answer"))

    async def _read(self, stream: Stream) -> None:
        assert self._client is not None  # noqa: S101 - only a started engine forwards
        assert self._server is not None  # noqa: S101
        async with aclosing(self._client.events(stream.request, self._server, stream.input_tokens)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    stream.cached_tokens = event.cached_tokens
                    self._note(stream, event.input_tokens, event.output_tokens)
                    self._end(stream, event)
                elif isinstance(event, Token):
                    self._note(stream, stream.input_tokens, event.output_tokens)
                    stream.events.put_nowait(event)
                else:
                    self._note(stream, event.input_tokens, stream.output_tokens)
                    stream.events.put_nowait(event)

    def _note(self, stream: Stream, input_tokens: int, output_tokens: int) -> None:
        stream.input_tokens, stream.output_tokens = input_tokens, output_tokens
        self._on_progress(stream)

    def _end(self, stream: Stream, last: Finished | EngineError) -> None:
        """End a request once; later ends of it change nothing."""
        if self._streams.get(stream.request.execution) is not stream:
            return
        del self._streams[stream.request.execution]
        self._on_end(stream)
        stream.events.put_nowait(last)

    async def _unreachable(self, error: NotConnected) -> EngineError:
        """Return the error of a request for which no connection was made. If the server does not answer at all, the
        engine is dead until it is started again."""
        assert self._client is not None  # noqa: S101 - only a started engine forwards
        try:
            await self._client.models()
        except httpx.HTTPStatusError:
            pass
        except (httpx.HTTPError, Nonsense):
            logger.error("the server at %s has gone: %s", self.options.url, error)
            self._is_dead = True
            return EngineError("engine_stopped", "the engine is not running")
        return failed("it took no connection")
