"""uvicorn inside this process: an ASGI application served in the running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request

logger = logging.getLogger(__name__)


class EmbeddedServer:
    """Serves `app` from `start` to `stop`. `port` 0 takes a free port. `settings`: more of uvicorn.Config's."""

    def __init__(self, app: Starlette, host: str = "127.0.0.1", port: int = 0, **settings: Any) -> None:
        self._address = (host, port)
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="warning",
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=1,
                **settings,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Start to serve and return host:port. Raises OSError if the port is in use."""
        listening = _listen(*self._address)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        self._serving.add_done_callback(log_failure)
        return f"{self._address[0]}:{listening.getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening and cut open connections. Repeatable."""
        if self._serving is not None:
            self._server.should_exit = self._server.force_exit = True
            await asyncio.wait({self._serving})


class _Uvicorn(uvicorn.Server):
    """A server that leaves the process's signals alone: the stack handles them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def body_within(request: Request, bytes_max: int) -> bytes | None:
    """Read the body of a request; None if it is larger than `bytes_max`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            return None
    return bytes(body)


def log_failure(task: asyncio.Task[None]) -> None:
    """Log the error of a background task that failed."""
    if not task.cancelled() and task.exception() is not None:
        logger.error("a part of the local AWS failed", exc_info=task.exception())


def _listen(host: str, port: int) -> socket.socket:
    """Open a listening socket of protocol TCP: for protocol 0 asyncio leaves Nagle's algorithm on, 40 ms an answer."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(512)
    except OSError:
        listening.close()
        raise
    return listening
