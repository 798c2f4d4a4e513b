"""The demo's calls through Lambda, with a client that returns prepared payloads."""

from __future__ import annotations

import io
import json
from typing import Any

from headgate.demo.player import RESULT_POLL_S, _invoke

ASKED = {"api_key": "hg-1", "model": "m"}
ANSWER = {"usage": {"prompt_tokens": 3, "completion_tokens": 5}}


class Prepared:
    """A Lambda client."""

    class exceptions:  # noqa: N801 - boto3's name
        class TooManyRequestsException(Exception):
            pass

    def __init__(self, *payloads: dict[str, Any] | None) -> None:
        self.payloads = list(payloads)
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def invoke(self, FunctionName: str, Payload: bytes) -> dict[str, Any]:  # noqa: N803 - boto3's names
        self.calls.append((FunctionName, json.loads(Payload)))
        if (payload := self.payloads.pop(0)) is None:
            raise self.exceptions.TooManyRequestsException
        return {"Payload": io.BytesIO(json.dumps(payload).encode())}


def invoked(client: Prepared) -> tuple[dict[str, Any], list[float]]:
    pauses: list[float] = []
    return _invoke(client, ASKED, pauses.append), pauses  # type: ignore[arg-type]


def test_an_answer_needs_one_call() -> None:
    client = Prepared(ANSWER)
    assert invoked(client) == (ANSWER, [])
    assert client.calls == [("headgate-invoke", ASKED)]


def test_the_result_of_a_queued_call_is_asked_for_until_it_is_done() -> None:
    client = Prepared(
        {"id": "r", "status": "queued"},
        {"id": "r", "status": "running"},
        {"id": "r", "status": "done", "response": ANSWER},
    )
    assert invoked(client) == (ANSWER, [RESULT_POLL_S] * 2)
    assert client.calls[1:] == [("headgate-result", {"api_key": "hg-1", "id": "r"})] * 2


def test_an_error_and_a_refusal_end_it() -> None:
    failed = {"id": "r", "status": "failed", "error": {"code": "worker_failed"}}
    assert invoked(Prepared({"id": "r", "status": "queued"}, failed))[0] == failed
    refused = {"status": 429, "error": {"code": "queue_full"}}
    assert invoked(Prepared(refused))[0] == refused
    assert invoked(Prepared(None))[0] == {"errorType": "TooManyRequestsException"}
