"""The front closes connections that bring no request: they would use up its file descriptors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from uvicorn.server import ServerState

from functions.http_api.protocol import IDLE_S, BoundedHeads
from tests.support.world.virtual_time import run

REQUEST = b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n"


async def answer(request: Request) -> PlainTextResponse:
    await asyncio.sleep(float(request.path_params["seconds"]))
    return PlainTextResponse("answer")


class Connection(asyncio.Transport):
    """A caller's connection to one protocol of uvicorn."""

    def __init__(self) -> None:
        super().__init__()
        app = Starlette(routes=[Route("/{seconds:int}", answer)])
        config = uvicorn.Config(app, http=BoundedHeads, lifespan="off", log_config=None, timeout_keep_alive=1000)
        config.load()
        self.received, self.is_closed = b"", False
        self.protocol: Any = BoundedHeads(config=config, server_state=ServerState(), app_state={})
        self.protocol.connection_made(self)

    def send(self, data: bytes) -> None:
        self.protocol.data_received(data)

    def write(self, data: Any) -> None:
        self.received += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.protocol.connection_lost(None)

    def write_eof(self) -> None:
        """End the answer. The caller, which has all of it, closes the connection."""
        self.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        return None

    resume_reading = pause_reading


def test_what_is_no_http_is_refused_in_openais_shape_with_an_id() -> None:
    async def scenario() -> None:
        connection = Connection()
        connection.send(b"GET / HTTP/1.1\r\nhost: x\r\nno header\r\n\r\n")
        head, body = connection.received.split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"\r\nx-request-id: " in head
        assert json.loads(body)["error"]["code"] == "invalid_http"
        assert connection.is_closed

    run(scenario())


def test_a_silent_connection_is_closed() -> None:
    async def scenario() -> None:
        connection = Connection()
        await asyncio.sleep(IDLE_S - 0.1)
        assert not connection.is_closed
        await asyncio.sleep(0.2)
        assert connection.is_closed

    run(scenario())


@pytest.mark.parametrize("before", [0, 1])
def test_a_head_that_comes_byte_by_byte_does_not_keep_the_connection(before: int) -> None:
    async def scenario() -> None:
        connection = Connection()
        for _ in range(before):
            connection.send(REQUEST % 0)
            await asyncio.sleep(0.1)
        for byte in (REQUEST % 1)[:20]:
            if connection.is_closed:
                break
            connection.send(bytes([byte]))
            await asyncio.sleep(1.5)
        assert connection.is_closed
        assert connection.received.count(b"answer") == before

    run(scenario())


def test_requests_that_wait_behind_an_answer_are_bounded() -> None:
    async def scenario() -> None:
        connection = Connection()
        connection.send(REQUEST % 1 + REQUEST % 0 * 150)
        await asyncio.sleep(2)
        assert connection.received.count(b"\r\n\r\nanswer") == 101
        assert connection.received.count(b"invalid_http") == 1
        assert connection.is_closed

    run(scenario())


def test_a_long_answer_and_a_connection_in_use_are_kept() -> None:
    async def scenario() -> None:
        connection = Connection()
        connection.send(REQUEST % int(5 * IDLE_S))
        await asyncio.sleep(5 * IDLE_S + 1)
        assert connection.received.count(b"answer") == 1
        for _ in range(5):
            connection.send(REQUEST % 0)
            await asyncio.sleep(0.9 * IDLE_S)
        assert not connection.is_closed
        assert connection.received.count(b"answer") == 6
        await asyncio.sleep(2 * IDLE_S + 1)
        assert connection.is_closed

    run(scenario())
