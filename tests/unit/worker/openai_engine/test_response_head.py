"""The head of a server's response: Retry-After as the error carries it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.interface import own_order
from gpu_worker.engines.openai.client import RETRY_AFTER_MAX_S, is_framed, retry_after_s
from tests.support.worker.openai_server import JSON, FakeServer, engine_of, outcome, says

pytestmark = pytest.mark.virtual_time

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
