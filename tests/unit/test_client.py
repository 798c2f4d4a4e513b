"""The tenant client over the official openai client: requests out, answers and errors in."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from headgate.client import AsyncHeadgate, AsyncLambdaHeadgate, Headgate, HeadgateClientError, LambdaHeadgate, Patience
from headgate.client.over_http import retry_after_s
from headgate.client.over_lambda import LAMBDA_READ_TIMEOUT_S, lambda_client

ANSWER = {
    "id": "chatcmpl-1",
    "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
STREAM = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n: waiting\n\n'
    b'data: {"choices":[{"delta":{"content":"h"}}]}\n\ndata: {"choices":[{"delta":{"content":"i"}}]}\n\n'
)
DONE = (
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\ndata: [DONE]\n\n'
)


def client(reply: httpx.Response | Exception, seen: list[httpx.Request] | None = None, **more: Any) -> Headgate:
    def answer(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        if isinstance(reply, Exception):
            raise reply
        return reply

    return over(answer, **more)


def over(answer: Callable[[httpx.Request], httpx.Response], **more: Any) -> Headgate:
    settings = {"model": "m", **more}
    return Headgate("http://h/v1", "hg-k", http_client=httpx.Client(transport=httpx.MockTransport(answer)), **settings)


def async_over(answer: Callable[[httpx.Request], httpx.Response], **more: Any) -> AsyncHeadgate:
    http_client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return AsyncHeadgate("http://h/v1", "hg-k", model="m", http_client=http_client, **more)


def test_chat_in_one_line() -> None:
    seen: list[httpx.Request] = []
    answer = client(httpx.Response(200, json=ANSWER), seen, new_id=lambda: "made").chat("hello", max_tokens=4)
    assert (answer.text, answer.finish_reason, answer.input_tokens, answer.output_tokens) == ("hi", "stop", 3, 1)
    body = json.loads(seen[0].content)
    assert body == {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    assert seen[0].url.path == "/v1/chat/completions"
    assert (seen[0].headers["authorization"], seen[0].headers["idempotency-key"]) == ("Bearer hg-k", "made")


def test_the_wait_that_the_answer_names() -> None:
    headers = {
        "x-headgate-queue-position": "3",
        "x-headgate-estimated-wait-ms": "1200",
        "x-headgate-estimated-wait-p90-ms": "1800",
    }
    waited = client(httpx.Response(200, json=ANSWER, headers=headers)).chat("x")
    assert (waited.queue_position, waited.estimated_wait_ms, waited.estimated_wait_p90_ms) == (3, 1200, 1800)
    at_once = client(httpx.Response(200, json=ANSWER)).chat("x")
    assert (at_once.queue_position, at_once.estimated_wait_ms, at_once.estimated_wait_p90_ms) == (None, None, None)


def test_completion_and_an_own_key() -> None:
    seen: list[httpx.Request] = []
    answer = {**ANSWER, "choices": [{"text": "t", "finish_reason": "length"}]}
    assert client(httpx.Response(200, json=answer), seen).complete("p", idempotency_key="mine").text == "t"
    assert (seen[0].url.path, seen[0].headers["idempotency-key"]) == ("/v1/completions", "mine")


def test_the_only_model_is_found() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"data": [{"id": "one"}]} if request.method == "GET" else ANSWER)

    assert over(answer, model=None).chat("x").text == "hi"
    several = client(httpx.Response(200, json={"data": [{"id": "a"}, {"id": "b"}]}), model=None)
    with pytest.raises(HeadgateClientError, match="a, b"):
        several.chat("x")


def test_a_stream_is_text_and_its_error_is_raised() -> None:
    assert list(client(httpx.Response(200, content=STREAM + DONE)).stream("x")) == ["h", "i"]
    broken = STREAM + b'data: {"error":{"message":"gone","code":"worker_failed"}}\n\n'
    pieces = client(httpx.Response(200, content=broken)).stream("x")
    assert [next(pieces), next(pieces)] == ["h", "i"]
    with pytest.raises(openai.APIError, match="gone"):
        next(pieces)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (413, openai.APIStatusError),
        (429, openai.RateLimitError),
        (503, openai.InternalServerError),
    ],
)
def test_errors_by_status(status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="why"):
        client(httpx.Response(status, json={"error": {"message": "why", "code": "c"}})).chat("x")


def test_a_refusal_says_when_to_come_back() -> None:
    reply = httpx.Response(429, json={"error": {"message": "full", "code": "queue_full"}}, headers={"retry-after": "7"})
    with pytest.raises(openai.RateLimitError) as caught:
        client(reply).chat("x")
    assert (retry_after_s(caught.value), caught.value.code) == (7.0, "queue_full")


def test_no_answer_at_all() -> None:
    with pytest.raises(openai.APIConnectionError):
        client(httpx.ConnectError("refused")).chat("x")
    with pytest.raises(openai.InternalServerError):
        client(httpx.Response(502, content=b"<html>")).chat("x")


def test_a_stream_that_just_stops_is_no_whole_answer() -> None:
    pieces = client(httpx.Response(200, content=STREAM)).stream("x")
    assert [next(pieces), next(pieces)] == ["h", "i"]
    with pytest.raises(HeadgateClientError, match="broke off"):
        next(pieces)

    async def story() -> list[str]:
        there = async_over(lambda _: httpx.Response(200, content=STREAM))
        return [piece async for piece in there.stream("x")]

    with pytest.raises(HeadgateClientError, match="broke off"):
        asyncio.run(story())


def test_an_error_within_a_stream_keeps_its_type() -> None:
    error = b'data: {"error":{"message":"full","code":"queue_full","type":"rate_limit_error"}}\n\n'
    with pytest.raises(openai.APIError, match="full") as caught:
        list(client(httpx.Response(200, content=error + DONE)).stream("x"))
    assert (caught.value.type, caught.value.code) == ("rate_limit_error", "queue_full")


def test_a_stream_takes_a_key() -> None:
    seen: list[httpx.Request] = []
    list(client(httpx.Response(200, content=DONE), seen).stream("x", idempotency_key="mine", max_tokens=3))
    assert seen[0].headers["idempotency-key"] == "mine"
    assert set(json.loads(seen[0].content)) == {"model", "messages", "stream", "max_tokens"}


def test_the_model_of_one_call_is_not_the_next_ones() -> None:
    seen: list[httpx.Request] = []
    there = client(httpx.Response(200, json=ANSWER), seen)
    there.chat("x", model="other")
    there.chat("x")
    assert [json.loads(request.content)["model"] for request in seen] == ["other", "m"]


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": [{}], "usage": {}}, {"choices": None}, {"data": 1}])
def test_a_body_that_is_not_the_services(body: dict[str, Any]) -> None:
    with pytest.raises(HeadgateClientError, match="address"):
        client(httpx.Response(200, json=body)).chat("x")
    with pytest.raises(HeadgateClientError, match="address"):
        client(httpx.Response(200, json=body)).models()
    stream = b"data: " + json.dumps({"choices": 1, **body}).encode() + b"\n\n"
    with pytest.raises(HeadgateClientError):
        list(client(httpx.Response(200, content=stream)).stream("x"))


@pytest.mark.parametrize("error", [None, "gone", [1], {"message": None}])
def test_an_error_in_another_shape_is_an_error_all_the_same(error: object) -> None:
    with pytest.raises(openai.InternalServerError):
        client(httpx.Response(500, json={"error": error})).chat("x")


@pytest.mark.parametrize("after", ["Wed, 21 Oct 2026 07:28:00 GMT", "-1", "nan", "inf", ""])
def test_a_time_to_come_back_that_is_no_number_of_seconds_is_unknown(after: str) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        client(httpx.Response(429, json={"error": {"message": "full"}}, headers={"retry-after": after})).chat("x")
    assert retry_after_s(caught.value) is None


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [("half \ud800", {}), ("x", {"temperature": float("nan")}), ("x", {"stop": object()}), ("x", {"stop": b"b"})],
)
def test_what_json_cannot_say_is_never_sent(prompt: str, fields: dict[str, Any]) -> None:
    seen: list[httpx.Request] = []
    with pytest.raises(HeadgateClientError, match="JSON"):
        client(httpx.Response(200, json=ANSWER), seen).chat(prompt, **fields)
    assert seen == []


def test_what_a_header_cannot_carry() -> None:
    for key in ("k\u00e9", "k\r\nx: y"):
        with pytest.raises(HeadgateClientError, match="api_key"):
            Headgate("http://h/v1", key, model="m")
    with pytest.raises(HeadgateClientError, match="idempotency_key"):
        client(httpx.Response(200, json=ANSWER)).chat("x", idempotency_key="a\nb")


@pytest.mark.parametrize("url", ["http://h:port/v1", "h:8080/v1", "http://[::1/v1", "/v1"])
def test_a_base_url_that_is_no_url(url: str) -> None:
    with pytest.raises(HeadgateClientError, match="no URL"):
        Headgate(url, "k", model="m")


class Pauses:
    """Sleeps that are counted, not slept."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.slept.append(seconds)

    def patience(self, within_s: float, jitter: float = 0.0) -> Patience:
        return Patience(within_s, self.sleep, self.sleep_async, lambda: jitter)


def full(after: str) -> httpx.Response:
    return httpx.Response(429, json={"error": {"message": "full"}}, headers={"retry-after": after})


class TestPatience:
    def test_tries_again_after_retry_after_with_the_same_key(self) -> None:
        pauses, seen = Pauses(), []
        replies = iter([full("2"), full("3"), httpx.Response(200, json=ANSWER)])

        def answer(request: httpx.Request) -> httpx.Response:
            seen.append(request.headers["idempotency-key"])
            return next(replies)

        assert over(answer, patience=pauses.patience(10, jitter=0.4)).chat("x").text == "hi"
        assert pauses.slept == pytest.approx([2.2, 3.3])
        assert len(seen) == 3
        assert len(set(seen)) == 1

    def test_ends_within_its_bound_even_if_retry_after_is_zero(self) -> None:
        pauses = Pauses()
        with pytest.raises(openai.RateLimitError):
            client(full("0"), patience=pauses.patience(1.0)).chat("x")
        assert 5 <= len(pauses.slept) <= 10
        assert sum(pauses.slept) <= 1.0

    @pytest.mark.parametrize(
        "reply",
        [full("11"), full(""), *(httpx.Response(status, headers={"retry-after": "1"}) for status in (400, 500, 502))],
    )
    def test_is_for_refusals_that_name_a_time_within_it(self, reply: httpx.Response) -> None:
        pauses = Pauses()
        with pytest.raises(openai.APIStatusError):
            client(reply, patience=pauses.patience(10)).chat("x")
        assert pauses.slept == []

    def test_is_none_unless_asked_for(self) -> None:
        seen: list[httpx.Request] = []
        with pytest.raises(openai.RateLimitError):
            client(full("0"), seen).chat("x")
        assert len(seen) == 1

    def test_async(self) -> None:
        pauses = Pauses()
        replies = iter([full("2"), httpx.Response(200, json=ANSWER)])

        async def story() -> str:
            async with async_over(lambda _: next(replies), patience=pauses.patience(5)) as there:
                return (await there.chat("x")).text

        assert asyncio.run(story()) == "hi"
        assert pauses.slept == [2.0]


def test_missing_address_or_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADGATE_BASE_URL", raising=False)
    monkeypatch.delenv("HEADGATE_API_KEY", raising=False)
    with pytest.raises(HeadgateClientError, match="set HEADGATE_BASE_URL"):
        Headgate(api_key="k")
    with pytest.raises(HeadgateClientError, match="set HEADGATE_API_KEY"):
        Headgate(base_url="http://127.0.0.1/v1")


def test_async() -> None:
    async def story() -> tuple[str, list[str]]:
        replies = iter([httpx.Response(200, json=ANSWER), httpx.Response(200, content=STREAM + DONE)])
        there = async_over(lambda _: next(replies))
        return (await there.chat("x")).text, [piece async for piece in there.stream("x")]

    assert asyncio.run(story()) == ("hi", ["h", "i"])


class FakeLambda:
    """boto3's client as far as it is used here; the real one is in tests/local/test_stack.py."""

    def __init__(self, payload: Any, **reply: Any) -> None:
        self.content = json.dumps(payload).encode() if payload is not None else b""
        self.reply = reply
        self.calls: list[dict[str, Any]] = []

    def invoke(self, **call: Any) -> dict[str, Any]:
        self.calls.append(call)
        return {"Payload": io.BytesIO(self.content), **self.reply}


class Failing(FakeLambda):
    """Lambda itself refuses, or cannot be reached."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def invoke(self, **call: Any) -> dict[str, Any]:
        raise self.error


def over_lambda(fake: Any, **more: Any) -> LambdaHeadgate:
    return LambdaHeadgate("k", model="m", client=fake, new_id=lambda: "made", **more)


class TestLambda:
    def test_asks_and_answers(self) -> None:
        fake = FakeLambda(ANSWER)
        assert over_lambda(fake).chat("x").text == "hi"
        sent = json.loads(fake.calls[0]["Payload"])
        assert (sent["api_key"], sent["idempotency_key"], sent["model"]) == ("k", "made", "m")

    def test_a_users_error_is_raised_by_its_status(self) -> None:
        with pytest.raises(openai.RateLimitError, match="full") as caught:
            over_lambda(FakeLambda({"error": {"message": "full"}, "status": 429, "retry_after_s": 3.5})).chat("x")
        assert retry_after_s(caught.value) == 3.5

    def test_it_comes_back_when_the_service_says(self) -> None:
        pauses, fake = Pauses(), FakeLambda({"error": {"message": "full"}, "status": 429, "retry_after_s": 0.3})
        with pytest.raises(openai.RateLimitError):
            over_lambda(fake, patience=pauses.patience(0.5)).chat("x")
        assert pauses.slept == [0.3]
        assert len(fake.calls) == 2
        assert fake.calls[0] == fake.calls[1]

    def test_a_function_error_and_a_wait_that_was_too_long(self) -> None:
        with pytest.raises(openai.InternalServerError, match="boom"):
            over_lambda(FakeLambda({"errorMessage": "boom"}, FunctionError="Unhandled")).chat("x")
        with pytest.raises(openai.InternalServerError, match="made"):
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
        with pytest.raises(openai.NotFoundError):
            over_lambda(FakeLambda({"error": {"message": "none"}, "status": 404})).result("i")

    def test_what_answers_is_not_headgate(self) -> None:
        payloads: tuple[Any, ...] = ({}, {"status": 3}, {"hello": "world"}, [])
        for payload in payloads:
            with pytest.raises(HeadgateClientError):
                over_lambda(FakeLambda(payload)).chat("x")
            with pytest.raises(HeadgateClientError):
                over_lambda(FakeLambda(payload)).result("i")

    def test_lambdas_own_refusals(self) -> None:
        throttled = ClientError({"Error": {"Code": "TooManyRequestsException", "Message": "Rate"}}, "Invoke")
        with pytest.raises(openai.RateLimitError) as caught:
            over_lambda(Failing(throttled), patience=Pauses().patience(60)).chat("x")
        assert caught.value.code == "TooManyRequestsException"

    def test_lambda_out_of_reach(self) -> None:
        with pytest.raises(openai.APIConnectionError):
            over_lambda(Failing(EndpointConnectionError(endpoint_url="there"))).chat("x")

    def test_models_and_streams_are_for_http(self) -> None:
        with pytest.raises(openai.NotFoundError, match="name the model"):
            over_lambda(FakeLambda(ANSWER)).models()
        refused = {"error": {"message": "lambda.invoke does not stream"}, "status": 400}
        with pytest.raises(openai.BadRequestError, match="does not stream"):
            list(over_lambda(FakeLambda(refused)).stream("x"))

    def test_functions_by_other_names(self) -> None:
        fake = FakeLambda(ANSWER)
        over_lambda(fake, function="mine:live").chat("x")
        assert fake.calls[0]["FunctionName"] == "mine:live"

    def test_async(self) -> None:
        answering: Any = FakeLambda(ANSWER)
        later: Any = FakeLambda(None)
        done: Any = FakeLambda({"id": "i", "status": "done", "response": ANSWER})

        async def story() -> tuple[str, str, str]:
            async with AsyncLambdaHeadgate("k", model="m", client=answering) as there:
                text = (await there.chat("x", max_tokens=3)).text
            async with AsyncLambdaHeadgate("k", model="m", client=later) as there:
                key = await there.later("x", idempotency_key="mine")
            async with AsyncLambdaHeadgate("k", model="m", client=done) as there:
                return text, key, (await there.result("i")).status

        assert asyncio.run(story()) == ("hi", "mine", "done")
        assert later.calls[0]["InvocationType"] == "Event"
        assert json.loads(done.calls[0]["Payload"]) == {"api_key": "k", "id": "i"}

    def test_its_own_boto3_client_asks_once_and_waits_longer_than_a_function_may_run(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        config: Any = lambda_client().meta.config
        assert config.read_timeout == LAMBDA_READ_TIMEOUT_S > 900
        assert config.retries["total_max_attempts"] == 1

    def test_a_missing_region_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
        with pytest.raises(HeadgateClientError, match="region"):
            LambdaHeadgate("k", model="m")
