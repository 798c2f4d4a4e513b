"""A front that is stopped at the last byte of each answer and continued at the next request, as Lambda does it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from tests.support.hang_guard import HANG_S
from tests.support.local.stack import ROOT, Running, eventually, usage

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]
STACK = ("--slots", "2")
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
TOKENS_MAX = 200


@dataclass(frozen=True)
class FrozenFront:
    """A front as a process that runs only while a request is answered."""

    process: subprocess.Popen[bytes]
    port: int
    stack: Running

    def send(self, method: str, path: str, tenant: str, body: object = None, **headers: str) -> tuple[int, bytes]:
        """Continue the front, send the request, read to the last byte, and stop the front."""
        given = {"authorization": f"Bearer {self.stack.api_keys[tenant]}", **headers}
        self.process.send_signal(signal.SIGCONT)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), given)
            answer = connection.getresponse()
            read = answer.read()
        finally:
            self.process.send_signal(signal.SIGSTOP)
            connection.close()
        return answer.status, read

    def chat(self, tenant: str, *, stream: bool, max_tokens: int | None, **headers: str) -> tuple[int, bytes]:
        limit = {} if max_tokens is None else {"max_tokens": max_tokens}
        messages = [{"role": "user", "content": "hello"}]
        options = {"stream_options": {"include_usage": True}} if stream else {}
        body = {"model": self.stack.model, "messages": messages, "stream": stream, **limit, **options}
        return self.send("POST", CHAT, tenant, body, **headers)


@pytest.fixture(scope="module")
def front(stack: Running) -> Iterator[FrozenFront]:
    with frozen_front(stack) as made:
        yield made


@contextmanager
def frozen_front(stack: Running, **more: str) -> Iterator[FrozenFront]:
    """Start a front beside the stack's own, with the same variables, `more` and HEADGATE_FRONT=lambda. It begins
    stopped."""
    bounds = {"HEADGATE_LAMBDA_TOKENS_MAX": str(TOKENS_MAX), **more}
    beside = psutil.Process(stack.of_role("front")[0]["pid"]).environ()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "functions.http_api.server", "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env={**beside, **bounds, "HEADGATE_FRONT": "lambda"})
    try:
        eventually(lambda: _listens(port), bool)
        process.send_signal(signal.SIGSTOP)
        yield FrozenFront(process, port, stack)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(HANG_S)


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def holds_nothing(found: dict[str, Any]) -> bool:
    tenants = found["tenants"]
    return not any(worker["running"] for worker in found["workers"]) and not any(
        each["waiting"] or each["running"] for each in tenants
    )


def test_a_frozen_front_holds_nothing_and_the_ledger_is_exact(front: FrozenFront) -> None:
    """While it is stopped: no slot, no waiting call. Every answered token is charged, and no other."""
    expected = []
    for count in (3, 7):
        status, body = front.chat("quiet", stream=False, max_tokens=count)
        assert (status, json.loads(body)["usage"]["completion_tokens"]) == (200, count)
        assert holds_nothing(front.stack.top())
        status, body = front.chat("quiet", stream=True, max_tokens=count)
        assert status == 200
        assert body.rstrip().endswith(b"data: [DONE]")
        assert holds_nothing(front.stack.top())
        expected += [count, count]
    key = {"idempotency-key": "frozen"}
    first = front.chat("quiet", stream=False, max_tokens=5, **key)
    time.sleep(3)  # longer than an offer lives
    again = front.chat("quiet", stream=False, max_tokens=5, **key)
    assert first[0] == again[0] == 200
    assert json.loads(first[1])["choices"] == json.loads(again[1])["choices"]
    charged = usage(front.stack, "quiet")
    assert (charged.requests, charged.output_tokens) == (len(expected) + 1, sum(expected) + 5)


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_kept_while_its_front_is_frozen(front: FrozenFront, stream: bool) -> None:
    asked = {"model": front.stack.model, "input": "hello", "max_output_tokens": 4, "stream": stream}
    status, body = front.send("POST", RESPONSES, "quiet", asked)
    assert status == 200
    last = body.decode().strip().rpartition("data: ")[2]
    kept_id = json.loads(last)["response"]["id"] if stream else json.loads(body)["id"]
    assert front.stack.openai("quiet").responses.retrieve(kept_id).status == "incomplete"


def test_a_caller_that_left_unnoticed_ends_with_the_budget(front: FrozenFront) -> None:
    """What reads in its place, as a gateway does, reads to the end of the budget; that is what is charged."""
    before = usage(front.stack, "flood")
    status, body = front.chat("flood", stream=True, max_tokens=None)
    assert status == 200
    assert body.rstrip().endswith(b"data: [DONE]")
    assert holds_nothing(front.stack.top())
    after = usage(front.stack, "flood")
    assert after.requests == before.requests + 1
    assert 0 < after.output_tokens - before.output_tokens <= TOKENS_MAX
    assert front.chat("flood", stream=True, max_tokens=TOKENS_MAX + 1)[0] == 400


def test_an_answer_that_is_too_late_leaves_no_work_behind(front: FrozenFront) -> None:
    """Both slots are busy, so that it waits. Its 504 comes after its end in the log."""
    stack = front.stack
    client = stack.openai("flood")
    with frozen_front(stack, HEADGATE_LAMBDA_WHOLE_S="2") as impatient:
        busy = [
            client.completions.create(model=stack.model, prompt="x", max_tokens=3000, stream=True) for _ in range(2)
        ]
        try:
            status, body = impatient.chat("quiet", stream=False, max_tokens=5)
            assert status == 504
            assert "Stream it" in json.loads(body)["error"]["message"]
            quiet = [each for each in stack.top()["tenants"] if each["tenant"] == "quiet"]
            assert not any(each["waiting"] or each["running"] for each in quiet)
        finally:
            for each in busy:
                each.close()
    eventually(front.stack.top, holds_nothing)
    assert front.chat("quiet", stream=False, max_tokens=5)[0] == 200
