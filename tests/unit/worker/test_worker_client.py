"""The gate's client: the events that it makes of a worker's answer, also of a broken or silent one."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.commands import Offer
from dispatcher.model.errors import WorkerFailed
from dispatcher.model.execution_token import EXECUTION_TOKEN_TTL_S, cache_salt, verify
from dispatcher.model.worker_protocol import Alive, Finished, Started, Token, WorkEvent, WorkRefused
from dispatcher.worker_client import CLOSING_S, LINE_BYTES_MAX, SILENCE_S, HttpWorkerClient
from dispatcher.worker_wire import encode_event
from gpu_worker.__main__ import bound
from headgate.simulator.virtual_time import START, LoopClock, run
from tests.support.worker.harness import SECRET, WorkerHarness, offer, order

WHOLE = [
    encode_event(Started(1)),
    encode_event(Alive()),
    encode_event(Token("a", 1)),
    encode_event(Finished("stop", 1, 1)),
]
EVENTS = [Started(1), Token("a", 1), Finished("stop", 1, 1)]
OFFER = offer(order())


def events_from(
    answer: httpx.Response | Callable[[httpx.Request], httpx.Response],
) -> list[WorkEvent]:
    handler = answer if callable(answer) else lambda _: answer
    client = HttpWorkerClient(secret=SECRET, clock=LoopClock(), transport=httpx.MockTransport(handler))

    async def story() -> list[WorkEvent]:
        return [event async for event in client.execute(OFFER, order())]

    return run(story())


def streamed(*chunks: bytes) -> httpx.Response:
    async def content() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return httpx.Response(200, content=content())


def test_events_come_through_and_signs_of_life_are_dropped() -> None:
    assert events_from(streamed(*WHOLE)) == EVENTS


@given(st.integers(1, 40))
def test_however_the_network_cuts_them(size: int) -> None:
    whole = b"".join(WHOLE)
    assert events_from(streamed(*(whole[at : at + size] for at in range(0, len(whole), size)))) == EVENTS


@given(st.text())
def test_any_text_comes_through(text: str) -> None:
    assert events_from(streamed(encode_event(Token(text, 1)), WHOLE[-1]))[0] == Token(text, 1)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c", "\r", "\n"])
def test_what_ends_a_line_elsewhere_ends_none_here(separator: str) -> None:
    raw = json.dumps({"event": "token", "text": f"a{separator}b", "output_tokens": 1}, ensure_ascii=False).encode()
    assert events_from(streamed(raw + b"\n", WHOLE[-1]))[0] == Token(f"a{separator}b", 1)


def test_nothing_counts_after_the_end() -> None:
    assert events_from(streamed(*WHOLE, encode_event(Token("b", 2)))) == EVENTS


@pytest.mark.parametrize(
    "lines",
    [
        [],
        WHOLE[:1],
        WHOLE[:3],
        [b"no json\n"],
        [b"\n"],
        [b"[]\n"],
        [b"7\n"],
        [b'{"event":"song"}\n'],
        [b'{"event":"started"}\n'],
        [b'{"event":"started","input_tokens":"1"}\n'],
        [b'{"event":"token","text":null,"output_tokens":1}\n'],
        [b'{"event":"finished","reason":"stop","input_tokens":1}\n'],
        [b"\xff\xfe\n"],
        [b"[" * 100_000 + b"\n"],
        [b"x" * (LINE_BYTES_MAX + 1)],
        [WHOLE[-1][:-10]],
    ],
)
def test_a_stream_that_breaks_off_or_makes_no_sense_is_a_failure(lines: list[bytes]) -> None:
    with pytest.raises(WorkerFailed) as failed:
        events_from(streamed(*lines))
    assert failed.value.began


@pytest.mark.parametrize(
    ("error", "began"),
    [
        (httpx.ConnectError, False),
        (httpx.ConnectTimeout, False),
        (httpx.PoolTimeout, False),
        (httpx.ReadError, True),
        (httpx.WriteError, True),
        (httpx.ReadTimeout, True),
        (httpx.RemoteProtocolError, True),
    ],
)
def test_a_worker_that_cannot_be_reached_is_a_failure(error: type[httpx.TransportError], began: bool) -> None:
    """Only without a connection it is certain that the work did not begin."""

    def refuse(_: httpx.Request) -> httpx.Response:
        raise error("refused")

    with pytest.raises(WorkerFailed, match=error.__name__) as failed:
        events_from(refuse)
    assert failed.value.began == began


@pytest.mark.parametrize("url", ["", "http://[", "nonsense", "ftp://w", "http://\n"])
def test_an_address_that_is_none_is_a_failure(url: str) -> None:
    async def story() -> None:
        client = HttpWorkerClient(secret=SECRET, clock=LoopClock())
        async for _ in client.execute(Offer("i", 1, "w", url, 0), order()):
            pass

    with pytest.raises(WorkerFailed) as failed:
        asyncio.run(story())
    assert not failed.value.began


async def test_a_port_where_nothing_listens_means_that_the_work_did_not_begin() -> None:
    with bound("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
    client = HttpWorkerClient(secret=SECRET, clock=LoopClock())
    with pytest.raises(WorkerFailed) as failed:
        async for _ in client.execute(Offer("i", 1, "w", f"http://127.0.0.1:{port}", 0), order()):
            pass
    await client.close()
    assert not failed.value.began


@pytest.mark.parametrize("status", [401, 404, 409, 413, 422, 503])
def test_a_refusal_keeps_its_status_and_code(status: int) -> None:
    fields = {"event": "refused", "status": 1, "code": "c", "message": "m"}
    assert events_from(httpx.Response(status, json=fields)) == [WorkRefused(status, "c", "m")]
    final = httpx.Response(status, json={**fields, "final": True})
    assert events_from(final) == [WorkRefused(status, "c", "m", final=True)]


@pytest.mark.parametrize(
    ("sent", "known"),
    [(7, 7.0), (0.5, 0.5), (0, 0.0), (-1, None), (1e9, None), ("7", None), (True, None), (None, None)],
)
def test_a_valid_retry_after_is_passed_on(sent: object, known: float | None) -> None:
    fields = {"status": 429, "code": "overloaded", "message": "m", "retry_after_s": sent}
    whole = WorkRefused(429, "overloaded", "m", known)
    assert events_from(httpx.Response(429, json={"event": "refused", **fields})) == [whole]
    assert events_from(streamed(WHOLE[0], json.dumps({"event": "refused", **fields}).encode() + b"\n"))[1] == whole


def test_a_tenants_cache_salt_is_its_own_and_the_secrets() -> None:
    async def story() -> list[str]:
        harness = WorkerHarness()
        for name, tenant in (("1", "a"), ("2", "a"), ("3", "b")):
            await harness.execute(order(name, tenant=tenant, cache_salt="the client's"))
        return [request.cache_salt for request in harness.engine.requests]

    mine, mine_again, others = run(story())
    assert mine == mine_again == cache_salt("a", SECRET)
    assert re.fullmatch(r"[0-9a-f]{64}", mine)
    assert len({mine, others, cache_salt("a", b"another fleet's secret")}) == 3


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"{}", b"[" * 100_000, b"\xff"])
def test_a_refusal_that_is_no_event_is_one_too(content: bytes) -> None:
    (refused,) = events_from(httpx.Response(502, content=content))
    assert isinstance(refused, WorkRefused)
    assert (refused.status, refused.code) == (502, "worker_refused")


def test_the_order_is_signed_for_this_worker_its_bytes_and_a_short_time() -> None:
    seen: list[httpx.Request] = []

    def take(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return streamed(*WHOLE)

    events_from(take)
    token = seen[0].headers["authorization"].removeprefix("Bearer ")
    opened = verify(token, SECRET, worker="w", body=seen[0].content, now=START)
    assert (opened.execution, opened.expires_at) == ("i#1", START + EXECUTION_TOKEN_TTL_S)


def test_the_longest_prompt_that_the_gate_accepts_fits_whatever_its_letters() -> None:
    """400,000 letters of two bytes each: escaped they would be six."""
    (refused,) = run(WorkerHarness().execute(order(body={"prompt": "é" * 400_000})))
    assert isinstance(refused, WorkRefused)
    assert refused.code == "context_length_exceeded"


def test_a_line_that_does_not_end_is_not_kept() -> None:
    read = 0

    async def content() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(100):
            read += LINE_BYTES_MAX // 10
            yield b"x" * (LINE_BYTES_MAX // 10)

    with pytest.raises(WorkerFailed):
        events_from(httpx.Response(200, content=content()))
    assert read < 2 * LINE_BYTES_MAX


class Wire:
    """A connection as httpx sees it, with what became of it."""

    def __init__(self, chunks: list[bytes], *, then_s: float = 0.0) -> None:
        self.chunks = chunks
        self.then_s = then_s
        self.read_to_end = False
        self.closed = False

    def response(self) -> httpx.Response:
        wire = self

        class Stream(httpx.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                for chunk in wire.chunks:
                    yield chunk
                await asyncio.sleep(wire.then_s)
                wire.read_to_end = True

            async def aclose(self) -> None:
                wire.closed = True

        return httpx.Response(200, stream=Stream())

    def client(self) -> HttpWorkerClient:
        transport = httpx.MockTransport(lambda _: self.response())
        return HttpWorkerClient(secret=SECRET, clock=LoopClock(), transport=transport)


def test_an_answer_is_read_to_its_end_so_that_its_connection_serves_the_next() -> None:
    async def story() -> Wire:
        wire = Wire(WHOLE)
        assert [event async for event in wire.client().execute(OFFER, order())] == EVENTS
        return wire

    wire = run(story())
    assert wire.read_to_end
    assert wire.closed


def test_but_not_waited_for() -> None:
    async def story() -> float:
        wire = Wire(WHOLE, then_s=1000)
        assert [event async for event in wire.client().execute(OFFER, order())] == EVENTS
        assert wire.closed
        return asyncio.get_running_loop().time() - START

    assert run(story()) == pytest.approx(CLOSING_S)


def test_closing_the_generator_closes_the_connection() -> None:
    async def story() -> Wire:
        wire = Wire(WHOLE)
        events = wire.client().execute(OFFER, order())
        await anext(events)
        await events.aclose()
        return wire

    wire = run(story())
    assert wire.closed
    assert not wire.read_to_end


def test_silence_is_bounded() -> None:
    client = HttpWorkerClient(secret=SECRET, clock=LoopClock())
    timeout = client._http.timeout
    assert timeout.read == SILENCE_S
    assert None not in (timeout.connect, timeout.write, timeout.pool)
