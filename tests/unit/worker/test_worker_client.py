"""The gate's client: the events that it makes of a worker's answer, also of a broken or silent one."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import WorkerFailed
from dispatcher.model.execution_token import EXECUTION_TOKEN_TTL_S, cache_salt, verify
from dispatcher.model.worker_protocol import Alive, Finished, Started, Token, WorkEvent, WorkRefused
from dispatcher.workers.client import CLOSING_S, LINE_BYTES_MAX, HttpWorkerClient
from dispatcher.workers.connections import BrokenConnection, NotSent
from dispatcher.workers.wire import encode_event
from tests.support.virtual_time import START, LoopClock, run
from tests.support.worker.connections import Posted, ScriptedAnswer, ScriptedConnections
from tests.support.worker.harness import SECRET, SECRETS, WorkerHarness, offer, order

pytestmark = pytest.mark.virtual_time

WHOLE = [
    encode_event(Started(1)),
    encode_event(Alive()),
    encode_event(Token("a", 1)),
    encode_event(Finished("stop", 1, 1)),
]
EVENTS = [Started(1), Token("a", 1), Finished("stop", 1, 1)]
OFFER = offer(order())


def client_of(answer: ScriptedAnswer | Callable[[Posted], ScriptedAnswer]) -> HttpWorkerClient:
    connections = ScriptedConnections(answer if callable(answer) else lambda _: answer)
    return HttpWorkerClient(secrets=SECRETS, clock=LoopClock(), connections=connections)


def events_from(answer: ScriptedAnswer | Callable[[Posted], ScriptedAnswer]) -> list[WorkEvent]:
    async def story() -> list[WorkEvent]:
        return [event async for event in client_of(answer).execute(OFFER, order())]

    return run(story())


def refused(status: int, fields: object) -> ScriptedAnswer:
    return ScriptedAnswer(json.dumps(fields).encode(), status=status)


def test_events_come_through_and_signs_of_life_are_dropped() -> None:
    assert events_from(ScriptedAnswer(*WHOLE)) == EVENTS


@given(st.integers(1, 40))
def test_however_the_network_cuts_them(size: int) -> None:
    whole = b"".join(WHOLE)
    assert events_from(ScriptedAnswer(*(whole[at : at + size] for at in range(0, len(whole), size)))) == EVENTS


@given(st.text())
def test_any_text_comes_through(text: str) -> None:
    assert events_from(ScriptedAnswer(encode_event(Token(text, 1)), WHOLE[-1]))[0] == Token(text, 1)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c", "\r", "\n"])
def test_what_ends_a_line_elsewhere_ends_none_here(separator: str) -> None:
    raw = json.dumps({"event": "token", "text": f"a{separator}b", "output_tokens": 1}, ensure_ascii=False).encode()
    assert events_from(ScriptedAnswer(raw + b"\n", WHOLE[-1]))[0] == Token(f"a{separator}b", 1)


def test_nothing_counts_after_the_end() -> None:
    assert events_from(ScriptedAnswer(*WHOLE, encode_event(Token("b", 2)))) == EVENTS


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
        events_from(ScriptedAnswer(*lines))
    assert failed.value.began


@pytest.mark.parametrize(
    ("error", "began"), [(NotSent("ClientConnectorError"), False), (BrokenConnection("SocketTimeoutError"), True)]
)
def test_a_worker_that_cannot_be_reached_is_a_failure(error: Exception, began: bool) -> None:
    """The work surely did not begin only if no byte of the order was sent."""

    def refuse(_: Posted) -> ScriptedAnswer:
        raise error

    with pytest.raises(WorkerFailed, match=str(error)) as failed:
        events_from(refuse)
    assert failed.value.began == began


@pytest.mark.parametrize("status", [401, 404, 409, 413, 422, 503])
def test_a_refusal_keeps_its_status_and_code(status: int) -> None:
    fields = {"event": "refused", "status": 1, "code": "c", "message": "m"}
    assert events_from(refused(status, fields)) == [WorkRefused(status, "c", "m")]
    final = refused(status, {**fields, "final": True})
    assert events_from(final) == [WorkRefused(status, "c", "m", final=True)]


@pytest.mark.parametrize(
    ("sent", "known"),
    [(7, 7.0), (0.5, 0.5), (0, 0.0), (-1, None), (1e9, None), ("7", None), (True, None), (None, None)],
)
def test_a_valid_retry_after_is_passed_on(sent: object, known: float | None) -> None:
    fields = {"status": 429, "code": "overloaded", "message": "m", "retry_after_s": sent}
    whole = WorkRefused(429, "overloaded", "m", known)
    assert events_from(refused(429, {"event": "refused", **fields})) == [whole]
    assert (
        events_from(ScriptedAnswer(WHOLE[0], json.dumps({"event": "refused", **fields}).encode() + b"\n"))[1] == whole
    )


async def test_a_tenants_cache_salt_is_its_own_and_the_secrets() -> None:
    harness = WorkerHarness()
    for name, tenant in (("1", "a"), ("2", "a"), ("3", "b")):
        await harness.execute(order(name, tenant=tenant, cache_salt="the client's"))
    mine, mine_again, others = [request.cache_salt for request in harness.engine.requests]
    assert mine == mine_again == cache_salt("a", SECRET)
    assert re.fullmatch(r"[0-9a-f]{64}", mine)
    assert len({mine, others, cache_salt("a", b"another fleet's secret")}) == 3


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"{}", b"[" * 100_000, b"\xff"])
def test_a_refusal_that_is_no_event_is_one_too(content: bytes) -> None:
    (event,) = events_from(ScriptedAnswer(content, status=502))
    assert isinstance(event, WorkRefused)
    assert (event.status, event.code) == (502, "worker_refused")


def test_the_order_is_signed_for_this_worker_its_bytes_and_a_short_time() -> None:
    seen: list[Posted] = []

    def take(posted: Posted) -> ScriptedAnswer:
        seen.append(posted)
        return ScriptedAnswer(*WHOLE)

    events_from(take)
    token = seen[0].headers["authorization"].removeprefix("Bearer ")
    opened = verify(token, SECRETS, worker="w", body=seen[0].body, now=START)
    assert (opened.execution, opened.expires_at) == ("i#1", START + EXECUTION_TOKEN_TTL_S)


def test_the_longest_prompt_that_the_gate_accepts_fits_whatever_its_letters() -> None:
    """400,000 letters of two bytes each: escaped they would be six."""
    (event,) = run(WorkerHarness().execute(order(body={"prompt": "é" * 400_000})))
    assert isinstance(event, WorkRefused)
    assert event.code == "context_length_exceeded"


def test_a_line_that_does_not_end_is_not_kept() -> None:
    answer = ScriptedAnswer(*[b"x" * (LINE_BYTES_MAX // 10)] * 100)
    with pytest.raises(WorkerFailed):
        events_from(answer)
    assert len(answer.chunks) > 80


def test_an_answer_is_read_to_its_end_so_that_its_connection_serves_the_next() -> None:
    answer = ScriptedAnswer(*WHOLE)
    assert events_from(answer) == EVENTS
    assert answer.was_read_to_end
    assert answer.is_closed


async def test_but_not_waited_for() -> None:
    answer = ScriptedAnswer(*WHOLE, then_s=1000)
    assert [event async for event in client_of(answer).execute(OFFER, order())] == EVENTS
    assert answer.is_closed
    assert asyncio.get_running_loop().time() - START == pytest.approx(CLOSING_S)


async def test_closing_the_generator_closes_the_connection() -> None:
    answer = ScriptedAnswer(*WHOLE)
    events = client_of(answer).execute(OFFER, order())
    await anext(events)
    await events.aclose()
    assert answer.is_closed
    assert not answer.was_read_to_end
