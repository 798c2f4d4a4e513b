"""The tenant client against the wire: bodies out, answers and errors in."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import httpx
import pytest

from headgate.client import AsyncHeadgate, Headgate, LambdaHeadgate
from headgate.client_answers import BadRequest, Conflict, NotFound, Refused, Unauthorized, Unavailable, Unreachable

ANSWER = {
    "id": "chatcmpl-1",
    "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
STREAM = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n: waiting\n\n'
    b'data: {"choices":[{"delta":{"content":"h"}}]}\n\ndata: {"choices":[{"delta":{"content":"i"}}]}\n\n'
)


def client(reply: httpx.Response | Exception, seen: list[httpx.Request] | None = None, **more: Any) -> Headgate:
    def answer(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        if isinstance(reply, Exception):
            raise reply
        return reply

    return Headgate("http://h/v1", "hg-k", model="m", transport=httpx.MockTransport(answer), **more)


def test_chat_in_one_line() -> None:
    seen: list[httpx.Request] = []
    answer = client(httpx.Response(200, json=ANSWER), seen, new_id=lambda: "made").chat("hello", max_tokens=4)
    assert (answer.text, answer.finish_reason, answer.input_tokens, answer.output_tokens) == ("hi", "stop", 3, 1)
    body = json.loads(seen[0].content)
    assert body == {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    assert seen[0].url.path == "/v1/chat/completions"
    assert (seen[0].headers["authorization"], seen[0].headers["idempotency-key"]) == ("Bearer hg-k", "made")


def test_completion_and_an_own_key() -> None:
    seen: list[httpx.Request] = []
    answer = {**ANSWER, "choices": [{"text": "t", "finish_reason": "length"}]}
    assert client(httpx.Response(200, json=answer), seen).complete("p", idempotency_key="mine").text == "t"
    assert (seen[0].url.path, seen[0].headers["idempotency-key"]) == ("/v1/completions", "mine")


def test_the_only_model_is_found() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"data": [{"id": "one"}]} if request.method == "GET" else ANSWER)

    found = Headgate("http://h/v1", "k", transport=httpx.MockTransport(answer))
    assert found.chat("x").text == "hi"
    several = client(httpx.Response(200, json={"data": [{"id": "a"}, {"id": "b"}]}))
    several._model = None
    with pytest.raises(BadRequest, match="a, b"):
        several.chat("x")


def test_a_stream_is_text_and_its_error_is_raised() -> None:
    assert list(client(httpx.Response(200, content=STREAM + b"data: [DONE]\n\n")).stream("x")) == ["h", "i"]
    broken = STREAM + b'data: {"error":{"message":"gone","code":"worker_failed"}}\n\n'
    pieces = client(httpx.Response(200, content=broken)).stream("x")
    assert [next(pieces), next(pieces)] == ["h", "i"]
    with pytest.raises(Unavailable, match="gone"):
        next(pieces)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, BadRequest), (401, Unauthorized), (404, NotFound), (409, Conflict), (413, BadRequest), (503, Unavailable)],
)
def test_errors_by_status(status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="why"):
        client(httpx.Response(status, json={"error": {"message": "why", "code": "c"}})).chat("x")


def test_a_refusal_says_when_to_come_back() -> None:
    reply = httpx.Response(429, json={"error": {"message": "full", "code": "queue_full"}}, headers={"retry-after": "7"})
    with pytest.raises(Refused) as caught:
        client(reply).chat("x")
    assert (caught.value.retry_after_s, caught.value.code) == (7.0, "queue_full")


def test_what_is_no_answer_at_all() -> None:
    with pytest.raises(Unreachable):
        client(httpx.ConnectError("refused")).chat("x")
    with pytest.raises(Unavailable):
        client(httpx.Response(502, content=b"<html>")).chat("x")


def test_missing_address_or_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADGATE_BASE_URL", raising=False)
    with pytest.raises(BadRequest, match="HEADGATE_BASE_URL"):
        Headgate(api_key="k")


def test_async() -> None:
    async def story() -> tuple[str, list[str]]:
        replies = iter([httpx.Response(200, json=ANSWER), httpx.Response(200, content=STREAM)])
        transport = httpx.MockTransport(lambda _: next(replies))
        there = AsyncHeadgate("http://h/v1", "k", model="m", transport=transport)
        return (await there.chat("x")).text, [piece async for piece in there.stream("x")]

    assert asyncio.run(story()) == ("hi", ["h", "i"])


class FakeLambda:
    """boto3's client as far as it is used here; the real one is in tests/local/test_stack.py."""

    def __init__(self, payload: Any, **reply: Any) -> None:
        self.reply = {"Payload": io.BytesIO(json.dumps(payload).encode() if payload is not None else b""), **reply}
        self.calls: list[dict[str, Any]] = []

    def invoke(self, **call: Any) -> dict[str, Any]:
        self.calls.append(call)
        return self.reply


def over_lambda(fake: FakeLambda) -> LambdaHeadgate:
    return LambdaHeadgate("k", model="m", client=fake, new_id=lambda: "made")  # type: ignore[arg-type]


class TestLambda:
    def test_asks_and_answers(self) -> None:
        fake = FakeLambda(ANSWER)
        assert over_lambda(fake).chat("x").text == "hi"
        sent = json.loads(fake.calls[0]["Payload"])
        assert (sent["api_key"], sent["idempotency_key"], sent["model"]) == ("k", "made", "m")

    def test_a_users_error_is_raised_by_its_status(self) -> None:
        with pytest.raises(Refused) as caught:
            over_lambda(FakeLambda({"error": {"message": "full"}, "status": 429, "retry_after_s": 3.5})).chat("x")
        assert caught.value.retry_after_s == 3.5

    def test_a_function_error_and_a_wait_that_was_too_long(self) -> None:
        with pytest.raises(Unavailable, match="boom"):
            over_lambda(FakeLambda({"errorMessage": "boom"}, FunctionError="Unhandled")).chat("x")
        with pytest.raises(Unavailable, match="made"):
            over_lambda(FakeLambda({"id": "made", "status": "queued"})).chat("x")

    def test_later_and_its_result(self) -> None:
        fake = FakeLambda(None)
        assert over_lambda(fake).later("x") == "made"
        assert fake.calls[0]["InvocationType"] == "Event"
        done = over_lambda(FakeLambda({"id": "i", "status": "done", "response": ANSWER})).result("i")
        assert done.answer is not None
        assert done.answer.text == "hi"
        failed = over_lambda(FakeLambda({"id": "i", "status": "failed", "error": {"message": "why"}})).result("i")
        assert str(failed.error) == "why"
        with pytest.raises(NotFound):
            over_lambda(FakeLambda({"error": {"message": "none"}, "status": 404})).result("i")
