"""The whole stack as processes, driven from outside: unmodified openai and boto3, curl's view, and bad input."""

from __future__ import annotations

import array
import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx
import openai
import psutil
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionUserMessageParam

from headgate.client import AsyncHeadgate, AsyncLambdaHeadgate, Headgate, LambdaHeadgate, Outcome
from tests.support.emf import series_in
from tests.support.hang_guard import HANG_S
from tests.support.local.stack import ROOT, Running, descendants, eventually, running, start, stop, usage

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]


class TestOpenAI:
    def test_chat_streams_and_counts(self, stack: Running) -> None:
        stream = stack.openai().chat.completions.create(
            model=stack.model,
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 12
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"

    def test_the_same_without_streaming(self, stack: Running) -> None:
        answer = stack.openai().chat.completions.create(
            model=stack.model, messages=[{"role": "user", "content": "hello"}], max_tokens=5
        )
        assert answer.choices[0].message.content
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 5

    def test_completions(self, stack: Running) -> None:
        answer = stack.openai().completions.create(model=stack.model, prompt="once upon", max_tokens=4)
        assert answer.choices[0].text
        assert answer.object == "text_completion"

    def test_models(self, stack: Running) -> None:
        assert stack.openai().models.retrieve(stack.model).id == stack.model

    def test_wrong_key(self, stack: Running) -> None:
        client = OpenAI(base_url=stack.openai_base_url, api_key="hg-unknown", max_retries=0)
        with pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
        assert caught.value.code == "invalid_api_key"

    def test_unknown_model(self, stack: Running) -> None:
        with pytest.raises(openai.NotFoundError) as caught:
            stack.openai().completions.create(model="gpt-17", prompt="x")
        assert caught.value.code == "model_not_found"

    @pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"max_tokens": 10**9}, {"n": 129}, {"surprise": 1}])
    def test_bad_fields_are_named(self, stack: Running, fields: dict[str, int]) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            stack.openai().completions.create(model=stack.model, prompt="x", extra_body=fields)
        assert caught.value.param == next(iter(fields))

    def test_each_choice_is_answered_and_counted(self, stack: Running) -> None:
        answer = stack.openai().completions.create(model=stack.model, prompt="x", max_tokens=4, n=3)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage is not None
        assert 3 <= answer.usage.completion_tokens <= 12

    def test_prompt_over_the_limit(self, stack: Running) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            stack.openai().completions.create(model=stack.model, prompt="x" * 300_000, max_tokens=4)
        assert caught.value.code == "context_length_exceeded"


class TestSecondTurn:
    """The answer's message goes back as it is: unmodified openai, boto3 and the tenant client."""

    FIRST: ClassVar[ChatCompletionUserMessageParam] = {"role": "user", "content": "hello"}
    AGAIN: ClassVar[ChatCompletionUserMessageParam] = {"role": "user", "content": "and more"}

    @pytest.mark.parametrize(
        "form",
        [lambda message: message, lambda message: message.model_dump(), lambda message: message.to_dict()],
        ids=["the message", "model_dump", "to_dict"],
    )
    def test_openai(self, stack: Running, form: Callable[[ChatCompletionMessage], Any]) -> None:
        client = stack.openai()
        messages: list[Any] = [self.FIRST]
        for _ in range(3):
            answer = client.chat.completions.create(model=stack.model, messages=messages, max_tokens=5)
            messages.append(form(answer.choices[0].message))
            messages.append(self.AGAIN)
        assert answer.choices[0].message.content

    def test_openai_with_neutral_fields(self, stack: Running) -> None:
        client, model = stack.openai(), stack.model
        first = client.chat.completions.create(model=model, messages=[self.FIRST], max_tokens=5)
        messages: list[Any] = [self.FIRST, first.choices[0].message, self.AGAIN]
        answer = client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=5,
            n=1,
            top_p=1,
            presence_penalty=0,
            frequency_penalty=0,
            logprobs=False,
            store=False,
            metadata={},
            tool_choice="none",
            stop=None,
            seed=None,
            extra_body={"repetition_penalty": 1.0, "min_p": 0, "top_k": -1, "use_beam_search": False},
        )
        assert answer.choices[0].message.content

    def test_boto3(self, stack: Running) -> None:
        asked = {"api_key": stack.api_keys["quiet"], "model": stack.model, "max_tokens": 5, "tool_choice": "auto"}
        first = ChatCompletion.model_validate(stack.invoke({**asked, "messages": [self.FIRST]}))
        message = first.choices[0].message.model_dump()
        assert message["refusal"] is None
        answer = stack.invoke({**asked, "messages": [self.FIRST, message, self.AGAIN]})
        assert ChatCompletion.model_validate(answer).choices[0].message.content

    def test_the_tenant_client(self, stack: Running) -> None:
        key = stack.api_keys["quiet"]
        by_lambda = LambdaHeadgate(key, model=stack.model, client=stack.aws("lambda"))
        for client in (Headgate(stack.openai_base_url, key), by_lambda):
            message = client.chat([self.FIRST], max_tokens=5).raw["choices"][0]["message"]
            assert client.chat([self.FIRST, message, self.AGAIN], max_tokens=5).text


class TestTenantClient:
    def over_lambda(self, stack: Running, key: str) -> LambdaHeadgate:
        return LambdaHeadgate(key, model=stack.model, client=stack.aws("lambda"))

    def test_streams_whole_answers(self, stack: Running) -> None:
        client = Headgate(stack.openai_base_url, stack.api_keys["quiet"])
        pieces = list(client.stream("hello", max_tokens=5, seed=1))
        assert len(pieces) > 1
        assert "".join(client.stream("hello", chat=False, max_tokens=5))
        assert client.complete("hello", max_tokens=5).output_tokens == 5

    def test_async(self, stack: Running) -> None:
        key, model = stack.api_keys["quiet"], stack.model

        async def texts() -> list[str]:
            async with (
                AsyncHeadgate(stack.openai_base_url, key) as http,
                AsyncLambdaHeadgate(key, model=model, client=stack.aws("lambda")) as by_lambda,
            ):
                answers = await asyncio.gather(*(c.chat("hello", max_tokens=5) for c in (http, by_lambda)))
                return [*(a.text for a in answers), "".join([p async for p in http.stream("hello", max_tokens=5)])]

        assert all(asyncio.run(texts()))

    def test_started_now_and_read_later(self, stack: Running) -> None:
        client = self.over_lambda(stack, stack.api_keys["quiet"])
        started = client.later("hello", max_tokens=5)

        def result() -> Outcome | None:
            try:
                return client.result(started)
            except openai.NotFoundError:
                return None  # Lambda has not begun the event yet

        outcome = eventually(result, lambda found: found is not None and found.status == "done")
        assert outcome is not None
        assert outcome.answer is not None
        assert outcome.answer.output_tokens == 5

    def test_errors_are_openais(self, stack: Running) -> None:
        for client in (Headgate(stack.openai_base_url, "hg-no", model=stack.model), self.over_lambda(stack, "hg-no")):
            with pytest.raises(openai.AuthenticationError) as caught:
                client.chat("hello")
            assert caught.value.code == "invalid_api_key"


class TestRawHttp:
    @pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"\xff", b'{"a": NaN}', b"[" * 100_000, b'{"a":1,"a":2}'])
    def test_what_is_no_json_object_is_400_in_openais_shape(self, stack: Running, body: bytes) -> None:
        reply = self.post(stack, body)
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "invalid_json"

    def test_a_body_too_large_is_413(self, stack: Running) -> None:
        assert self.post(stack, b"x" * 1_500_000).status_code == 413

    def test_unknown_routes_and_methods_answer_in_openais_shape(self, stack: Running) -> None:
        base = stack.openai_base_url
        assert httpx.get(f"{base}/nothing", timeout=HANG_S).json()["error"]["code"] == "unknown_url"
        assert httpx.get(f"{base}/chat/completions", timeout=HANG_S).json()["error"]["code"] == "method_not_allowed"

    def post(self, stack: Running, body: bytes) -> httpx.Response:
        headers = {"authorization": f"Bearer {stack.api_keys['quiet']}", "content-type": "application/json"}
        return httpx.post(f"{stack.openai_base_url}/chat/completions", content=body, headers=headers, timeout=HANG_S)


class TestLambda:
    def ask(self, stack: Running, **more: object) -> dict[str, Any]:
        return {"api_key": stack.api_keys["quiet"], "model": stack.model, "prompt": "hello", "max_tokens": 6, **more}

    def test_invoke_answers_openais_body(self, stack: Running) -> None:
        answer = stack.invoke(self.ask(stack))
        assert answer["object"] == "text_completion"
        assert answer["usage"]["completion_tokens"] == 6

    def test_a_users_error_is_a_normal_payload(self, stack: Running) -> None:
        reply = stack.aws("lambda").invoke(
            FunctionName="headgate-invoke", Payload=json.dumps({"api_key": "hg-no", "prompt": "x"}).encode()
        )
        assert "FunctionError" not in reply
        assert json.loads(reply["Payload"].read())["status"] == 401

    def test_event_invoke_and_its_result(self, stack: Running) -> None:
        accepted = stack.aws("lambda").invoke(
            FunctionName="headgate-invoke", InvocationType="Event", Payload=json.dumps(self.ask(stack)).encode()
        )
        assert accepted["StatusCode"] == 202
        found = self.result(stack, accepted["ResponseMetadata"]["RequestId"], "quiet")
        assert found["status"] == "done"
        assert found["response"]["usage"]["completion_tokens"] == 6
        other = self.result(stack, accepted["ResponseMetadata"]["RequestId"], "flood", wait=False)
        unknown = self.result(stack, "never-was", "flood", wait=False)
        assert other == unknown

    def test_the_same_key_is_one_invocation(self, stack: Running) -> None:
        first = stack.invoke(self.ask(stack, idempotency_key="once"))
        assert stack.invoke(self.ask(stack, idempotency_key="once")) == first
        conflict = stack.invoke(self.ask(stack, idempotency_key="once", prompt="other"))
        assert conflict["status"] == 409

    def test_aws_endpoint_url_alone_serves_dynamodb_and_sqs(self, stack: Running) -> None:
        assert stack.aws("dynamodb").list_tables()["TableNames"] == ["headgate"]
        assert stack.aws("sqs").list_queues()["QueueUrls"]

    def result(self, stack: Running, invocation_id: str, tenant: str, *, wait: bool = True) -> dict[str, Any]:
        payload = json.dumps({"api_key": stack.api_keys[tenant], "id": invocation_id}).encode()

        def answer() -> dict[str, Any]:
            reply = stack.aws("lambda").invoke(FunctionName="headgate-result", Payload=payload)
            found: dict[str, Any] = json.loads(reply["Payload"].read())
            return found

        return eventually(answer, lambda found: not wait or found.get("status") in ("done", "failed", "expired"))


def test_a_disconnect_settles_what_was_generated_and_frees_the_slot(stack: Running) -> None:
    before = usage(stack, "flood")
    stream = stack.openai("flood").completions.create(model=stack.model, prompt="long", max_tokens=2000, stream=True)
    next(iter(stream))
    stream.close()
    charged = eventually(lambda: usage(stack, "flood"), lambda found: found.requests > before.requests)
    assert 0 < charged.output_tokens - before.output_tokens < 2000
    assert running(stack, "flood") == 0


def test_no_log_carries_a_prompt_or_a_key(stack: Running) -> None:
    canary = "canary-5b1e77"
    client, model = stack.openai(), stack.model
    front_log = stack.home / "logs" / "front-0.log"
    ended_before = front_log.read_text().count("invocation ended")
    client.completions.create(model=model, prompt=canary, max_tokens=2)
    list(client.completions.create(model=model, prompt=canary, max_tokens=2, stream=True))
    stack.invoke({"api_key": stack.api_keys["quiet"], "model": model, "prompt": canary, "max_tokens": 2})
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=model, prompt=canary, max_tokens=2, extra_body={canary: 1})
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=model, prompt=canary * 30_000)
    eventually(lambda: front_log.read_text().count("invocation ended"), lambda ended: ended >= ended_before + 2)
    written = {path.name: path.read_text() for path in (stack.home / "logs").glob("*.log")}
    assert any("invocation_id" in text for name, text in written.items() if name.startswith("lambda-headgate-invoke"))
    for secret in (canary, *stack.api_keys.values()):
        assert not [name for name, text in written.items() if secret in text]


@contextmanager
def front_beside(stack: Running, log: int) -> Iterator[tuple[subprocess.Popen[bytes], openai.OpenAI]]:
    """Start a front with the variables of the stack's own one, whose standard output is the descriptor `log`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "functions.http_api.server", "--port", str(port)]
    environment = psutil.Process(stack.of_role("front")[0]["pid"]).environ()
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log) as front:
        try:
            eventually(lambda: _listens(port), bool)
            url, key = f"http://127.0.0.1:{port}/v1", stack.api_keys["quiet"]
            yield front, openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=HANG_S)
        finally:
            front.kill()


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_a_front_that_is_stopped_writes_the_lines_and_metrics_of_its_last_second(stack: Running) -> None:
    reading, writing = os.pipe()
    with front_beside(stack, writing) as (front, client):
        os.close(writing)
        for _ in range(3):
            client.completions.create(model=stack.model, prompt="x", max_tokens=2)
        front.terminate()
        assert front.wait(HANG_S) == -signal.SIGTERM
    with os.fdopen(reading, "rb") as pipe:
        out = pipe.read().decode()
    assert out.count("invocation ended") == 3
    assert sum(len(each.values) for each in series_in(out) if each.name == "outcome_done") == 3


def test_a_front_whose_log_nobody_reads_answers_and_ends(stack: Running) -> None:
    """The pipe takes one page. The front's thread waits for its reader, and nothing else does."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with front_beside(stack, writing) as (front, client):
        os.close(writing)
        for _ in range(30):  # their lines have 10 KB
            client.completions.create(model=stack.model, prompt="x", max_tokens=1)
        eventually(lambda: _bytes_in(reading), bool)
        assert client.completions.create(model=stack.model, prompt="x", max_tokens=1).choices
        front.terminate()
        assert front.wait(HANG_S) == -signal.SIGTERM
    os.close(reading)


def _bytes_in(pipe: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def test_many_at_once_are_all_answered(stack: Running) -> None:
    async def all_of_them() -> list[int]:
        client = openai.AsyncOpenAI(
            base_url=stack.openai_base_url, api_key=stack.api_keys["flood"], max_retries=0, timeout=HANG_S
        )
        model = stack.model
        asking = [client.completions.create(model=model, prompt=f"{n}", max_tokens=8) for n in range(40)]
        answers = await asyncio.gather(*asking)
        return [answer.usage.completion_tokens for answer in answers if answer.usage]

    assert asyncio.run(all_of_them()) == [8] * 40


class TestLifeAndDeath:
    def test_a_port_in_use_is_one_line_and_exit_2(self, stack: Running) -> None:
        port = stack.openai_base_url.rsplit(":", 1)[1].removesuffix("/v1")
        command = [sys.executable, "-m", "headgate.cli", "local", "--port", port, "--engine", "modelled"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
        assert ended.returncode == 2
        assert f"port {port}" in ended.stderr
        assert "Traceback" not in ended.stderr

    def test_worker_killed_mid_stream_then_no_worker_then_stop(self, tmp_path: Path) -> None:
        """kill -9 of the worker: the stream ends with an error, nothing hangs, then 503, and a stop leaves nothing."""
        stack = start(tmp_path, "--engine", "modelled")
        try:
            stream = iter(
                stack.openai().completions.create(model=stack.model, prompt="long", max_tokens=3000, stream=True)
            )
            next(stream)
            worker = next(p for p in descendants(stack.process.pid) if "gpu_worker" in p.cmdline())
            worker.send_signal(signal.SIGKILL)
            with pytest.raises(openai.APIError):
                list(stream)
        finally:
            code = stop(stack)
        assert code in (0, 2)
        assert not descendants(stack.process.pid)
