"""The HTTP face: OpenAI's shapes, whole and streamed, over real ASGI and a whole gate."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from dispatcher.model.commands import Leave, Silent
from dispatcher.model.worker_protocol import WorkRefused
from dispatcher.operations.pools import FRESH_S
from dispatcher.operations.scaling import CHECK_S, Waking
from functions.http_api.connections import LOSSES, Losses, WhileConnected
from functions.http_api.routes.replies import HEADERS_AFTER_S
from tests.support.asgi import Reply
from tests.support.scaling import CountedService
from tests.support.world.memory_gate import CHAT, COMPLETION, Gate
from tests.support.world.story import take_slots
from tests.support.world.worker_client import FULL, SHED, UNREACHABLE, Act, dies_after, refuses

RESPONSES = "/v1/responses"


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, **more}


def completion(**more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "hello", "max_tokens": 3, **more}


def texts(reply: Reply) -> list[str]:
    chunks = [item["choices"][0] for item in reply.events if item != "[DONE]" and item.get("choices")]
    return [choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in chunks]


# ── What is answered ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_models_are_those_of_workers_that_have_not_left_and_the_tenant_may_use(gate: Gate) -> None:
    gate.add_worker("other", model="n")
    gate.add_worker("dead", model="gone")
    gate.shard.decide(Leave("dead"))
    gate.shard.decide(Silent("other", is_worker=True))
    await gate.add_tenant("narrow", models=("n", "never"))
    every = (await gate.caller("a").get("/v1/models")).json()
    assert [model["id"] for model in every["data"]] == ["m", "n"]
    assert every["object"] == "list"
    assert [model["id"] for model in (await gate.caller("narrow").get("/v1/models")).json()["data"]] == ["n"]
    one = await gate.caller("a").get("/v1/models/m")
    assert (one.status, one.json()["id"]) == (200, "m")
    barred = await gate.caller("narrow").get("/v1/models/m")
    assert (barred.status, barred.error["code"]) == (404, "model_not_found")


async def test_text_outside_ascii_survives_both_forms(gate: Gate) -> None:
    gate.workers.acts.extend([Act(word="é\n€"), Act(word="é\n€")])
    assert "".join(texts(await gate.caller().post(CHAT, chat(stream=True)))) == "é\n€" * 3
    assert (await gate.caller().post(CHAT, chat())).json()["choices"][0]["message"]["content"] == "é\n€" * 3


async def test_what_queues_says_its_position_and_a_wait_before_one_is_measured(gate: Gate) -> None:
    busy = [gate.caller("b").start("POST", CHAT, chat()) for _ in range(2)]
    await asyncio.sleep(0.01)
    waiting = [gate.caller().start("POST", CHAT, chat(stream=stream)) for stream in (False, True)]
    replies = [await call.finished() for call in waiting]
    assert [reply.headers["x-headgate-queue-position"] for reply in replies] == ["1", "2"]
    waits_ms = [int(reply.headers["x-headgate-estimated-wait-ms"]) for reply in replies]
    assert 0 < waits_ms[0] < waits_ms[1]
    for call in busy:
        assert "x-headgate-queue-position" not in (await call.finished()).headers


async def test_what_queues_says_how_long_waits_are(gate: Gate) -> None:
    calls = [gate.caller().start("POST", CHAT, chat(stream=stream)) for stream in (False, True) * 40]
    for call in calls:
        await call.finished()
    waiting = [gate.caller().start("POST", CHAT, chat()) for _ in range(9)]
    replies = [await call.finished() for call in waiting]
    told = [
        (int(reply.headers["x-headgate-estimated-wait-ms"]), int(reply.headers["x-headgate-estimated-wait-p90-ms"]))
        for reply in replies
        if "x-headgate-queue-position" in reply.headers
    ]
    assert len(told) == 7
    assert all(0 < p50_ms < p90_ms for p50_ms, p90_ms in told)
    assert told == sorted(told)


async def test_a_long_wait_is_kept_alive_by_comments(gate: Gate) -> None:
    gate.workers.acts.extend([Act(token_s=20.0)] * 2)
    busy = await take_slots(gate)
    reply = await gate.caller().post(CHAT, chat(stream=True))
    assert reply.status == 200
    assert reply.body.startswith(b": waiting\n\n: waiting\n\n")
    assert "".join(texts(reply)) == "xxx"
    await busy


# ── What is refused ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", [CHAT, COMPLETION, RESPONSES])
async def test_without_a_good_key_no_body_is_read(gate: Gate, path: str) -> None:
    await _is_unauthorized(gate, "POST", path, chat())


@pytest.mark.parametrize(
    "path",
    ["models", "models/m", "usage", "responses/resp_p0-1", "responses/resp_p0-1/input_items", "files", "batches"],
)
async def test_without_a_good_key_every_route_is_401_in_the_same_words(gate: Gate, path: str) -> None:
    await _is_unauthorized(gate, "GET", f"/v1/{path}", None)
    if "resp_" in path and "items" not in path:
        await _is_unauthorized(gate, "DELETE", f"/v1/{path}", None)


async def _is_unauthorized(gate: Gate, method: str, path: str, body: Any) -> None:
    good = gate.keys["a"]
    sent = {
        "Incorrect API key provided": (f"Bearer {good}x", f"Bearer hg-{'z' * 40}"),
        "No API key was sent": ("", "Bearer", "Bearer ", "Basic x", good),
    }
    for message, headers in sent.items():
        bodies = set()
        for authorization in headers:
            head: dict[str, Any] = {"authorization": authorization} if authorization else {}
            reply = await gate.caller(None).start(method, path, body, **head).finished()
            assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
            bodies.add(reply.body)
        assert len(bodies) == 1
        assert bodies.pop().startswith(f'{{"error":{{"message":"{message}.'.encode())
    assert gate.workers.orders == []


async def test_only_the_key_names_the_tenant(gate: Gate) -> None:
    claims: dict[str, Any] = {"x_tenant": "b", "x_headgate_tenant": "b", "openai_organization": "b"}
    await gate.caller("a").post(CHAT, chat(user="b"), **claims)
    assert [order.terms.tenant for _, order in gate.workers.orders] == ["a"]


@pytest.mark.parametrize("raw", [b"[]", b"[" * 200_000], ids=["an array", "far too deep"])
@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_a_body_that_is_no_sound_json_is_refused(gate: Gate, raw: bytes, path: str) -> None:
    reply = await gate.caller().post(path, raw=raw)
    assert (reply.status, reply.error["code"]) == (400, "invalid_json")
    assert gate.workers.orders == []


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_too_large_is_413_whether_it_says_so_or_not(gate: Gate, declared: bool) -> None:
    raw = json.dumps(chat(messages=[{"role": "user", "content": "p" * 1_000_001}])).encode()
    headers = {"content_length": str(len(raw))} if declared else {}
    reply = await gate.caller().post(CHAT, raw=raw, **headers)
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")


async def test_a_compressed_body_is_refused(gate: Gate) -> None:
    reply = await gate.caller().post(CHAT, raw=gzip.compress(json.dumps(chat()).encode()), content_encoding="gzip")
    assert (reply.status, reply.error["code"]) == (415, "unsupported_encoding")
    assert "`gzip`" in reply.error["message"]


BAD_FIELDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown": (completion(magic=1), "magic", "unknown_parameter"),
    "missing": ({"model": "m"}, "prompt", "missing_required_parameter"),
    "no model": ({"prompt": "p"}, "model", "missing_required_parameter"),
    "max_tokens beyond the limit": (completion(max_tokens=4097), "max_tokens", "invalid_value"),
    "n": (completion(n=2), "n", "unsupported_parameter"),
    "both forms": (completion(messages=[{"role": "user", "content": "p"}]), "messages", "unknown_parameter"),
}


@pytest.mark.parametrize(("body", "param", "code"), BAD_FIELDS.values(), ids=BAD_FIELDS)
async def test_fields_that_cannot_be_honoured_are_named(gate: Gate, body: Any, param: str, code: str) -> None:
    reply = await gate.caller().post(COMPLETION, body)
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, param, code)
    assert gate.workers.orders == []


async def test_a_request_at_zero_starts_one_worker_and_is_told_when_to_come_back(gate: Gate) -> None:
    service = CountedService()
    gate.pool.waking = Waking(service, {"m"}, 120.0, gate.clock)
    gate.shard.decide(Leave("w"))
    await asyncio.sleep(FRESH_S)
    replies = await asyncio.gather(*(gate.caller().post(CHAT, chat()) for _ in range(20)))
    assert {(reply.status, reply.headers["retry-after"]) for reply in replies} == {(503, "120")}
    assert (service.reads, service.sets) == (1, [1])
    await asyncio.sleep(50.0)
    later = await gate.caller().post(CHAT, chat())
    assert later.headers["retry-after"] == "70"
    assert "starting" in later.error["message"]
    gate.add_worker("w2")
    await asyncio.sleep(FRESH_S)
    assert (await gate.caller().post(CHAT, chat())).status == 200
    assert service.sets == [1]


async def test_a_service_that_cannot_be_used_is_tried_again_later(gate: Gate) -> None:
    service = CountedService(fails={"count"})
    gate.pool.waking = Waking(service, {"m"}, 120.0, gate.clock)
    gate.shard.decide(Leave("w"))
    await asyncio.sleep(FRESH_S)
    assert (await gate.caller().post(CHAT, chat())).headers["retry-after"] == "5"
    service.fails.clear()
    await asyncio.sleep(CHECK_S)
    assert (await gate.caller().post(CHAT, chat())).headers["retry-after"] == "120"


async def test_an_unknown_model_is_404_and_no_worker_at_all_503(gate: Gate) -> None:
    reply = await gate.caller().post(CHAT, chat(model="none"))
    assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "model")
    gate.shard.decide(Leave("w"))
    await asyncio.sleep(FRESH_S)
    reply = await gate.caller().post(CHAT, chat())
    assert (reply.status, reply.error["code"], reply.error["type"]) == (503, "no_worker", "server_error")
    assert int(reply.headers["retry-after"]) >= 1


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_worker_sheds_is_429_with_its_time(gate: Gate, stream: bool) -> None:
    gate.workers.acts.append(SHED)
    reply = await gate.caller().post(CHAT, chat(stream=stream))
    assert (reply.status, reply.headers["retry-after"]) == (429, "7")
    assert reply.error == {"message": "Overloaded.", "type": "rate_limit_error", "param": None, "code": "overloaded"}
    assert gate.spent("a") == 0


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("after_s", "header"), [(7.0, "7"), (6.2, "7"), (0.0, "1"), (0.3, "1")])
async def test_an_overloaded_engine_is_its_status_with_its_retry_after_rounded_up(
    gate: Gate, status: int, after_s: float, header: str
) -> None:
    gate.workers.acts.append(Act(refuses=WorkRefused(status, "engine_overloaded", "Busy.", after_s, final=True)))
    reply = await gate.caller().post(CHAT, chat())
    assert (reply.status, reply.headers["retry-after"]) == (status, header)
    assert reply.error["code"] == "engine_overloaded"
    assert gate.spent("a") == 0


async def test_and_in_a_stream_an_event_before_its_end(gate: Gate) -> None:
    gate.workers.acts.append(Act(drops_after=2))
    reply = await gate.caller().post(CHAT, chat(stream=True))
    assert reply.status == 200
    error, done = reply.events[-2:]
    assert done == "[DONE]"
    assert (error["error"]["code"], error["retry_after_s"]) == ("preempted", 12.0)
    assert texts(reply)[-2:] == ["x", "x"]
    assert gate.spent("a") == 10 + 2 * 2


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 129, "a/b", "a\tb"])
async def test_an_idempotency_key_that_is_none(gate: Gate, key: str) -> None:
    reply = await gate.caller().post(CHAT, chat(), idempotency_key=key)
    assert (reply.status, reply.error["param"]) == (400, "Idempotency-Key")


# ── What goes wrong on the way ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("key", [{}, {"idempotency_key": "k"}])
@pytest.mark.parametrize(
    "act",
    [UNREACHABLE, FULL, dies_after(0), refuses(500), refuses(401), Act(aborts_after=0), Act(ends_silently_after=0)],
)
async def test_what_says_nothing_of_the_request_is_tried_elsewhere_under_the_next_number(
    gate: Gate, stream: bool, key: dict[str, Any], act: Act
) -> None:
    gate.add_worker("v")
    gate.workers.acts.append(act)
    reply = await gate.caller().post(CHAT, chat(stream=stream), **key)
    assert reply.status == 200
    assert ("".join(texts(reply)) if stream else reply.json()["choices"][0]["message"]["content"]) == "xxx"
    (first, _), (second, order) = gate.workers.orders
    assert (first != second, order.attempt) == (True, 2)
    assert gate.spent("a") == 16.0


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_worker_finds_impossible_is_the_tenants_error(gate: Gate, stream: bool) -> None:
    gate.workers.acts.append(refuses(400, "context_length_exceeded", "Too long."))
    reply = await gate.caller().post(CHAT, chat(stream=stream))
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert gate.spent("a") == 0.0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETION, RESPONSES])
async def test_what_the_engine_refuses_after_its_start_has_its_status(gate: Gate, path: str, stream: bool) -> None:
    """The worker says that it started before the engine has read the request."""
    refused = WorkRefused(422, "invalid_request", "No such field.", final=True)
    gate.workers.acts.append(Act(drops_after=0, drops_as=refused, token_s=5.0))
    bodies = {CHAT: chat(stream=stream), COMPLETION: completion(stream=stream)}
    reply = await gate.caller().post(path, bodies.get(path, {"model": "m", "input": "x", "stream": stream}))
    assert (reply.status, reply.error["code"]) == (422, "invalid_request")
    assert gate.spent("a") == 0.0


async def test_a_stream_that_fails_before_its_first_token_is_no_stream(gate: Gate) -> None:
    gate.workers.acts.extend([Act(aborts_after=0)] * 3)
    reply = await gate.caller().post(CHAT, chat(stream=True))
    assert (reply.status, reply.error["code"]) == (502, "worker_failed")
    assert [order.attempt for _, order in gate.workers.orders] == [1, 2, 3]


async def test_headers_do_not_wait_for_a_long_prompt(gate: Gate) -> None:
    gate.workers.acts.append(Act(drops_after=0, token_s=HEADERS_AFTER_S + 1))
    reply = await gate.caller().post(CHAT, chat(stream=True))
    assert reply.status == 200
    assert reply.body.startswith(b": waiting\n\n")
    assert reply.events[-2]["error"]["code"] == "preempted"


async def test_the_deadline_passes_while_it_waits(gate: Gate) -> None:
    context = gate.process(deadline_s=5.0)
    gate.workers.acts.extend([Act(token_s=10.0)] * 2)
    busy = await take_slots(gate)
    reply = await gate.caller("a", context).post(CHAT, chat(), idempotency_key="k")
    assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
    await gate.quiet()
    await gate.ended("a", "k", "expired")
    again = await gate.caller("a", context).post(CHAT, chat(), idempotency_key="k")
    assert (again.status, again.body) == (reply.status, reply.body)
    assert "a" not in {running.tenant.name for running in gate.shard.shard.state.calls.values()}
    await busy


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.15])
async def test_a_disconnect_aborts_what_runs(gate: Gate, stream: bool, after_s: float) -> None:
    call = gate.caller().start("POST", CHAT, chat(max_tokens=100, stream=stream))
    await asyncio.sleep(after_s)
    call.hang_up()
    await asyncio.wait({call.task})
    await gate.quiet()
    assert len(gate.workers.closed) == 1
    (ended,) = gate.ends("cancelled")
    assert ended.output_tokens == (1 if after_s > 0.1 else 0)


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_a_disconnect_while_not_reading_aborts_what_runs(gate: Gate, spec_version: str) -> None:
    """The stream is stopped while it sends, not while it waits for a token."""
    asked = chat(max_tokens=100, stream=True)
    call = gate.caller().start("POST", CHAT, asked, spec_version=spec_version)
    await asyncio.sleep(0.05)
    call.reading.clear()
    await asyncio.sleep(1.0)
    call.hang_up()
    if spec_version == "2.4":
        call.task.cancel()
    await asyncio.wait({call.task})
    await gate.quiet()
    assert len(gate.workers.closed) == 1
    assert len(gate.ends("cancelled")) == 1


async def test_a_disconnect_before_the_first_byte(gate: Gate) -> None:
    """The answer's headers are ready, and the caller has left."""
    call = gate.caller().start("POST", CHAT, chat(max_tokens=100, stream=True))
    call.reading.clear()
    await asyncio.sleep(1.0)
    call.task.cancel()
    await asyncio.wait({call.task})
    await gate.quiet()
    assert len(gate.workers.closed) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_while_waiting_leaves_the_queue(gate: Gate, stream: bool) -> None:
    busy = await take_slots(gate)
    call = gate.caller().start("POST", CHAT, chat(stream=stream))
    await asyncio.sleep(0.05)
    call.hang_up()
    await asyncio.wait({call.task})
    assert all(running.tenant.name == "b" for running in gate.shard.shard.state.calls.values())
    await busy
    await gate.quiet()
    assert len(gate.workers.orders) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.15])
async def test_what_runs_under_a_key_goes_on_without_its_caller(gate: Gate, stream: bool, after_s: float) -> None:
    call = gate.caller().start("POST", CHAT, chat(stream=stream), idempotency_key="k")
    await asyncio.sleep(after_s)
    call.hang_up()
    await asyncio.wait({call.task})
    again = await gate.caller().post(CHAT, chat(), idempotency_key="k")
    assert (again.status, again.json()["choices"][0]["message"]["content"]) == (200, "xxx")
    assert gate.spent("a") == 16.0
    assert len({order.execution for _, order in gate.workers.orders}) == 1


# ── The same again ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("first_stream", [False, True])
@pytest.mark.parametrize("then_stream", [False, True])
async def test_the_same_key_again_is_the_same_answer_at_one_charge(
    gate: Gate, first_stream: bool, then_stream: bool
) -> None:
    first = await gate.caller().post(CHAT, chat(stream=first_stream), idempotency_key="k")
    again = await gate.caller().post(CHAT, chat(stream=then_stream), idempotency_key="k")
    for reply, streamed in ((first, first_stream), (again, then_stream)):
        text = "".join(texts(reply)) if streamed else reply.json()["choices"][0]["message"]["content"]
        assert text == "xxx"
        assert reply.headers["x-request-id"] == first.headers["x-request-id"]
        name = (reply.events[0] if streamed else reply.json())["id"]
        assert name == f"chatcmpl-{first.headers['x-request-id']}"
    if not first_stream and not then_stream:
        assert first.json() == again.json()
    assert len(gate.workers.orders) == 1
    assert gate.spent("a") == 16.0


async def test_a_replayed_stream_has_usage_where_asked(gate: Gate) -> None:
    await gate.caller().post(CHAT, chat(), idempotency_key="k")
    body = chat(stream=True, stream_options={"include_usage": True})
    reply = await gate.caller().post(CHAT, body, idempotency_key="k")
    assert reply.events[-2]["usage"]["total_tokens"] == 13
    assert reply.events[-1] == "[DONE]"


async def test_a_disconnect_leaves_nothing_of_its_cancellation() -> None:
    losses = Losses(lambda: None)
    request = Request({"type": "http", LOSSES: losses})

    async def wait() -> None:
        with WhileConnected(request):
            await asyncio.sleep(60)

    asyncio.get_running_loop().call_later(0.1, losses.happen)
    with pytest.raises(ClientDisconnect):
        await wait()
    task = asyncio.current_task()
    assert task is not None
    assert (task.cancelling(), losses.calls) == (0, {})
