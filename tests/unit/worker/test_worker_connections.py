"""The gate's connections to workers, over real sockets: however an execution ends, its connection is free again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress

import pytest

from dispatcher.model.call import CallTerms
from dispatcher.model.commands import Offer
from dispatcher.model.requests import Endpoint, Request
from dispatcher.model.tenants import Tenant
from dispatcher.model.worker_protocol import Finished, Started, Token
from dispatcher.operations.calls.call import Call, OutputLimit
from dispatcher.operations.calls.followed import AnswerEvents, Broken, LastEvent, OwnAttempts
from dispatcher.operations.limits import LimitSettings
from dispatcher.workers import client as worker_connections
from dispatcher.workers.client import HttpWorkerClient
from dispatcher.workers.wire import encode_event
from tests.support.worker.harness import SECRETS, order
from tests.support.world.virtual_time import LoopClock

LINES = [encode_event(event) for event in (Started(1), Token("a", 1), Finished("stop", 1, 1))]
CALLS = 5
ASKED = Request("m", Endpoint.COMPLETION, {"prompt": "p"}, 1)
CALL = Call("i", Tenant("a"), ASKED, OutputLimit(1), CallTerms("a", "m", 1.0, 1e12, False, "", ""), 0.0)


class Worker:
    """A server that answers every order in the same way, and counts its connections."""

    def __init__(self) -> None:
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                for line in LINES:
                    writer.write(b"%x\r\n%b\r\n" % (len(line), line))
                writer.write(b"0\r\n\r\n")
        writer.close()


@asynccontextmanager
async def one_connection(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Worker, HttpWorkerClient, Offer]]:
    """Serve a worker, and make a client that may hold one connection: the next order waits until it is free."""
    monkeypatch.setattr(worker_connections, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(worker_connections, "SILENCE_S", 2.0)
    worker = Worker()
    server = await asyncio.start_server(worker.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = HttpWorkerClient(secrets=SECRETS, clock=LoopClock())
    try:
        yield worker, client, Offer("i", 1, "w", f"http://127.0.0.1:{port}", 0)
    finally:
        await client.close()
        server.close()


def test_no_call_of_a_process_waits_for_a_connection() -> None:
    """The order would not be begun in time, and the gate would suspend the process, with all its calls."""
    assert LimitSettings().process_requests_max <= worker_connections.CONNECTIONS_MAX


async def cancelled_at_the_end(client: HttpWorkerClient, offer: Offer) -> None:
    async with aclosing(client.execute(offer, order())) as events:
        async for event in events:
            if isinstance(event, Finished):
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                break


async def cancelled_in_the_middle(client: HttpWorkerClient, offer: Offer) -> None:
    async with aclosing(client.execute(offer, order())) as events:
        async for event in events:
            if isinstance(event, Token):
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.Event().wait()


@pytest.mark.parametrize("caller", [cancelled_at_the_end, cancelled_in_the_middle])
def test_a_cancelled_caller_leaves_no_connection_behind(
    monkeypatch: pytest.MonkeyPatch, caller: Callable[[HttpWorkerClient, Offer], Awaitable[None]]
) -> None:
    async def story() -> None:
        async with one_connection(monkeypatch) as (_, client, offer):
            for _ in range(CALLS):
                task = asyncio.ensure_future(caller(client, offer))
                await asyncio.wait({task})
                assert task.cancelled() or task.exception() is None

    asyncio.run(story())


def test_attempts_that_are_stopped_after_their_last_event_use_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with one_connection(monkeypatch) as (worker, client, offer):
            ends: asyncio.Queue[LastEvent | Broken] = asyncio.Queue()
            for _ in range(CALLS):
                attempts = OwnAttempts(client, CALL, AnswerEvents(streamed=False), ends.put_nowait)
                attempts.begin(offer)
                assert isinstance((await ends.get()), LastEvent)
                await attempts.stop()
                assert not attempts.is_running
            assert ends.empty()
            assert worker.connections == 1

    asyncio.run(story())
