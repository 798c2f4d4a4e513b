"""Errors of a server: what a tenant reads of them, and Retry-After as the error carries it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.interface import own_order
from gpu_worker.engines.openai.client import RETRY_AFTER_MAX_S, is_framed, retry_after_s
from gpu_worker.engines.openai.normal.faults import redact
from tests.support.worker.openai_server import JSON, FakeServer, engine_of, outcome, says

pytestmark = pytest.mark.virtual_time


SECRETS = {
    "http://10.0.0.7:8000/v1": "backend http://10.0.0.7:8000/v1 refused",
    "sk-secret-123": "Incorrect API key provided: sk-secret-123.",
    "10.1.2.3": "connect to 10.1.2.3:8000 failed",
    "fd00": "connect to [fd00::1]:8000 failed",
    "vllm-7.prod.svc.cluster.local": "no route to vllm-7.prod.svc.cluster.local:8000",
    "gpu-node-3": "upstream gpu-node-3:8000 is gone",
    "localhost": "localhost:11434 says no",
    "ip-10-0-0-7": "host ip-10-0-0-7 is down",
    "/usr/lib/python3.12": "File /usr/lib/python3.12/site-packages/vllm/engine.py has an error",
    "C:\\models": "cannot read C:\\models\\llama.gguf",
    "hunter22": "password=hunter22 is wrong",
    "eyJhbGciOi": "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30.abc is expired",
    "AKIAIOSFODNN7EXAMPLE": "the credentials AKIAIOSFODNN7EXAMPLE are invalid",
    "hf_abcdefgh12345": "token hf_abcdefgh12345 cannot read the model",
    "9f86d081884c7d65": "id 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "engine.py": 'bad\nTraceback (most recent call last):\n  File "engine.py", line 3',
    "s3://bucket": "cannot load s3://bucket/weights",
    "redis://": "redis://:pw@cache:6379/0 is down",
}

HARMLESS = (
    "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (904 in the messages).",
    "temperature must be between 0 and 2, not 3.5",
    "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "body.messages.0.content: field required",
    "max_tokens: 128000 is too large; the version is 1.2.3",
    "top_k/top_p: only one of them",
    "Invalid schema for function 'get_weather': 'type' must be \"object\"",
    "the token limit is 4096",
    "Unsupported value: 'messages[0].role' does not support 'developer'",
)


@pytest.mark.parametrize(("secret", "text"), SECRETS.items(), ids=SECRETS)
def test_a_secret_is_removed(secret: str, text: str) -> None:
    assert secret not in redact(text)
    assert redact(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_stay(text: str) -> None:
    assert redact(text) == text


DATE = "Wed, 21 Oct 2026 07:28:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 7 "}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "999999999999"}, RETRY_AFTER_MAX_S),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": DATE}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:30 GMT", "date": DATE}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "today"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30", "date": DATE}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "7, 8"}, None),
        ({"retry-after": "٧"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "9" * 5000}, None),
    ],
)
def test_retry_after_is_seconds_milliseconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds


@pytest.mark.parametrize(
    ("headers", "framed"), [({"content-length": "3"}, True), ({"transfer-encoding": "Chunked"}, True), ({}, False)]
)
def test_http_shows_the_end_of_a_body(headers: dict[str, str], framed: bool) -> None:
    assert is_framed(headers) == framed


@pytest.mark.parametrize(
    ("status", "code"), [*((each, "engine_overloaded") for each in (429, 503, 529)), (500, "generation_failed")]
)
async def test_an_error_carries_status_and_retry_after(status: int, code: str) -> None:
    body = json.dumps({"error": {"message": "slow down"}}).encode()
    server = FakeServer(says(body), status=status, content_type=JSON, headers={"retry-after": "7"})
    async with engine_of(server) as engine:
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
        error = (await outcome(engine, own_order("a", "t", asked, 4, Endpoint.CHAT)))[1]
    assert error is not None
    assert (error.code, error.status, error.retry_after_s) == (code, status, 7.0)
