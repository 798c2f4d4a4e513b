"""Lambda's Runtime API, 2018-06-01, for one execution environment, on a port of its own.

GET  invocation/next             blocks until there is an event
POST invocation/{id}/response    the handler's answer
POST invocation/{id}/error       the error that the handler raised
POST init/error                  the handler could not be loaded

A port for each environment: `next` does not name its environment, and AWS_LAMBDA_RUNTIME_API may carry host and port
only (awslambdaric posts init/error through http.client, which accepts no path there).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headgate.local.embedded_server import EmbeddedServer, body_within

HEAD_BYTES_MAX = 2 * 1024 * 1024
"""The runtime puts an X-Ray cause of up to 1 MB into a header."""
BODY_BYTES_MAX = 64 * 1024 * 1024
KEEP_ALIVE_S = 3600
"""The runtime keeps its connection while its handler works, up to 900 s."""
PREFIX = "/2018-06-01/runtime"


@dataclass(frozen=True)
class RuntimeReply:
    """The handler's answer, or the error that it raised (`is_error`)."""

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
    """`start`, give the address to the runtime, `wait_until_loaded`, then `invoke` for one event at a time."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[_Event | None] = asyncio.Queue()
        """None: the environment stops."""
        self._current: _Event | None = None
        self._loaded = asyncio.Event()
        self._init_error: bytes | None = None
        routes = [
            Route(f"{PREFIX}/invocation/next", self._next, methods=["GET"]),
            Route(
                f"{PREFIX}/invocation/{{request_id}}/response", partial(self._finish, is_error=False), methods=["POST"]
            ),
            Route(f"{PREFIX}/invocation/{{request_id}}/error", partial(self._finish, is_error=True), methods=["POST"]),
            Route(f"{PREFIX}/init/error", self._on_init_error, methods=["POST"]),
        ]
        self._server = EmbeddedServer(
            Starlette(routes=routes),
            http="h11",
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            server_header=False,
            date_header=False,
        )

    async def start(self) -> str:
        """Start to serve and return host:port."""
        return await self._server.start()

    async def stop(self) -> None:
        self._events.put_nowait(None)
        await self._server.stop()

    async def wait_until_loaded(self) -> bytes | None:
        """Return None once the runtime asks for an event, or the error's JSON if it could not load the handler."""
        await self._loaded.wait()
        return self._init_error

    async def invoke(self, payload: bytes, headers: Mapping[str, str]) -> RuntimeReply:
        """Give an event to the handler and wait for its reply."""
        event = _Event(payload, headers, asyncio.get_running_loop().create_future())
        self._events.put_nowait(event)
        return await event.reply

    async def _next(self, request: Request) -> Response:
        self._loaded.set()
        event = await self._events.get()
        if event is None:
            self._events.put_nowait(None)  # for any other connection that waits
            return JSONResponse({"errorType": "Stopped"}, 410)
        self._current = event
        return Response(event.payload, headers=event.headers, media_type="application/json")

    async def _finish(self, request: Request, *, is_error: bool) -> Response:
        body = await body_within(request, BODY_BYTES_MAX)
        if body is None:
            return JSONResponse({"errorType": "RequestEntityTooLarge"}, 413)
        event = self._current
        if event is None or event.request_id != request.path_params["request_id"] or event.reply.done():
            return JSONResponse({"errorType": "InvalidRequestID"}, 400)
        event.reply.set_result(RuntimeReply(body, is_error))
        self._current = None
        return _ok_response()

    async def _on_init_error(self, request: Request) -> Response:
        self._init_error = await request.body()
        self._loaded.set()
        return _ok_response()


def _ok_response() -> Response:
    return JSONResponse({"status": "OK"}, 202)
