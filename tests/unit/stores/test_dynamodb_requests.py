"""A table that does not answer: each request has a bounded time, also one that waits for a thread."""

from __future__ import annotations

import asyncio
import threading
from random import Random
from typing import Any

import pytest

from dispatcher.model.errors import StoreUnavailable
from dispatcher.stores.dynamodb.requests import BUDGET_S, Requests
from dispatcher.stores.dynamodb.server_time import ServerTime
from tests.conformance.store_world import FakeClock
from tests.support.hang_guard import HANG_S


class HangingClient:
    """Answers each request once it may."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.began, self.may_answer = threading.Event(), threading.Event()

    def get_item(self, *, TableName: str, Key: str) -> dict[str, Any]:  # noqa: N803 - as boto3 has them
        self.requests.append(Key)
        self.began.set()
        assert self.may_answer.wait(HANG_S)
        return {}


async def test_a_request_whose_time_is_over_is_not_sent() -> None:
    """With a hundred requests ahead of it, each of them silent for seconds, its caller would wait for minutes."""
    clock, client = FakeClock(), HangingClient()
    requests = Requests(client, "table", clock, Random(1), 1, ServerTime())  # type: ignore[arg-type]
    sent = [asyncio.create_task(requests.send("get_item", Key=key)) for key in ("first", "second")]
    assert await asyncio.to_thread(client.began.wait, HANG_S)
    clock.time += BUDGET_S + 1
    client.may_answer.set()
    assert await sent[0] == {}
    with pytest.raises(StoreUnavailable, match="too slow"):
        await sent[1]
    assert client.requests == ["first"]
    requests.close()
