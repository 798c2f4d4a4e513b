"""The gate's HTTP connections to workers when an answer is unusual, wrong or endless, and when its receiver is slow.

Each case runs over real sockets, on both event loops.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.model.commands import Offer
from dispatcher.model.errors import WorkerFailed
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent, WorkRefused
from dispatcher.ports import RunningAttempt
from dispatcher.workers import connections as worker_connections
from dispatcher.workers import http_connection
from dispatcher.workers.client import HttpWorkerClient
from dispatcher.workers.connections import HttpConnections
from dispatcher.workers.http_connection import SILENCE_S, HttpConnection, HttpExchange, parse_address
from dispatcher.workers.wire import encode_event
from tests.support.attempts import streamed
from tests.support.hang_guard import HANG_S
from tests.support.worker.harness import SECRETS, order
from tests.support.worker.raw_worker import EVENTS, HEAD, LINES, Connection, RawWorker, be_patient, chunk, raw_worker
from tests.support.world.virtual_time import LoopClock

pytestmark = pytest.mark.both_loops

BODY, END = b"".join(LINES), b"0\r\n\r\n"
WHOLE = HEAD + chunk(BODY) + END
LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"
Part = bytes | float
"""What a worker sends, or how many seconds it waits."""


class Recorder:
    """ports.AttemptEvents. `on_take` is called with each event."""

    def __init__(self, on_take: Callable[[WorkEvent], Any] = lambda _: None) -> None:
        self.events: list[WorkEvent] = []
        self.failures: list[WorkerFailed] = []
        self.over = asyncio.Event()
        self.attempt: RunningAttempt
        self._on_take = on_take

    def take(self, event: WorkEvent) -> None:
        assert not self.over.is_set(), "nothing comes after the end"
        self.events.append(event)
        if isinstance(event, Finished | WorkRefused):
            self.over.set()
        self._on_take(event)

    def fail(self, error: WorkerFailed) -> None:
        self.failures.append(error)
        self.over.set()

    async def ended(self) -> list[WorkEvent]:
        async with asyncio.timeout(HANG_S):
            await self.over.wait()
        return self.events


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture
async def connections() -> AsyncIterator[HttpConnections]:
    made = HttpConnections()
    yield made
    await made.close()
    assert not made.busy


@pytest.fixture
async def client(connections: HttpConnections, monkeypatch: pytest.MonkeyPatch) -> HttpWorkerClient:
    monkeypatch.setattr(worker_connections, "SWEEP_S", 0.02)
    return HttpWorkerClient(secrets=SECRETS, clock=LoopClock(), connections=connections)


def begin(client: HttpWorkerClient, offer: Offer, recorder: Recorder) -> Recorder:
    recorder.attempt = client.execute(offer, order(), recorder)
    return recorder


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_S):
        while not is_true():
            await asyncio.sleep(0.005)


def answering(*parts: Part, closes: bool = False) -> Callable[[Connection], Any]:
    """Return a script that answers each order with these parts."""

    async def script(connection: Connection) -> None:
        while True:
            await connection.order()
            for part in parts:
                await (connection.send(part) if isinstance(part, bytes) else asyncio.sleep(part))
            if closes:
                connection.writer.close()

    return script


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Any:
    """An error in a callback of the event loop is only logged."""
    yield
    assert [each.getMessage() for each in caplog.records if each.name == "asyncio" and each.levelno > 30] == []


# ── Answers that are unusual ───────────────────────────────────────────────────────────────────────────────────────

KEPT: dict[str, list[Part]] = {
    "in one piece": [WHOLE],
    "a byte at a time": [part for byte in WHOLE for part in (bytes([byte]), 0.0)],
    "an event a packet": [HEAD, 0.01, *(part for line in LINES for part in (chunk(line), 0.01)), END],
    "the end later": [HEAD, chunk(BODY), 0.05, END],
    "chunks that cut lines": [HEAD, *(chunk(BODY[at : at + 7]) for at in range(0, len(BODY), 7)), END],
    "chunk extensions": [HEAD, b"%x;a=b;c\r\n%b\r\n" % (len(BODY), BODY), b"0;d=e\r\n\r\n"],
    "a trailer": [HEAD, chunk(BODY), b"0\r\nx: y\r\n\r\n"],
    "a length": [LENGTH % len(BODY), BODY],
    "early answers": [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", 0.01, WHOLE],
    "signs of life": [HEAD, chunk(b'{"event":"alive"}\n') * 9, chunk(BODY), END],
    "the last line without its end": [LENGTH % (len(BODY) - 1), BODY[:-1]],
    "another version's fields": [
        HEAD.replace(b"\r\n\r\n", b"\r\nkeep-alive: timeout=5\r\nx: \xff\r\n\r\n"),
        WHOLE[len(HEAD) :],
    ],
}
DROPPED: dict[str, list[Part]] = {
    "connection: close": [HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), chunk(BODY), END],
    "two answers": [WHOLE + WHOLE],
    "an answer more, later": [WHOLE, 0.02, WHOLE],
    "bytes after the end": [WHOLE + b"x"],
    "bytes after the end, later": [WHOLE, 0.02, b"x"],
    "bytes after the last event": [HEAD, chunk(BODY), 0.02, chunk(b"x"), END],
    "bytes with the last event": [HEAD, chunk(BODY + b"x"), END],
    "no end": [HEAD, chunk(BODY)],
    "a length that is too long": [LENGTH % (len(BODY) + 1), BODY],
    "a length that is too short": [LENGTH % len(BODY), BODY + b"more"],
    "nonsense after the last event": [HEAD, chunk(BODY), b"zz\r\n"],
    "an endless trailer": [HEAD, chunk(BODY), b"0\r\nx: ", *[b"y" * 10_000] * 100],
    "HTTP/1.0": [b"HTTP/1.0 200 OK\r\n\r\n", BODY],
    "neither length nor chunks": [b"HTTP/1.1 200 OK\r\n\r\n", BODY],
}


@pytest.mark.parametrize(
    ("parts", "is_kept"),
    [*((each, True) for each in KEPT.values()), *((each, False) for each in DROPPED.values())],
    ids=[*KEPT, *DROPPED],
)
async def test_an_answer_is_whole_and_its_connection_is_kept_only_after_a_clean_end(
    client: HttpWorkerClient,
    connections: HttpConnections,
    parts: list[Part],
    is_kept: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not is_kept:
        monkeypatch.setattr(http_connection, "CLOSING_S", 0.2)
    async with raw_worker(answering(*parts)) as worker:
        for _ in range(2):
            recorder = begin(client, worker.offer, Recorder())
            assert await recorder.ended() == EVENTS
            await (until(lambda: not connections.busy) if is_kept else worker.abandoned())
            recorder.attempt.close()  # has no effect
        assert (worker.connections, len(worker.orders)) == (1 if is_kept else 2, 2)


@pytest.mark.parametrize("head", [b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"])
async def test_without_a_length_the_answer_ends_with_the_connection(client: HttpWorkerClient, head: bytes) -> None:
    async with raw_worker(answering(head, BODY[:-1], closes=True)) as worker:
        assert await begin(client, worker.offer, Recorder()).ended() == EVENTS, "the last line needs no line feed"
    refusal = b'{"event":"refused","status":1,"code":"c","message":"m"}'
    async with raw_worker(answering(head.replace(b"200 OK", b"503 No"), refusal, closes=True)) as worker:
        assert await begin(client, worker.offer, Recorder()).ended() == [WorkRefused(503, "c", "m")]
    async with raw_worker(answering(head, BODY[:30], closes=True)) as worker:
        assert [error.began for error in (await failed(client, worker)).failures] == [True]


@pytest.mark.parametrize("status", [b"204 No Content", b"301 Moved", b"401 No", b"503 Busy"])
async def test_an_error_without_a_body_is_a_refusal(client: HttpWorkerClient, status: bytes) -> None:
    async with raw_worker(answering(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n")) as worker:
        (event,) = await begin(client, worker.offer, Recorder()).ended()
        assert isinstance(event, WorkRefused)
        assert (event.status, event.code) == (int(status[:3]), "worker_refused")


async def test_a_refusal_before_the_order_was_read(client: HttpWorkerClient, connections: HttpConnections) -> None:
    """The connection still has a part of the order to send, so it carries no other."""

    async def script(connection: Connection) -> None:
        await connection.head()
        await connection.send(b"HTTP/1.1 413 Large\r\ncontent-length: 0\r\n\r\n")
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: over)
        connection.writer.transport.resume_reading()  # type: ignore[attr-defined]

    over = False
    async with raw_worker(script) as worker:
        (event,) = [each async for each in streamed(client, worker.offer, order(body={"prompt": "x" * 30_000_000}))]
        assert isinstance(event, WorkRefused)
        assert event.status == 413
        assert not connections.busy
        assert not connections._all()
        over = True
        await worker.abandoned()


async def test_a_megabyte_at_once(client: HttpWorkerClient) -> None:
    tokens: list[WorkEvent] = [Token("x" * 60, number) for number in range(10_000)]
    body = LINES[0] + b"".join(encode_event(token) for token in tokens) + LINES[-1]
    assert len(body) > 1_000_000
    async with raw_worker(answering(LENGTH % len(body) + body)) as worker:
        assert await begin(client, worker.offer, Recorder()).ended() == [EVENTS[0], *tokens, EVENTS[-1]]


# ── Answers that are wrong ─────────────────────────────────────────────────────────────────────────────────────────

WRONG: dict[str, list[Part]] = {
    "no size": [HEAD, b"zz\r\n", BODY],
    "a negative size": [HEAD, b"-5\r\n", BODY],
    "a size without end": [HEAD, b"f" * 1000],
    "a chunk of another size": [HEAD, b"5\r\n" + BODY],
    "an endless extension": [HEAD, b"5;", *[b"x" * 10_000] * 100],
    "a head of 100 KB": [
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
        0.05,
        b"y" * 30_000 + b"\r\ncontent-length: 1\r\n\r\n",
    ],
    "100 KB of headers": [b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 12_000, 0.05, b"x: y\r\n" * 5000 + b"\r\n"],
    "early answers without end": [b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000],
    "another protocol": [b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", WHOLE],
    "a length and chunks": [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", chunk(BODY)],
    "two lengths": [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", BODY],
    "a negative length": [b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n", BODY],
    "lines without CR": [b"HTTP/1.1 200 OK\ncontent-length: 5\n\n", BODY],
    "no HTTP": [b"SSH-2.0-OpenSSH_9.6\r\n"],
    "a request": [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"],
    "HTTP/2": [b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"],
    "TLS": [b"\x16\x03\x01\x02\x00\x01"],
    "no event": [HEAD, END],
    "an empty body": [LENGTH % 0],
    "a length that cuts the last event": [LENGTH % (len(BODY) - 9), BODY],
    "the rest in a second answer": [HEAD, chunk(LINES[0]) + END + HEAD + chunk(LINES[1] + LINES[2]) + END],
    "no last event": [HEAD, chunk(LINES[0] + LINES[1]), END],
    "a token that is nested too deeply": [
        HEAD,
        chunk(b'{"text":"x","output_tokens":1,"event":"token","delta":' + b'{"a":' * 5000 + b"1" + b"}" * 5001 + b"\n"),
    ],
}


async def failed(client: HttpWorkerClient, worker: RawWorker) -> Recorder:
    """Execute an order that fails, and return what came of it."""
    recorder = begin(client, worker.offer, Recorder())
    await recorder.ended()
    await worker.abandoned()
    assert len(recorder.failures) == 1
    assert not any(isinstance(event, Finished | WorkRefused) for event in recorder.events)
    return recorder


@pytest.mark.parametrize("parts", WRONG.values(), ids=WRONG)
async def test_what_is_wrong_fails_its_own_attempt(
    client: HttpWorkerClient, connections: HttpConnections, parts: list[Part]
) -> None:
    """At once, and not after a silence."""
    async with raw_worker(answering(*parts)) as worker, raw_worker() as other:
        recorder = await failed(client, worker)
        assert recorder.failures[0].began
        assert not connections.busy
        assert await begin(client, other.offer, Recorder()).ended() == EVENTS


@pytest.mark.parametrize("cut", range(0, len(WHOLE), 5))
async def test_a_worker_that_hangs_up_within_its_answer(client: HttpWorkerClient, cut: int) -> None:
    """The events before are delivered. After the last event the answer counts."""
    async with raw_worker(answering(WHOLE[:cut], closes=True)) as worker:
        recorder = begin(client, worker.offer, Recorder())
        events = await recorder.ended()
        assert events == EVENTS[: len(events)]
        assert [error.began for error in recorder.failures] == ([] if events == EVENTS else [True])


class _MemoryTransport(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def write(self, data: Any) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _Bytes:
    """http_connection.AnswerReceiver"""

    def __init__(self) -> None:
        self.status, self.body, self.ends = 0, b"", 0

    def on_head(self, status: int) -> None:
        assert not self.status
        self.status = status

    def on_body(self, data: bytes) -> None:
        assert self.status
        assert not self.ends
        self.body += data

    def on_end(self) -> None:
        self.ends += 1

    def on_broken(self, error: object) -> None:
        self.ends += 1


async def _receive(pieces: list[bytes]) -> tuple[int, bytes, bool]:
    """Return the status, the body and whether the connection is kept, of an answer that arrives in these pieces."""
    pool, got, transport = HttpConnections(), _Bytes(), _MemoryTransport()
    exchange = HttpExchange(got)
    connection = HttpConnection(pool, parse_address("http://w"), exchange)
    connection.connection_made(transport)
    for piece in pieces:
        if not transport.is_aborted and piece:
            connection.data_received(piece)
    if not got.ends:
        connection.connection_lost(None)
    exchange.release()
    assert got.ends <= 1
    return got.status, got.body, not transport.is_aborted


MUTATIONS = st.lists(st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 3), st.binary(max_size=4)), max_size=3)


@settings(max_examples=300)
@given(st.lists(st.integers(1, 60), max_size=10), MUTATIONS)
def test_however_the_network_cuts_it_the_outcome_is_the_same(
    cuts: list[int], mutations: list[tuple[int, int, bytes]]
) -> None:
    """Also of an answer with bytes that were replaced, added or lost."""
    data = WHOLE
    for at, lost, added in mutations:
        data = data[:at] + added + data[at + lost :]
    pieces, rest = [], data
    for size in cuts:
        pieces.append(rest[:size])
        rest = rest[size:]

    async def compare() -> None:
        assert await _receive([*pieces, rest]) == await _receive([data])

    asyncio.run(compare())


# ── The receiver ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_nothing_is_delivered_within_execute(client: HttpWorkerClient) -> None:
    recorder = begin(client, Offer("i", 1, "w", "nonsense", 0), Recorder())
    assert not recorder.failures
    assert not await recorder.ended()
    assert [error.began for error in recorder.failures] == [False]
    await client.close()
    recorder = begin(client, Offer("i", 1, "w", "http://127.0.0.1:9", 0), Recorder())
    assert not recorder.failures
    assert not await recorder.ended()
    assert [error.began for error in recorder.failures] == [False]


async def test_a_closed_attempt_delivers_nothing(client: HttpWorkerClient, connections: HttpConnections) -> None:
    """Whether it is closed before it is connected, or by its receiver, or during a pause."""

    def close(_: WorkEvent) -> None:
        third.attempt.close()

    def close_later(_: WorkEvent) -> None:
        fourth.attempt.pause()
        fourth.attempt.resume()
        fourth.attempt.close()

    async with raw_worker() as worker:
        first = begin(client, Offer("i", 1, "w", "nonsense", 0), Recorder())
        second = begin(client, worker.offer, Recorder())
        first.attempt.close()
        second.attempt.close()
        third = begin(client, worker.offer, Recorder(close))
        await until(lambda: third.events)
        fourth = begin(client, worker.offer, Recorder(close_later))
        await until(lambda: fourth.events)
        await until(lambda: not connections.busy)
        await asyncio.sleep(0.05)
        for recorder, events in ((first, []), (second, []), (third, EVENTS[:1]), (fourth, EVENTS[:1])):
            assert (recorder.events, recorder.failures) == (events, [])
            recorder.attempt.close()
            recorder.attempt.pause()
            recorder.attempt.resume()


@pytest.mark.parametrize("kind", [Started, Token, Finished])
async def test_an_error_of_a_receiver_fails_its_own_attempt(
    client: HttpWorkerClient, caplog: pytest.LogCaptureFixture, kind: type[WorkEvent]
) -> None:
    def fail(event: WorkEvent) -> None:
        if isinstance(event, kind):
            raise RuntimeError("a mistake")

    async with raw_worker() as worker:
        others = [begin(client, worker.offer, Recorder()) for _ in range(3)]
        recorder = begin(client, worker.offer, Recorder(fail))
        await until(lambda: recorder.failures)
        assert len(recorder.failures) == 1
        assert [await each.ended() for each in others] == [EVENTS] * 3
    assert "a mistake" in caplog.text
    assert {each.name for each in caplog.records if each.levelno >= logging.ERROR} == {"headgate.gate"}


async def test_a_receiver_that_closed_its_attempt_gets_no_failure(
    client: HttpWorkerClient, caplog: pytest.LogCaptureFixture
) -> None:
    def close_and_fail(_: WorkEvent) -> None:
        recorder.attempt.close()
        raise RuntimeError("a mistake")

    async with raw_worker() as worker:
        recorder = begin(client, worker.offer, Recorder(close_and_fail))
        await until(lambda: recorder.events)
        await worker.abandoned()
    assert (recorder.events, recorder.failures) == (EVENTS[:1], [])
    assert "a mistake" in caplog.text


async def test_a_receiver_may_begin_the_next_attempt_with_the_last_event(client: HttpWorkerClient) -> None:
    async with raw_worker(answering(WHOLE)) as worker:
        second = Recorder()

        def begin_next(event: WorkEvent) -> None:
            if isinstance(event, Finished):
                begin(client, worker.offer, second)

        assert await begin(client, worker.offer, Recorder(begin_next)).ended() == EVENTS
        assert await second.ended() == EVENTS
        assert worker.connections == 1


async def test_a_slow_receiver_holds_up_its_own_worker_and_keeps_little(
    client: HttpWorkerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused attempt may be silent for longer than a worker. Then its receiver gets every event, in order."""
    count, sent = 20_000, 0
    tokens: list[WorkEvent] = [Token("x" * 1000, number) for number in range(count)]

    async def script(connection: Connection) -> None:
        nonlocal sent
        await connection.order()
        await connection.send(HEAD)
        for token in tokens:
            await connection.chunk(encode_event(token))
            sent += 1
        await connection.send(chunk(LINES[-1]) + END)

    def pause(_: WorkEvent) -> None:
        if len(recorder.events) in (1, 100, 10_000):
            recorder.attempt.pause()

    async with raw_worker(script) as worker:
        recorder = begin(client, worker.offer, Recorder(pause))
        for expected in (1, 100, 10_000):
            await until(lambda: recorder.failures or len(recorder.events) == expected)  # noqa: B023
            monkeypatch.setattr(http_connection, "SILENCE_S", 0.1)
            before = -1
            while sent != before:  # until the buffers of the kernel are full
                before = sent
                await asyncio.sleep(0.2)
            assert len(recorder.events) == expected
            assert sent < count
            kept = recorder.attempt._lines  # type: ignore[attr-defined]
            assert sum(map(len, kept)) < 1_000_000
            monkeypatch.setattr(http_connection, "SILENCE_S", HANG_S)
            recorder.attempt.resume()
            assert len(recorder.events) == expected, "nothing is delivered within resume"
        assert await recorder.ended() == [*tokens, EVENTS[-1]]


async def test_the_silence_of_a_pause_does_not_count_after_it(
    client: HttpWorkerClient, connections: HttpConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is the test's."""
    monkeypatch.setattr(worker_connections, "SWEEP_S", HANG_S)
    now = asyncio.get_running_loop().time()
    resumed = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.order()
        await connection.send(HEAD + chunk(LINES[0]))
        await resumed.wait()
        await connection.send(chunk(LINES[1] + LINES[2]) + END)

    async with raw_worker(script) as worker:

        def pause(event: WorkEvent) -> None:
            if event == EVENTS[0]:
                recorder.attempt.pause()

        recorder = begin(client, worker.offer, Recorder(pause))
        await until(lambda: recorder.events)
        (carrying,) = connections.busy
        carrying._time = lambda: now
        now += 1.2 * http_connection.SILENCE_S
        carrying.check(now)
        recorder.attempt.resume()
        await until(lambda: recorder.failures or not carrying._is_paused)
        now += 0.8 * http_connection.SILENCE_S
        carrying.check(now)
        resumed.set()
        assert await recorder.ended() == EVENTS


async def test_an_attempt_may_pause_before_it_is_connected(
    client: HttpWorkerClient, connections: HttpConnections
) -> None:
    async with raw_worker() as worker:
        recorder = begin(client, worker.offer, Recorder())
        recorder.attempt.pause()
        await until(lambda: any(each._is_paused for each in connections.busy))
        assert not recorder.events
        recorder.attempt.resume()
        assert await recorder.ended() == EVENTS


@pytest.mark.parametrize("cut", [None, len(HEAD) + 30])
async def test_what_arrived_before_a_pause_is_not_lost(client: HttpWorkerClient, cut: int | None) -> None:
    """Not even if the worker has died meanwhile."""
    async with raw_worker(answering(WHOLE[:cut], closes=True)) as worker:

        def pause(_: WorkEvent) -> None:
            recorder.attempt.pause()
            asyncio.get_running_loop().call_later(0.05, recorder.attempt.resume)

        recorder = begin(client, worker.offer, Recorder(pause))
        events = await recorder.ended()
        assert events == EVENTS[: len(events)]
        assert len(recorder.failures) == (0 if cut is None else 1)


async def test_a_thousand_at_once(client: HttpWorkerClient, connections: HttpConnections) -> None:
    async with raw_worker(
        answering(HEAD, 0.05, chunk(LINES[0]), chunk(LINES[1]), 0.05, chunk(LINES[2]) + END)
    ) as worker:
        recorders = [begin(client, worker.offer, Recorder()) for _ in range(1000)]
        assert [await each.ended() for each in recorders] == [EVENTS] * 1000
        assert (worker.connections, len(worker.orders)) == (1000, 1000)
        await until(lambda: not connections.busy)
        await asyncio.gather(*(begin(client, worker.offer, Recorder()).ended() for _ in range(1000)))
        assert worker.connections == 1000


async def test_orders_above_the_most_connections_wait_their_turn(
    client: HttpWorkerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_connections, "CONNECTIONS_MAX", 3)
    async with raw_worker(answering(0.02, WHOLE)) as worker:
        recorders = [begin(client, worker.offer, Recorder()) for _ in range(20)]
        assert [await each.ended() for each in recorders] == [EVENTS] * 20
        assert worker.connections <= 3
    async with raw_worker(answering(HEAD, chunk(LINES[0]), HANG_S)) as worker:
        served = [begin(client, worker.offer, Recorder()) for _ in range(3)]
        await until(lambda: all(each.events for each in served))
        monkeypatch.setattr(worker_connections, "CONNECT_S", 0.1)
        waiting = [begin(client, worker.offer, Recorder()) for _ in range(2)]
        assert [await each.ended() for each in waiting] == [[], []]
        assert [error.began for each in waiting for error in each.failures] == [False, False]
        assert not any(each.failures for each in served)
        assert len(worker.orders) == 3


async def test_the_time_to_connect_is_over_just_when_the_order_is_written(
    client: HttpWorkerClient, connections: HttpConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the worker may have the order."""
    loop = asyncio.get_running_loop()
    connect, timeout = loop.create_connection, asyncio.timeout
    times: list[asyncio.Timeout] = []

    def noted(seconds: float | None) -> asyncio.Timeout:
        times.append(timeout(seconds))
        return times[-1]

    async def connect_slowly(*arguments: Any, **options: Any) -> None:
        await connect(*arguments, **options)
        times[-1].reschedule(loop.time())
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "timeout", noted)
    monkeypatch.setattr(loop, "create_connection", connect_slowly)
    async with raw_worker(answering()) as worker:
        recorder = begin(client, worker.offer, Recorder())
        await recorder.ended()
        assert [error.began for error in recorder.failures] == [True]
        assert not connections.busy
        await worker.abandoned()
        assert worker.orders == ["i"]


async def test_closing_the_client_fails_what_runs(client: HttpWorkerClient) -> None:
    async with raw_worker(answering(HEAD, chunk(LINES[0]))) as worker:
        running = begin(client, worker.offer, Recorder())
        await until(lambda: running.events)
        connecting = begin(client, worker.offer, Recorder())
        await client.close()
        assert [error.began for error in running.failures] == [True]
        assert [error.began for error in connecting.failures] == [False]
        await worker.abandoned()


# ── Addresses ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url",
    [
        "http://w/\r\nx: y",
        "http://w y",
        "http://u:p@w",
        "http://w?q",
        "http://w#f",
        "http://w:0",
        "http://[::1",
        "http://ö",
    ],
)
async def test_an_address_with_more_than_a_server_and_a_path_is_none(client: HttpWorkerClient, url: str) -> None:
    recorder = begin(client, Offer("i", 1, "w", url, 0), Recorder())
    await recorder.ended()
    assert [str(error) for error in recorder.failures] == ["The worker cannot be reached: InvalidURL."]


async def test_a_header_cannot_end_its_line(connections: HttpConnections) -> None:
    for bad in ("a\r\nx: y", "a\nb", "a\0", "ö"):
        with pytest.raises(ValueError, match="not allowed"):
            connections.post("http://127.0.0.1:9", {"x": bad}, b"", _Bytes())


async def test_a_path_and_a_host_are_sent(client: HttpWorkerClient) -> None:
    async with raw_worker() as worker:
        url = worker.offer.url
        for path in ("", "/"):
            with_path = worker.offer._replace(url=f"{url}/behind/a%20proxy{path}")
            assert await begin(client, with_path, Recorder()).ended() == EVENTS
        host = url.removeprefix("http://").encode()
        assert worker.heads[0].startswith(b"POST /behind/a%20proxy/v1/execute HTTP/1.1\r\nhost: " + host + b"\r\n")


async def test_ipv6(client: HttpWorkerClient) -> None:
    async with raw_worker(host="::1") as worker:
        assert await begin(client, worker.offer, Recorder()).ended() == EVENTS
        assert b"\r\nhost: [::1]:" in worker.heads[0]


async def test_tls_with_a_certificate_that_is_checked(
    client: HttpWorkerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, trusting = _certificate(tmp_path)
    async with raw_worker(tls=served) as worker:
        stranger = begin(client, worker.offer, Recorder())
        await stranger.ended()
        assert [error.began for error in stranger.failures] == [False]
        monkeypatch.setattr(worker_connections, "_tls", lambda: trusting)
        for _ in range(2):
            assert await begin(client, worker.offer, Recorder()).ended() == EVENTS
        assert len(worker.orders) == 2


def _certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make a certificate of 127.0.0.1. Return the contexts of a server with it and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "worker")])
    day = datetime.timedelta(days=1)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "worker.pem"
    file.write_bytes(secret + made)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(file)
    return served, ssl.create_default_context(cadata=made.decode())


async def test_the_sockets_are_set_up(
    client: HttpWorkerClient, connections: HttpConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "SILENCE_S", SILENCE_S)
    async with raw_worker(answering(HEAD, chunk(LINES[0]))) as worker:
        events = streamed(client, worker.offer, order())
        await anext(events)
        (connection,) = connections.busy
        made = connection._transport.get_extra_info("socket")
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
        await events.aclose()
