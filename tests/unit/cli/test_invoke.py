"""`headgate invoke` over a real connection to a service that gives fixed answers."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headgate.cli import invoke as module
from headgate.client import HeadgateClientError, Outcome
from tests.unit.cli.command import headgate

CHAT = {
    "id": "chatcmpl-1",
    "choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
STREAM = b'data: {"choices":[{"delta":{"content":"pie"}}]}\n\ndata: {"choices":[{"delta":{"content":"ces"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
FULL = {"error": {"message": "The queue\nis full.", "code": "queue_full", "type": "rate_limit_error"}}


class Service(BaseHTTPRequestHandler):
    """Answers chats, streamed or not; a prompt of `full` is refused, of `cut` ends before its end."""

    seen: list[dict[str, Any]]

    def do_GET(self) -> None:
        self._reply(200, json.dumps({"data": [{"id": "only"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append({**body, "path": self.path, "key": self.headers["idempotency-key"]})
        prompt = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        if prompt == "full":
            self._reply(429, json.dumps(FULL).encode())
        elif body.get("stream"):
            self._reply(200, STREAM + (b"" if prompt == "cut" else LAST))
        else:
            self._reply(200, json.dumps(CHAT).encode())

    def _reply(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    requests: list[dict[str, Any]] = []
    handler = type("Handler", (Service,), {"seen": requests})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("HEADGATE_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        monkeypatch.setenv("HEADGATE_API_KEY", "hg-k")
        yield requests
        server.shutdown()
        thread.join()


def test_streams_to_the_only_model(seen: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--system", "be brief", "--max-tokens", "4", "--seed", "7", "--stop", "a", "--stop", "b")
    assert headgate("invoke", "hello", *options, "--temperature", "0.5", "--idempotency-key", "mine") == 0
    assert capsys.readouterr().out == "pieces\n"
    assert seen == [
        {
            "path": "/v1/chat/completions",
            "key": "mine",
            "model": "only",
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
            "max_tokens": 4,
            "temperature": 0.5,
            "seed": 7,
            "stop": ["a", "b"],
            "stream": True,
        }
    ]


def test_whole_or_as_json(seen: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert headgate("invoke", "hello", "--no-stream") == 0
    assert capsys.readouterr().out == "whole\n"
    assert headgate("invoke", "hello", "--json", "--model", "other") == 0
    assert json.loads(capsys.readouterr().out) == CHAT
    assert [request["model"] for request in seen] == ["only", "other"]
    assert all("stream" not in request for request in seen)


def test_a_completion_from_standard_input(
    seen: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("once upon\n"))
    assert headgate("invoke", "-", "--completion", "--no-stream") == 0
    assert (seen[0]["path"], seen[0]["prompt"]) == ("/v1/completions", "once upon\n")


@pytest.mark.parametrize(("prompt", "message"), [("full", "The queue is full."), ("cut", "the stream broke off")])
def test_an_error_is_one_line_and_exit_2(
    seen: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], prompt: str, message: str
) -> None:
    assert headgate("invoke", prompt) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"headgate: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ((), "--base-url"),
        (("--key", "hg-k"), "--base-url"),
        (("--base-url", "http://127.0.0.1/v1"), "--key"),
        (("--lambda", "--model", "m"), "--key"),
    ],
)
def test_a_missing_address_or_key_is_named_by_its_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], missing: str
) -> None:
    monkeypatch.delenv("HEADGATE_BASE_URL", raising=False)
    monkeypatch.delenv("HEADGATE_API_KEY", raising=False)
    assert headgate("invoke", "hello", *options) == 2
    assert f"with {missing}, or set" in capsys.readouterr().err


class FakeClient:
    """What the command uses of the client over lambda.invoke. The real one is tested in test_client.py."""

    outcome = Outcome("i", "queued", None, None)

    def __init__(self, key: str | None, *, model: str | None) -> None:
        pass

    def later(self, *_: object, **__: object) -> str:
        return "i"

    def result(self, invocation_id: str) -> Outcome:
        return self.outcome


@pytest.mark.parametrize(
    ("outcome", "code", "text"),
    [
        (Outcome("i", "queued", None, None), 0, "queued"),
        (Outcome("i", "failed", None, HeadgateClientError("the worker broke off")), 1, "failed: the worker broke off"),
        (Outcome("i", "expired", None, None), 1, "expired"),
    ],
)
def test_later_and_its_outcome(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: Outcome, code: int, text: str
) -> None:
    monkeypatch.setattr(module, "LambdaHeadgate", FakeClient)
    monkeypatch.setattr(FakeClient, "outcome", outcome)
    monkeypatch.setenv("HEADGATE_API_KEY", "hg-k")
    assert headgate("invoke", "x", "--lambda", "--model", "m", "--later") == 0
    assert headgate("invoke", "x", "--lambda", "--model", "m", "--later", "--json") == 0
    assert capsys.readouterr().out == 'i\n{"id": "i"}\n'
    assert headgate("invoke", "--lambda", "--result", "i") == code
    assert capsys.readouterr().out.strip() == text
    assert headgate("invoke", "--lambda", "--result", "i", "--json") == code
    assert json.loads(capsys.readouterr().out)["status"] == outcome.status
