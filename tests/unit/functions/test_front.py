"""The HTTP face: OpenAI's shapes, whole and streamed, over real ASGI and a whole gate."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from dispatcher.fields.limits import STOPS_MAX
from dispatcher.model.commands import Leave, Silent
from dispatcher.model.worker_protocol import WorkRefused
from dispatcher.operations.calls.detached import execute_detached
from dispatcher.operations.pools import FRESH_S
from dispatcher.operations.scaling import CHECK_S, Waking
from dispatcher.strict_json import DEPTH_MAX
from functions.http_api.routes.replies import HEADERS_AFTER_S
from tests.support.asgi import Reply
from tests.support.scaling import CountedService
from tests.support.world.memory_gate import CHAT, COMPLETION, Gate
from tests.support.world.worker_client import FULL, SHED, UNREACHABLE, WELL, Act, dies_after, refuses

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


async def test_health_needs_no_key(gate: Gate) -> None:
    assert (await gate.caller(None).get("/health")).json() == {"status": "ok"}


async def test_a_whole_chat_answer(gate: Gate) -> None:
    reply = await gate.caller().post(CHAT, chat())
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    body = reply.json()
    assert body["object"] == "chat.completion"
    assert body["id"] == f"chatcmpl-{reply.headers['x-request-id']}"
    choice = body["choices"][0]
    assert (choice["message"]["role"], choice["message"]["content"]) == ("assistant", "xxx")
    assert choice["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    assert gate.spent("a") == 10 + 2 * 3


async def test_a_whole_completion(gate: Gate) -> None:
    body = (await gate.caller().post(COMPLETION, completion())).json()
    assert (body["object"], body["choices"][0]["text"]) == ("text_completion", "xxx")


async def test_a_chat_stream_has_its_role_first_and_done_last(gate: Gate) -> None:
    reply = await gate.caller().post(CHAT, chat(stream=True))
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    first, *middle, last, done = reply.events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [item["choices"][0]["delta"] for item in middle] == [{"content": "x"}] * 3
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "length")
    assert done == "[DONE]"
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert {item["object"] for item in reply.events[:-1]} == {"chat.completion.chunk"}
    assert len({item["id"] for item in reply.events[:-1]}) == 1
    assert all("usage" not in item for item in reply.events[:-1])


async def test_usage_comes_last_where_asked(gate: Gate) -> None:
    reply = await gate.caller().post(CHAT, chat(stream=True, stream_options={"include_usage": True}))
    usage, done = reply.events[-2:]
    assert (usage["choices"], done) == ([], "[DONE]")
    assert usage["usage"] == {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}


async def test_a_completion_stream_has_no_role(gate: Gate) -> None:
    reply = await gate.caller().post(COMPLETION, completion(stream=True))
    assert texts(reply) == ["x", "x", "x", ""]
    assert all("delta" not in item["choices"][0] for item in reply.events[:-1])


async def test_text_outside_ascii_survives_both_forms(gate: Gate) -> None:
    gate.workers.acts.extend([Act(word="é\n€"), Act(word="é\n€")])
    assert "".join(texts(await gate.caller().post(CHAT, chat(stream=True)))) == "é\n€" * 3
    assert (await gate.caller().post(CHAT, chat())).json()["choices"][0]["message"]["content"] == "é\n€" * 3


async def test_what_queues_says_its_position_and_no_wait_before_one_is_known(gate: Gate) -> None:
    busy = [gate.caller("b").start("POST", CHAT, chat()) for _ in range(2)]
    await asyncio.sleep(0.01)
    waiting = [gate.caller().start("POST", CHAT, chat(stream=stream)) for stream in (False, True)]
    replies = [await call.finished() for call in waiting]
    assert [reply.headers["x-headgate-queue-position"] for reply in replies] == ["1", "2"]
    assert not any("x-headgate-estimated-wait-ms" in reply.headers for reply in replies)
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
    busy = [gate.caller("b").start("POST", CHAT, chat()) for _ in range(2)]
    await asyncio.sleep(0.01)
    reply = await gate.caller().post(CHAT, chat(stream=True))
    assert reply.status == 200
    assert reply.body.startswith(b": waiting\n\n: waiting\n\n")
    assert "".join(texts(reply)) == "xxx"
    for call in busy:
        await call.finished()


# ── What is refused ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", [CHAT, COMPLETION, "/v1/models", "/v1/models/m", "/v1/usage"])
async def test_without_a_good_key_every_route_is_401_in_the_same_words(gate: Gate, path: str) -> None:
    good = gate.keys["a"]
    sent = {
        "Incorrect API key provided": (f"Bearer {good}x", f"Bearer hg-{'z' * 40}"),
        "No API key was sent": ("", "Bearer", "Bearer ", "Basic x", good),
    }
    for message, headers in sent.items():
        bodies = {await _unauthorized(gate, path, authorization) for authorization in headers}
        assert len(bodies) == 1
        assert bodies.pop().startswith(f'{{"error":{{"message":"{message}.'.encode())
    assert gate.workers.orders == []


async def _unauthorized(gate: Gate, path: str, authorization: str) -> bytes:
    headers: dict[str, Any] = {"authorization": authorization} if authorization else {}
    method = "POST" if path in (CHAT, COMPLETION) else "GET"
    call = gate.caller(None).start(method, path, chat() if method == "POST" else None, **headers)
    reply = await call.finished()
    assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
    return reply.body


async def test_only_the_key_names_the_tenant(gate: Gate) -> None:
    claims: dict[str, Any] = {"x_tenant": "b", "x_headgate_tenant": "b", "openai_organization": "b"}
    await gate.caller("a").post(CHAT, chat(user="b"), **claims)
    assert [order.terms.tenant for _, order in gate.workers.orders] == ["a"]


BAD_BODIES = {
    "no JSON": b"{model: 1}",
    "empty": b"",
    "half": b'{"model": "m", "messages": [',
    "an array": b"[]",
    "a string": b'"m"',
    "null": b"null",
    "not UTF-8": b'{"model": "\xff"}',
    "NaN": b'{"model": "m", "prompt": "p", "temperature": NaN}',
    "infinite": b'{"model": "m", "prompt": "p", "temperature": -Infinity}',
    "a key twice": b'{"model": "m", "model": "n", "prompt": "p"}',
    "a key twice, deep inside": b'{"model": "m", "messages": [{"role": "user", "role": "system", "content": "p"}]}',
    "a lone surrogate": b'{"model": "m", "prompt": "\\ud800"}',
    "a lone surrogate in a key": b'{"model": "m", "prompt": "p", "\\udfff": 1}',
    "too deep": b'{"a":' * (DEPTH_MAX + 1) + b"1" + b"}" * (DEPTH_MAX + 1),
    "far too deep": b"[" * 200_000,
    "an endless number": b'{"model": "m", "prompt": "p", "seed": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("raw", BAD_BODIES.values(), ids=BAD_BODIES)
@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_bodies_that_are_no_sound_json(gate: Gate, raw: bytes, path: str) -> None:
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
    "model of another type": (completion(model=7), "model", "invalid_value"),
    "prompt of another type": (completion(prompt=["a", "b"]), "prompt", "invalid_value"),
    "max_tokens 0": (completion(max_tokens=0), "max_tokens", "invalid_value"),
    "max_tokens negative": (completion(max_tokens=-1), "max_tokens", "invalid_value"),
    "max_tokens beyond the limit": (completion(max_tokens=4097), "max_tokens", "invalid_value"),
    "max_tokens huge": (completion(max_tokens=10**400), "max_tokens", "invalid_value"),
    "max_tokens a word": (completion(max_tokens="3"), "max_tokens", "invalid_value"),
    "max_tokens true": (completion(max_tokens=True), "max_tokens", "invalid_value"),
    "max_tokens 1.5": (completion(max_tokens=1.5), "max_tokens", "invalid_value"),
    "temperature too high": (completion(temperature=2.1), "temperature", "invalid_value"),
    "temperature huge": (completion(temperature=10**400), "temperature", "invalid_value"),
    "temperature true": (completion(temperature=True), "temperature", "invalid_value"),
    "too many stops": (completion(stop=["a"] * (STOPS_MAX + 1)), "stop", "invalid_value"),
    "n": (completion(n=2), "n", "unsupported_parameter"),
    "n true": (completion(n=True), "n", "invalid_value"),
    "logprobs": (completion(logprobs=5), "logprobs", "unsupported_parameter"),
    "both forms": (completion(messages=[{"role": "user", "content": "p"}]), "messages", "unknown_parameter"),
    "stream a word": (completion(stream="yes"), "stream", "invalid_value"),
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
    service = CountedService(fails=True)
    gate.pool.waking = Waking(service, {"m"}, 120.0, gate.clock)
    gate.shard.decide(Leave("w"))
    await asyncio.sleep(FRESH_S)
    assert (await gate.caller().post(CHAT, chat())).headers["retry-after"] == "5"
    service.fails = False
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


async def test_a_prompt_over_the_models_context(gate: Gate) -> None:
    gate.add_worker("small", model="s", context_tokens=50, bytes_per_token=1.0)
    reply = await gate.caller().post(COMPLETION, completion(model="s", prompt="p" * 48))
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "context_length_exceeded", "prompt")


async def test_a_full_queue_is_429_with_its_limit_and_a_time(gate: Gate) -> None:
    await gate.add_tenant("small", queue_items_max=1)
    busy = [gate.caller("b").start("POST", CHAT, chat()) for _ in range(2)]
    await asyncio.sleep(0.01)
    waiting = gate.caller("small").start("POST", CHAT, chat())
    await asyncio.sleep(0.01)
    reply = await gate.caller("small").post(CHAT, chat())
    after_s = int(reply.headers["retry-after"])
    assert (reply.status, reply.error["code"], reply.error["type"]) == (429, "queue_full", "rate_limit_error")
    assert "1 of this tenant's requests" in reply.error["message"]
    assert f"{after_s} s" in reply.error["message"]
    for call in (*busy, waiting):
        assert (await call.finished()).status == 200


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


async def test_what_a_worker_drops_is_503_with_its_time(gate: Gate) -> None:
    gate.workers.acts.append(Act(drops_after=2))
    reply = await gate.caller().post(CHAT, chat())
    assert (reply.status, reply.headers["retry-after"]) == (503, "12")
    assert (reply.error["code"], reply.error["type"]) == ("preempted", "server_error")
    assert gate.spent("a") == 10 + 2 * 2


async def test_and_in_a_stream_an_event_before_its_end(gate: Gate) -> None:
    gate.workers.acts.append(Act(drops_after=2))
    reply = await gate.caller().post(CHAT, chat(stream=True))
    assert reply.status == 200
    error, done = reply.events[-2:]
    assert done == "[DONE]"
    assert (error["error"]["code"], error["retry_after_s"]) == ("preempted", 12.0)
    assert texts(reply)[-2:] == ["x", "x"]
    assert gate.spent("a") == 10 + 2 * 2


async def test_a_shed_key_asks_again_and_is_served_and_then_given_the_same(gate: Gate) -> None:
    gate.workers.acts.append(SHED)
    replies = [await gate.caller().post(CHAT, chat(), idempotency_key="k") for _ in range(3)]
    assert [reply.status for reply in replies] == [429, 200, 200]
    texts_of = [reply.json()["choices"] for reply in replies[1:]]
    assert texts_of[0] == texts_of[1]
    assert len(gate.workers.orders) == 2


async def test_a_tenant_that_is_allowed_no_tokens_gets_none(gate: Gate) -> None:
    await gate.add_tenant("barred", max_tokens_max=0)
    body = chat()
    for asked in (body, {name: body[name] for name in ("model", "messages")}):
        reply = await gate.caller("barred").post(CHAT, asked)
        assert (reply.status, reply.error["param"]) == (400, "max_tokens")


async def test_unknown_routes_and_methods_are_in_openais_shape(gate: Gate) -> None:
    assert (await gate.caller().get("/v1/nothing")).error["code"] == "unknown_url"
    reply = await gate.caller().get(CHAT)
    assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 129, "a/b", "a\tb"])
async def test_an_idempotency_key_that_is_none(gate: Gate, key: str) -> None:
    reply = await gate.caller().post(CHAT, chat(), idempotency_key=key)
    assert (reply.status, reply.error["param"]) == (400, "Idempotency-Key")


# ── What goes wrong on the way ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("act", [UNREACHABLE, dies_after(0), FULL, refuses(500), Act(ends_silently_after=0)])
async def test_a_worker_lost_before_the_first_token_is_not_seen(gate: Gate, stream: bool, act: Act) -> None:
    gate.add_worker("v")
    gate.workers.acts.append(act)
    reply = await gate.caller().post(CHAT, chat(stream=stream), idempotency_key="k")
    assert reply.status == 200
    assert ("".join(texts(reply)) if stream else reply.json()["choices"][0]["message"]["content"]) == "xxx"
    (first, _), (second, order) = gate.workers.orders
    assert (first != second, order.attempt) == (True, 2)
    assert gate.spent("a") == 16.0


@pytest.mark.parametrize("stream", [False, True])
async def test_three_lost_attempts_are_502_and_free(gate: Gate, stream: bool) -> None:
    gate.workers.acts.extend([UNREACHABLE] * 9)
    reply = await gate.caller().post(CHAT, chat(stream=stream), idempotency_key="k")
    if stream and reply.status == 200:  # a wait outlasted the headers' patience
        assert reply.events[-2]["error"]["code"] == "worker_failed"
    else:
        assert (reply.status, reply.error["code"]) == (502, "worker_failed")
    assert [order.attempt for _, order in gate.workers.orders] == [1, 2, 3]
    await gate.quiet()
    assert gate.spent("a") == 0.0


async def test_a_worker_lost_in_the_middle_of_a_stream_ends_it_with_an_error(gate: Gate) -> None:
    gate.workers.acts.append(dies_after(2))
    reply = await gate.caller().post(CHAT, chat(stream=True), idempotency_key="k")
    assert reply.status == 200
    *chunks, error, done = reply.events
    assert [item["choices"][0]["delta"].get("content") for item in chunks] == ["", "x", "x"]
    assert (error["error"]["code"], done) == ("worker_failed", "[DONE]")
    assert len(gate.workers.orders) == 1
    assert gate.spent("a") == 10 + 2 * 2


@pytest.mark.parametrize("headers", [{}, {"idempotency_key": "k"}])
async def test_a_worker_lost_in_the_middle_of_a_whole_answer_is_not_seen(gate: Gate, headers: dict[str, Any]) -> None:
    gate.workers.acts.append(Act(breaks_after=2, word="lost"))
    reply = await gate.caller().post(CHAT, chat(), **headers)
    assert (reply.status, reply.json()["choices"][0]["message"]["content"]) == (200, "xxx")
    assert reply.json()["usage"] == {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    assert gate.spent("a") == 10 + 2 * 3


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
    busy = [gate.caller("b").start("POST", CHAT, chat()) for _ in range(2)]
    await asyncio.sleep(0.01)
    reply = await gate.caller("a", context).post(CHAT, chat(), idempotency_key="k")
    assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
    await gate.quiet()
    await gate.ended("a", "k", "expired")
    again = await gate.caller("a", context).post(CHAT, chat(), idempotency_key="k")
    assert (again.status, again.body) == (reply.status, reply.body)
    assert "a" not in {running.tenant.name for running in gate.shard.shard.state.calls.values()}
    for call in busy:
        await call.finished()


async def test_the_deadline_passes_while_it_runs(gate: Gate) -> None:
    context = gate.process(deadline_s=0.25)
    reply = await gate.caller("a", context).post(CHAT, chat(max_tokens=50), idempotency_key="k")
    assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
    ended = await gate.ended("a", "k", "expired")
    assert gate.spent("a") == 10 + 2 * ended.output_tokens > 10


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
    busy = [gate.caller("b").start("POST", CHAT, chat()) for _ in range(2)]
    await asyncio.sleep(0.01)
    call = gate.caller().start("POST", CHAT, chat(stream=stream))
    await asyncio.sleep(0.05)
    call.hang_up()
    await asyncio.wait({call.task})
    assert all(running.tenant.name == "b" for running in gate.shard.shard.state.calls.values())
    for other in busy:
        await other.finished()
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


async def test_what_waits_under_a_key_is_executed_without_its_caller(gate: Gate) -> None:
    busy = [gate.caller("b").start("POST", CHAT, chat()) for _ in range(2)]
    await asyncio.sleep(0.01)
    call = gate.caller().start("POST", CHAT, chat(), idempotency_key="k")
    await asyncio.sleep(0.05)
    call.hang_up()
    await asyncio.wait({call.task})
    for other in busy:
        await other.finished()
    await gate.quiet()
    ((call_id, attempt),) = gate.launcher.launched
    assert await execute_detached(gate.context, call_id)
    again = await gate.caller().post(CHAT, chat(), idempotency_key="k")
    assert (again.status, again.json()["choices"][0]["message"]["content"], attempt) == (200, "xxx", 1)


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


async def test_the_same_key_at_the_same_time_is_one_invocation(gate: Gate) -> None:
    calls = [gate.caller().start("POST", CHAT, chat(stream=bool(n % 2)), idempotency_key="k") for n in range(6)]
    replies = [await call.finished() for call in calls]
    assert {reply.status for reply in replies} == {200}
    assert {"".join(texts(reply)) for reply in replies[1::2]} == {"xxx"}
    assert {reply.body for reply in replies[2::2]} == {replies[0].body}
    assert len(gate.workers.orders) == 1
    assert gate.spent("a") == 16.0


async def test_a_replayed_stream_has_usage_where_asked(gate: Gate) -> None:
    await gate.caller().post(CHAT, chat(), idempotency_key="k")
    body = chat(stream=True, stream_options={"include_usage": True})
    reply = await gate.caller().post(CHAT, body, idempotency_key="k")
    assert reply.events[-2]["usage"]["total_tokens"] == 13
    assert reply.events[-1] == "[DONE]"


async def test_another_body_under_the_same_key_is_409(gate: Gate) -> None:
    await gate.caller().post(CHAT, chat(), idempotency_key="k")
    reply = await gate.caller().post(CHAT, chat(max_tokens=4), idempotency_key="k")
    assert (reply.status, reply.error["code"]) == (409, "idempotency_conflict")


async def test_another_tenants_key_is_another_key(gate: Gate) -> None:
    await gate.caller("a").post(CHAT, chat(), idempotency_key="k")
    other = chat(messages=[{"role": "user", "content": "something else"}])
    reply = await gate.caller("b").post(CHAT, other, idempotency_key="k")
    assert reply.status == 200
    assert len(gate.workers.orders) == 2


async def test_the_same_key_after_a_failure_is_the_same_failure(gate: Gate) -> None:
    gate.workers.acts.extend([*[dies_after(1)] * 3, WELL])
    first = await gate.caller().post(CHAT, chat(), idempotency_key="k")
    again = await gate.caller().post(CHAT, chat(), idempotency_key="k")
    assert (first.status, first.body) == (again.status, again.body)
    assert first.status == 502
    assert len(gate.workers.orders) == 3
