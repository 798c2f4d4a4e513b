"""The gate's client: orders and events as bytes, and the events of a broken or silent worker."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import WorkerFailed
from dispatcher.model.fleet_secrets import EXECUTION_TOKEN_TTL_S, cache_salt, verify
from dispatcher.model.requests import Endpoint
from dispatcher.model.worker_protocol import Alive, Finished, Started, Token, WorkEvent, WorkRefused
from dispatcher.policies.tiers import Tier
from dispatcher.workers.client import LINE_BYTES_MAX, HttpWorkerClient
from dispatcher.workers.http_connection import BrokenConnection, NotSent
from dispatcher.workers.wire import OrderRefused, encode_event, encode_order, parse_event, parse_order
from gpu_worker.service.executions.engine_reader import engine_order
from tests.support.attempts import streamed
from tests.support.worker.connections import Posted, ScriptedAnswer, ScriptedConnections
from tests.support.worker.harness import SECRET, SECRETS, WorkerHarness, offer, order
from tests.support.world.virtual_time import START, LoopClock, run

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
        return [event async for event in streamed(client_of(answer), OFFER, order())]

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


async def test_the_tenants_of_a_group_have_one_cache_salt() -> None:
    harness = WorkerHarness()
    for name, tenant, group in (("1", "a", "g"), ("2", "b", "g"), ("3", "g", ""), ("4", "a", "h"), ("5", "a", "")):
        await harness.execute(order(name, tenant=tenant, prefix_group=group))
    salts = [request.cache_salt for request in harness.engine.requests]
    assert salts[0] == salts[1] == cache_salt("anyone", SECRET, "g")
    assert len(set(salts)) == 4
    assert [request.prefix_group for request in harness.engine.requests] == [""] * 5


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


async def test_a_connection_is_released_with_the_last_event() -> None:
    """Not with the end of the answer, for which the connection waits alone (test_worker_sockets.py)."""
    answer = ScriptedAnswer(*WHOLE, then_s=1000)
    connections = ScriptedConnections(lambda _: answer)
    client = HttpWorkerClient(secrets=SECRETS, clock=LoopClock(), connections=connections)
    assert [event async for event in streamed(client, OFFER, order())] == EVENTS
    (exchange,) = connections.exchanges
    assert exchange.is_released
    assert not answer.is_closed
    assert asyncio.get_running_loop().time() == START


async def test_closing_the_attempt_closes_the_connection() -> None:
    answer = ScriptedAnswer(*WHOLE)
    events = streamed(client_of(answer), OFFER, order())
    await anext(events)
    await events.aclose()
    await asyncio.sleep(0)
    assert answer.is_closed
    assert not answer.was_read_to_end


GOOD = json.loads(encode_order(order()))


def test_the_engine_gets_what_the_gate_ordered() -> None:
    body = {"prompt": "hello", "seed": -(2**63), "stop": ["\n", "END"], "tools": [{"type": "function"}], "top_p": 0.5}
    work = order(body=body, choices=3)
    request = engine_order(parse_order(encode_order(work)), START)
    assert (request.execution, request.terms.tenant, request.choices) == (work.execution, "a", 3)
    assert (request.endpoint, request.body) == (Endpoint.COMPLETION, body)


def test_tier_stage_salt_and_time_limit_reach_the_engine() -> None:
    work = order(tier=Tier.PREMIUM, app="chat", stage=2, interaction="i-7", cache_salt="s", deadline_at=START + 9)
    request = engine_order(parse_order(encode_order(work)), START + 2)
    assert (request.tier, request.stage, request.terms.interaction, request.cache_salt) == (Tier.PREMIUM, 2, "i-7", "s")
    assert request.timeout_s == 7.0
    assert request.terms.app == "a/chat", "no tenant's application is another's"
    late = engine_order(parse_order(encode_order(work)), START + 20)
    assert late.timeout_s == 0.0
    assert engine_order(parse_order(encode_order(order())), START).terms.app == ""


def test_a_trace_is_checked_and_may_be_missing() -> None:
    traced = order(trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    assert parse_order(encode_order(traced)) == traced
    assert "trace" not in GOOD, "a worker of an older version knows no such field"
    assert parse_order(json.dumps(GOOD).encode()).trace == ""
    for bad in ("hello", traced.trace + "x", traced.trace.upper(), f"{traced.trace}\n"):
        with pytest.raises(OrderRefused, match=r"^trace: string_pattern_mismatch$"):
            parse_order(json.dumps(GOOD | {"trace": bad}).encode())


@pytest.mark.parametrize("name", sorted(GOOD))
def test_no_field_may_be_missing(name: str) -> None:
    with pytest.raises(OrderRefused, match=f"^{name}: missing$"):
        parse_order(json.dumps({key: value for key, value in GOOD.items() if key != name}).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tenant", ""),
        ("tenant", "t" * 129),
        ("attempt", 0),
        ("attempt", 10**30),
        ("slot", 0),
        ("durable", 1),
        ("durable", None),
        ("weight", 0),
        ("weight", float("nan")),
        ("weight", float("inf")),
        ("tier", "royal"),
        ("deadline_at", float("nan")),
        ("deadline_at", float("-inf")),
        ("deadline_at", "soon"),
        ("endpoint", "speech"),
        ("body", []),
        ("body", None),
        ("choices", 0),
        ("max_tokens", -1),
        ("max_tokens", 1e400),
        ("stage", -1),
        ("stage", "first"),
        ("app", "a" * 65),
        ("interaction", "i" * 65),
        ("cache_salt", "s" * 65),
        ("priority", 1),
        ("vllm_xargs", {}),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(OrderRefused, match=f"^{name}"):
        parse_order(json.dumps({**GOOD, name: value}).encode())


@given(st.binary(max_size=200) | st.just(b"[" * 100_000) | st.just(b'{"a":' * 100_000))
def test_no_bytes_break_it(raw: bytes) -> None:
    with pytest.raises(OrderRefused):
        parse_order(raw)


def test_a_refusal_never_repeats_the_value() -> None:
    with pytest.raises(OrderRefused) as refused:
        parse_order(json.dumps({**asdict(order()), "prompt": ["canary"]}).encode())
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "event", [Started(1), Finished("stop", 1, 2), Alive(), WorkRefused(429, "c", "m", 1.5, final=True)]
)
def test_an_event_is_read_as_it_was_written_and_a_newer_field_is_ignored(event: WorkEvent | Alive) -> None:
    raw = encode_event(event)
    assert parse_event(raw) == event
    assert parse_event(raw.replace(b"{", b'{"newer":[1],', 1)) == event


@given(st.text())
def test_an_event_is_one_line_of_ascii(text: str) -> None:
    raw = encode_event(Token(text, 1))
    assert raw.isascii()
    assert raw.count(b"\n") == 1
    assert len(raw.decode().splitlines()) == 1
    assert json.loads(raw)["text"] == text
