"""The head of a server's response: Retry-After as the error carries it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.interface import EngineError, EngineRequest
from gpu_worker.engines.openai.response_head import is_framed, retry_after_s
from headgate.simulator.virtual_time import run
from tests.support.worker.openai_server import JSON, FakeServer, engine_of, outcome, says

DATE = "Wed, 21 Oct 2026 07:28:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:09 GMT", "date": DATE}, 9.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:09 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:09 GMT", "date": DATE}, None),
        ({"retry-after": "1e9"}, 86_400.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds


@pytest.mark.parametrize(
    ("headers", "framed"), [({"content-length": "3"}, True), ({"transfer-encoding": "Chunked"}, True), ({}, False)]
)
def test_http_shows_the_end_of_a_body(headers: dict[str, str], framed: bool) -> None:
    assert is_framed(headers) == framed


@pytest.mark.parametrize(
    ("status", "code"), [(429, "engine_overloaded"), (503, "engine_overloaded"), (500, "generation_failed")]
)
def test_an_error_carries_status_and_retry_after(status: int, code: str) -> None:
    body = json.dumps({"error": {"message": "slow down"}}).encode()
    server = FakeServer(says(body), status=status, content_type=JSON, headers={"retry-after": "7"})

    async def story() -> EngineError | None:
        async with engine_of(server) as engine:
            asked: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
            return (await outcome(engine, EngineRequest("a", "t", asked, 4, Endpoint.CHAT)))[1]

    error = run(story())
    assert error is not None
    assert (error.code, error.status, error.retry_after_s) == (code, status, 7.0)
