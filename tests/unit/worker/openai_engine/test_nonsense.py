"""A server that sends nonsense: an error for that request alone, a charge for what was delivered, nothing stuck."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.interface import Finished, Token, WorkOrder, own_order
from gpu_worker.engines.openai.engine import OpenAiEngine
from gpu_worker.engines.openai.sse import LINE_BYTES_MAX
from gpu_worker.policies.fairness.tiered import make_queue
from tests.support.worker.openai_server import (
    CARD,
    DONE,
    JSON,
    FakeServer,
    Script,
    chunk,
    counting,
    data,
    engine_of,
    last,
    options,
    outcome,
    says,
    text,
    usage,
)
from tests.support.worker.raw_worker import Connection, RawWorker, raw_worker
from tests.support.worker.raw_worker import chunk as piece
from tests.support.world.virtual_time import run

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
TEXT = chunk("a", usage=(7, 1))


def asked(name: str = "a", tokens: int = 10, **given: Any) -> WorkOrder:
    return own_order(name, given.pop("tenant", "tenant"), CHAT, tokens, Endpoint.CHAT, **given)


async def endless(_body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    while True:
        await asyncio.sleep(0)
        yield chunk("again")


async def endless_comments(_body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    while True:
        await asyncio.sleep(0)
        yield b": ping\n\n" * 10_000


async def endless_line(_body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    yield b"data: "
    while True:
        await asyncio.sleep(0)
        yield b"x" * (LINE_BYTES_MAX // 4)


HOSTILE: dict[str, Script] = {
    "no JSON": says(TEXT, b"data: nonsense\n\n"),
    "a list": says(TEXT, data([1, 2])),
    "NaN": says(TEXT, b'data: {"choices": [{"index": 0, "delta": {"x": NaN}}]}\n\n'),
    "too deep": says(TEXT, data({"choices": [{"index": 0, "delta": {"x": json.loads("[" * 90 + "]" * 90)}}]})),
    "far too deep": says(TEXT, b"data: " + b"[" * 200_000 + b"\n\n"),
    "infinite": says(TEXT, b'data: {"choices": [{"index": 0, "delta": {"x": [1e999]}}]}\n\n'),
    "half a line": says(TEXT, chunk("b")[:20]),
    "half a line and its end": says(TEXT, chunk("b")[:20], b"\n", DONE),
    "an endless body": endless,
    "endless comments": endless_comments,
    "an endless line": endless_line,
    "an error in the middle": says(TEXT, data({"error": {"message": "canary", "code": 500}}), DONE),
    "an error as text": says(TEXT, data({"error": "canary"}), DONE),
    "an unknown finish reason": says(TEXT, chunk(reason="abort"), DONE),
    "a finish reason that is no text": says(data({"choices": [{"index": 0, "finish_reason": {}}]}), DONE),
    "a wrong index": says(TEXT, chunk("b", index=1), DONE),
    "a negative index": says(TEXT, chunk("b", index=-1), DONE),
    "a text that is no text": says(TEXT, data({"choices": [{"index": 0, "delta": {"content": 5}}]}), DONE),
    "a delta that is no object": says(TEXT, data({"choices": [{"index": 0, "delta": "x"}]}), DONE),
    "a choice that is no object": says(TEXT, data({"choices": ["x"]}), DONE),
    "another format": says(b"event: token\n", b"data: hello\n\n"),
}


class TestAnAnswerThatIsNone:
    @pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE)
    @pytest.mark.virtual_time
    async def test_ends_its_request_alone(self, script: Script) -> None:
        async def by_tenant(body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
            async for part in (script if body["max_tokens"] == 10 else counting)(body):
                yield part

        server = FakeServer(by_tenant)
        async with engine_of(server, places=2) as engine:
            both = await asyncio.gather(outcome(engine, asked()), outcome(engine, asked("b", 20, tenant="other")))
            assert engine.stats().running == engine.stats().waiting == 0
            (events, error), (others, none), engine = *both, engine
        assert error is not None
        assert error.code == "generation_failed"
        assert "canary" not in error.message
        assert none is None
        assert last(others) == Finished("length", 7, 20)
        assert server.open == 0
        received = engine.stats().tenants["tenant"].output_tokens
        assert received == max((each.output_tokens for each in events if not hasattr(each, "input_tokens")), default=0)
        assert received <= 10

    @pytest.mark.parametrize(
        "body",
        [
            b"nonsense",
            b"[]",
            b'{"data": []}',
            b'{"data": [{"index": 0, "embedding": []}]}',
            b'{"data": [{"index": 1, "embedding": [1]}]}',
            b'{"data": [{"index": {}, "embedding": [1]}]}',
            b'{"data": [{"embedding": [1, "x"]}]}',
            b'{"data": [{"embedding": [1e999]}]}',
            b'{"data": [{"embedding": [1]}, {"embedding": [1]}]}',
        ],
    )
    @pytest.mark.virtual_time
    async def test_of_embeddings_ends_its_request(self, body: bytes) -> None:
        async with engine_of(FakeServer(says(body), content_type=JSON)) as engine:
            _, error = await outcome(engine, own_order("a", "t", {"input": "x"}, 0, Endpoint.EMBEDDINGS))
        assert error is not None
        assert error.code == "generation_failed"


def finished(*parts: bytes, tokens: int = 100) -> Finished:
    async def story() -> Finished:
        async with engine_of(FakeServer(says(*parts))) as engine:
            events, error = await outcome(engine, asked(tokens=tokens))
            assert error is None
            assert engine.stats().tenants["tenant"].output_tokens >= last(events).output_tokens
            return last(events)

    return run(story())


class TestWrongCounts:
    """Fifty pieces are about fifty tokens, whatever the server reports."""

    PIECES = (*(chunk("a") for _ in range(50)), chunk(reason="stop"))

    @pytest.mark.parametrize("count", [0, 1, -5, 101, 10**30, 2.5, True, "50", None, [50]])
    def test_at_the_end_are_ignored(self, count: Any) -> None:
        assert finished(*self.PIECES, usage(7, count), DONE).output_tokens == 50

    @pytest.mark.parametrize("count", [0, 1, -5, 101, 10**30, 2.5, True, "50", None, [50]])
    def test_on_the_way_are_ignored(self, count: Any) -> None:
        pieces = [chunk("a", usage=(7, count)) for _ in range(50)]
        assert finished(*pieces, chunk(reason="stop"), DONE).output_tokens == 50

    def test_that_fall_are_ignored(self) -> None:
        pieces = [chunk("a", usage=(7, 50 - number)) for number in range(50)]
        assert finished(*pieces, chunk(reason="stop"), DONE).output_tokens >= 50

    @pytest.mark.parametrize("count", [0, -1, 1001, 10**30, 2.5, True, "7", None])
    def test_of_the_prompt_leave_the_estimate(self, count: Any) -> None:
        assert finished(*self.PIECES, usage(count, 50), DONE).input_tokens == 3

    @pytest.mark.parametrize("report", [b"data: {}\n\n", data({"choices": [], "usage": [1]}), data({"usage": 5}), b""])
    def test_no_usage_leaves_the_count_of_the_pieces(self, report: bytes) -> None:
        assert finished(*self.PIECES, report, DONE) == Finished("stop", 3, 50)

    def test_more_pieces_than_tokens_cost_no_more_than_the_request_allows(self) -> None:
        assert finished(*self.PIECES, DONE, tokens=20).output_tokens == 20

    def test_true_counts_above_the_pieces_are_used(self) -> None:
        assert finished(*self.PIECES, usage(7, 99), DONE) == Finished("stop", 7, 99)


@pytest.mark.virtual_time
async def test_a_lone_surrogate_is_replaced() -> None:
    script = says(b'data: {"choices": [{"index": 0, "delta": {"content": "\\ud83d"}, "finish_reason": "stop"}]}\n\n')
    async with engine_of(FakeServer(script)) as engine:
        assert text((await outcome(engine, asked()))[0]) == "\ufffd"


@pytest.mark.virtual_time
async def test_an_answer_that_stays_open_after_its_end_is_over() -> None:
    async def open_for_ever(_body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        yield TEXT
        yield chunk(reason="stop")
        await asyncio.Event().wait()

    server = FakeServer(open_for_ever)
    async with engine_of(server) as engine:
        events, error = await outcome(engine, asked())
    assert (error, server.open) == (None, 0)
    assert last(events) == Finished("stop", 7, 1)


# ── What only a real connection can do ────────────────────────────────────────────────────────────────────────────────

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def engine_before(
    *parts: bytes, closes: bool = True, silence_s: float = 300.0
) -> AsyncIterator[tuple[OpenAiEngine, RawWorker]]:
    """An engine before a server that sends these parts of an answer, and then closes the connection, or waits."""

    async def script(connection: Connection) -> None:
        if (head := await connection.head()).startswith(b"GET"):
            body = json.dumps({"data": [CARD]}).encode()
            await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        else:
            await connection.body(head)
            for part in parts:
                await connection.send(part)
        if closes or head.startswith(b"GET"):
            connection.writer.close()

    async with raw_worker(script) as server:
        url = f"{server.offer.url}/v1"
        engine = OpenAiEngine(make_queue("vtc"), options(url=url, silence_s=silence_s), places=4)
        await engine.start()
        try:
            yield engine, server
        finally:
            await engine.stop()


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ([HEAD + piece(TEXT)], 1),
        ([], 0),
        ([b"nonsense\r\n\r\n"], 0),
        ([b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000], 0),
        ([HEAD + b"zz\r\nnonsense"], 0),
    ],
    ids=["in the middle", "before the answer", "no HTTP", "endless headers", "no chunk"],
)
async def test_a_disconnect_and_what_is_no_http_end_the_request(parts: list[bytes], tokens: int) -> None:
    async with engine_before(*parts) as (engine, _):
        events, error = await outcome(engine, asked())
    assert error is not None
    assert error.code == "generation_failed"
    assert max((event.output_tokens for event in events if isinstance(event, Token)), default=0) == tokens


@pytest.mark.parametrize("beginning", [b"", HEAD, HEAD + piece(TEXT), b"HTTP/1.1 200 OK\r\n"])
async def test_silence_ends_the_request(beginning: bytes) -> None:
    async with engine_before(beginning, closes=False, silence_s=0.1) as (engine, _):
        _, error = await outcome(engine, asked())
    assert error is not None
    assert error.code == "generation_failed"


async def test_an_abort_closes_the_connection() -> None:
    async with engine_before(HEAD + piece(TEXT), closes=False) as (engine, server):
        events = []
        async for event in engine.generate(asked()):
            events.append(event)
            if len(events) == 3:
                await engine.abort("a")
        await server.abandoned()
    assert last(events) == Finished("aborted", 7, 1)


async def test_a_whole_answer_needs_no_empty_lines() -> None:
    body = (TEXT + chunk(reason="stop") + DONE).replace(b"\n\n", b"\r\n")
    pieces = [piece(body[number : number + 7]) for number in range(0, len(body), 7)]
    async with engine_before(HEAD, *pieces, b"0\r\n\r\n") as (engine, _):
        events, error = await outcome(engine, asked())
    assert error is None
    assert last(events) == Finished("stop", 7, 1)
