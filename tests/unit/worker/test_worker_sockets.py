"""The gate's connections to workers over real sockets, when a worker or the network fails at the worst moment."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from random import Random

import pytest

from dispatcher.model.call import CallTerms
from dispatcher.model.commands import Offer
from dispatcher.model.errors import WorkerFailed
from dispatcher.model.requests import Endpoint, Request
from dispatcher.model.tenants import Tenant
from dispatcher.model.worker_protocol import Finished, Token, WorkEvent, WorkOrder, WorkRefused
from dispatcher.operations.calls.call import Call, OutputLimit
from dispatcher.operations.calls.followed import AnswerEvents, Broken, LastEvent, OwnAttempts
from dispatcher.operations.limits import LimitSettings
from dispatcher.workers import connections as worker_connections
from dispatcher.workers import http_connection
from dispatcher.workers.client import LINE_BYTES_MAX, HttpWorkerClient
from dispatcher.workers.connections import HttpConnections
from gpu_worker.__main__ import bound
from tests.support.attempts import streamed
from tests.support.hang_guard import HANG_S
from tests.support.worker.harness import SECRETS, order
from tests.support.worker.raw_worker import EVENTS, HEAD, LINES, Connection, be_patient, chunk, raw_worker
from tests.support.world.virtual_time import LoopClock

pytestmark = pytest.mark.both_loops

LARGE = order(body={"prompt": "x" * 8_000_000})
"""More than the buffers of both ends hold."""
TOO_SHORT = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + LINES[0]
CALLERS = 50


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture
async def connections() -> HttpConnections:
    return HttpConnections()


@pytest.fixture
async def client(connections: HttpConnections) -> AsyncIterator[HttpWorkerClient]:
    made = HttpWorkerClient(secrets=SECRETS, clock=LoopClock(), connections=connections)
    yield made
    await made.close()


async def execute(client: HttpWorkerClient, offer: Offer, work: WorkOrder | None = None) -> list[WorkEvent]:
    return [event async for event in streamed(client, offer, work or order())]


async def failure(client: HttpWorkerClient, offer: Offer, work: WorkOrder | None = None) -> WorkerFailed:
    with pytest.raises(WorkerFailed) as failed:
        await execute(client, offer, work)
    return failed.value


@pytest.mark.parametrize("url", ["", "http://[", "nonsense", "ftp://w", "http://\n", "http://:80", "http://w:99999"])
async def test_an_address_that_is_none_is_a_failure(client: HttpWorkerClient, url: str) -> None:
    assert not (await failure(client, Offer("i", 1, "w", url, 0))).began


async def test_a_port_where_nothing_listens_means_that_the_work_did_not_begin(client: HttpWorkerClient) -> None:
    with bound("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
    assert not (await failure(client, Offer("i", 1, "w", f"http://127.0.0.1:{port}", 0))).began


async def test_a_worker_that_accepts_no_connection_did_not_begin(
    client: HttpWorkerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_connections, "CONNECT_S", 0.1)
    with bound("127.0.0.1", 0) as listening:
        listening.listen(0)
        address = listening.getsockname()
        waiting = [asyncio.open_connection(*address) for _ in range(8)]  # they fill the queue of the kernel
        tasks = [asyncio.ensure_future(each) for each in waiting]
        await asyncio.wait(tasks, timeout=0.05)
        error = await failure(client, Offer("i", 1, "w", f"http://127.0.0.1:{address[1]}", 0))
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for each in ended:
            if not isinstance(each, BaseException):
                each[1].close()
    assert not error.began
    assert "TimeoutError" in str(error)


class TestAKilledWorker:
    """May have begun, in each case: only the kernel at the other end knows how much it read."""

    async def test_before_it_reads(self, client: HttpWorkerClient) -> None:
        async def script(connection: Connection) -> None:
            connection.die()

        async with raw_worker(script) as worker:
            assert (await failure(client, worker.offer)).began
            assert worker.connections == 1

    async def test_within_the_order(self, client: HttpWorkerClient) -> None:
        async def script(connection: Connection) -> None:
            await connection.head()
            await connection.reader.readexactly(4_000_000)
            connection.die()

        async with raw_worker(script) as worker:
            assert (await failure(client, worker.offer, LARGE)).began
            assert worker.connections == 1

    async def test_after_the_order(self, client: HttpWorkerClient) -> None:
        async def script(connection: Connection) -> None:
            await connection.order()
            connection.die()

        async with raw_worker(script) as worker:
            assert (await failure(client, worker.offer)).began
            assert worker.orders == ["i"]

    @pytest.mark.parametrize("sent", [HEAD, HEAD + b"%x\r\n" % 1000 + LINES[0] + LINES[1][:10], HEAD + b"5", TOO_SHORT])
    async def test_within_the_answer(self, client: HttpWorkerClient, sent: bytes) -> None:
        async def script(connection: Connection) -> None:
            await connection.order()
            await connection.send(sent)
            connection.die()

        async with raw_worker(script) as worker:
            assert (await failure(client, worker.offer)).began
            assert worker.orders == ["i"]

    async def test_and_the_events_before_its_death_are_not_lost(self, client: HttpWorkerClient) -> None:
        delivered = asyncio.Event()

        async def script(connection: Connection) -> None:
            await connection.order()
            await connection.send(HEAD)
            await connection.chunk(LINES[0] + LINES[1] + LINES[2][:10])
            await delivered.wait()
            connection.die()

        async with raw_worker(script) as worker, aclosing(streamed(client, worker.offer, order())) as events:
            assert [await anext(events), await anext(events)] == EVENTS[:2]
            delivered.set()
            with pytest.raises(WorkerFailed):
                await anext(events)


class TestAConnectionThatIsUsedAgain:
    async def test_carries_the_orders_one_after_another(self, client: HttpWorkerClient) -> None:
        async with raw_worker() as worker:
            for _ in range(3):
                assert await execute(client, worker.offer) == EVENTS
            assert (worker.connections, len(worker.orders)) == (1, 3)

    async def test_and_was_closed_unnoticed_may_have_taken_the_order(self, client: HttpWorkerClient) -> None:
        async with raw_worker() as worker:
            await execute(client, worker.offer)
            worker.last.hang_up()
            assert (await failure(client, worker.offer, order("second"))).began
            assert (worker.connections, worker.orders) == (1, ["i"])

    async def test_and_breaks_with_the_order_takes_it_once(self, client: HttpWorkerClient) -> None:
        async def script(connection: Connection) -> None:
            await connection.order()
            await connection.answer()
            await connection.order()
            connection.die()

        async with raw_worker(script) as worker:
            await execute(client, worker.offer)
            assert (await failure(client, worker.offer, order("second"))).began
            assert (worker.connections, worker.orders) == (1, ["i", "second"])

    async def test_is_replaced_if_the_worker_closed_it(
        self, client: HttpWorkerClient, connections: HttpConnections
    ) -> None:
        async def script(connection: Connection) -> None:
            await connection.order()
            await connection.answer()
            connection.die()

        async with raw_worker(script) as worker:
            await execute(client, worker.offer)
            await until(lambda: not connections._all())
            assert await execute(client, worker.offer, order("second")) == EVENTS
            assert (worker.connections, worker.orders) == (2, ["i", "second"])

    async def test_is_closed_after_a_time(self, client: HttpWorkerClient, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker_connections, "SWEEP_S", 0.02)
        monkeypatch.setattr(http_connection, "IDLE_S", 0.05)
        async with raw_worker() as worker:
            await execute(client, worker.offer)
            await worker.abandoned()

    async def test_is_not_one_that_an_answer_was_left_on(self, client: HttpWorkerClient) -> None:
        async def script(connection: Connection) -> None:
            await connection.order()
            await connection.send(HEAD)
            await connection.chunk(LINES[0])

        async with raw_worker(script) as worker:
            async with aclosing(streamed(client, worker.offer, order())) as events:
                await anext(events)
            await worker.abandoned()


EVENT, NONSENSE = HEAD + chunk(LINES[0]), b"no size\r\n" * 10
BAD: dict[str, list[bytes | float]] = {
    "a line without an end": [HEAD, *[chunk(b"x" * 10_000)] * 1000],
    "a head without an end": [b"HTTP/1.1 200 OK\r\n", *[b"x: y\r\n" * 1000] * 1000],
    "a header without an end": [b"HTTP/1.1 200 OK\r\nx: ", *[b"y" * 10_000] * 1000],
    "preliminaries without an end": [b"HTTP/1.1 100 Continue\r\n\r\n", 0.01] * 1000,
    "no HTTP": [b"hello\r\n\r\n" * 10],
    "no chunk": [EVENT, NONSENSE],
    "no chunk after a while": [EVENT, 0.05, NONSENSE],
    "silence": [],
    "silence after the head": [HEAD],
    "silence after an event": [EVENT],
}
"""What the worker sends; a number: it waits so many seconds."""


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_a_worker_that_sends_nonsense_too_much_or_nothing_is_a_failure(
    client: HttpWorkerClient, bad: list[bytes | float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_connections, "SWEEP_S", 0.02)

    async def script(connection: Connection) -> None:
        await connection.order()
        monkeypatch.setattr(http_connection, "SILENCE_S", 0.2)
        for part in bad:
            await (connection.send(part) if isinstance(part, bytes) else asyncio.sleep(part))
        await connection.reader.read()

    async with raw_worker(script) as worker:
        assert (await failure(client, worker.offer)).began
        await worker.abandoned()
        assert worker.orders == ["i"]


async def test_a_worker_that_reads_no_order_is_a_failure_and_keeps_no_connection(
    client: HttpWorkerClient, connections: HttpConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_connections, "SWEEP_S", 0.02)
    monkeypatch.setattr(http_connection, "SILENCE_S", 0.1)

    async def script(connection: Connection) -> None:
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with raw_worker(script) as worker:
        assert (await failure(client, worker.offer, LARGE)).began
        assert not connections.busy


async def test_a_slow_worker_is_no_silent_one(
    client: HttpWorkerClient, connections: HttpConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole answer takes longer than the longest silence, but no byte of it does. The time is the test's."""
    monkeypatch.setattr(worker_connections, "SWEEP_S", HANG_S)
    take, taken = http_connection.HttpConnection.data_received, asyncio.Event()

    def noted(connection: http_connection.HttpConnection, data: bytes) -> None:
        take(connection, data)
        taken.set()

    monkeypatch.setattr(http_connection.HttpConnection, "data_received", noted)
    now = asyncio.get_running_loop().time()

    async def script(connection: Connection) -> None:
        nonlocal now
        await connection.order()
        (carrying,) = connections.busy
        carrying._time = lambda: now
        for part in (HEAD, *(chunk(bytes([byte])) for byte in b"".join(LINES)), b"0\r\n\r\n"):
            now += 0.6 * http_connection.SILENCE_S
            carrying.check(now)
            taken.clear()
            await connection.send(part)
            await taken.wait()

    async with raw_worker(script) as worker:
        assert await execute(client, worker.offer) == EVENTS


async def test_an_endless_line_is_not_kept(client: HttpWorkerClient) -> None:
    sent = 0

    async def script(connection: Connection) -> None:
        nonlocal sent
        await connection.order()
        await connection.send(HEAD)
        while True:
            await connection.chunk(b"x" * 100_000)
            sent += 100_000

    async with raw_worker(script) as worker:
        await failure(client, worker.offer)
        await worker.abandoned()
    assert sent < 20 * LINE_BYTES_MAX, "what the buffers of both ends hold, and a line"


async def test_an_answer_is_not_decompressed(client: HttpWorkerClient) -> None:
    """A gigabyte of zeros takes a megabyte."""
    packer = zlib.compressobj(wbits=31)
    first, more = (packer.compress(bytes(1_000_000)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))

    async def script(connection: Connection) -> None:
        await connection.order()
        assert b"accept-encoding: identity" in worker.heads[0].lower()
        await connection.send(HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n"))
        await connection.chunk(first + more * 1000)
        await connection.send(b"0\r\n\r\n")

    async with raw_worker(script) as worker:
        tracemalloc.start()
        try:
            assert (await failure(client, worker.offer)).began
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()


async def test_no_redirect_cookie_or_proxy_is_followed(
    client: HttpWorkerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    async def script(connection: Connection) -> None:
        while True:
            await connection.order()
            await connection.send(b"HTTP/1.1 307 Elsewhere\r\nlocation: /elsewhere\r\nset-cookie: a=b; path=/\r\n")
            await connection.send(b"content-length: 0\r\n\r\n")

    async with raw_worker(script) as worker:
        for _ in range(2):
            (event,) = await execute(client, worker.offer)
            assert isinstance(event, WorkRefused)
            assert event.status == 307
        assert len(worker.orders) == 2
        assert not [head for head in worker.heads if b"cookie" in head.lower() or b"elsewhere" in head]


async def at_rest(connections: HttpConnections) -> None:
    """Wait until the answers have ended, which is after their last events."""
    await until(lambda: not connections.busy)


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_S):
        while not is_true():
            await asyncio.sleep(0.005)


async def test_cancellation_under_load_leaves_no_connection_in_use(
    client: HttpWorkerClient, connections: HttpConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each caller is cancelled at another moment: while it connects, sends, waits or reads."""

    async def script(connection: Connection) -> None:
        while True:
            await connection.order()
            await asyncio.sleep(0.01)
            await connection.send(HEAD)
            for line in LINES:
                await connection.chunk(line)
                await asyncio.sleep(0.005)
            await connection.send(b"0\r\n\r\n")

    monkeypatch.setattr(worker_connections, "CONNECTIONS_MAX", CALLERS)
    random = Random(1)
    async with raw_worker(script) as worker:
        for _ in range(4):
            tasks = [asyncio.ensure_future(execute(client, worker.offer)) for _ in range(CALLERS)]
            for task in random.sample(tasks, CALLERS):
                await asyncio.sleep(random.choice([0, 0, 0.0005, 0.002]))
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
            await at_rest(connections)
        served = await asyncio.gather(*(execute(client, worker.offer) for _ in range(CALLERS)))
        assert served == [EVENTS] * CALLERS
        await at_rest(connections)


def test_no_call_of_a_process_waits_for_a_connection() -> None:
    """The order would not be begun in time, and the gate would suspend the process, with all its calls."""
    assert LimitSettings().process_requests_max <= worker_connections.CONNECTIONS_MAX


@pytest.mark.parametrize("last", [Token, Finished])
async def test_a_cancelled_caller_leaves_no_connection_behind(
    client: HttpWorkerClient, monkeypatch: pytest.MonkeyPatch, last: type[WorkEvent]
) -> None:
    """The client may hold one connection, so the next order waits until it is free."""
    monkeypatch.setattr(worker_connections, "CONNECTIONS_MAX", 1)

    async def call(offer: Offer) -> None:
        async with aclosing(streamed(client, offer, order())) as events:
            async for event in events:
                if isinstance(event, last):
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                    if last is Token:
                        await asyncio.Event().wait()
                    break

    async with raw_worker() as worker:
        for _ in range(5):
            task = asyncio.ensure_future(call(worker.offer))
            await asyncio.wait({task})
            assert task.cancelled() or task.exception() is None


async def test_attempts_that_are_stopped_after_their_last_event_use_one_connection(
    client: HttpWorkerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_connections, "CONNECTIONS_MAX", 1)
    asked = Request("m", Endpoint.COMPLETION, {"prompt": "p"}, 1)
    terms = CallTerms("a", "m", 1.0, 1e12, False, "", "")
    call = Call("i", Tenant("a"), asked, OutputLimit(1), terms, 0.0)
    async with raw_worker() as worker:
        ends: asyncio.Queue[LastEvent | Broken] = asyncio.Queue()
        for _ in range(5):
            attempts = OwnAttempts(client, call, AnswerEvents(time.time, streamed=False), ends.put_nowait)
            attempts.begin(worker.offer)
            assert isinstance((await ends.get()), LastEvent)
            attempts.stop()
            assert not attempts.is_running
        assert ends.empty()
        assert worker.connections == 1
