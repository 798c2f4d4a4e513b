"""The queue between an attempt and the reader of its answer: how long the reader waits."""

import asyncio

import pytest

from dispatcher.model.worker_protocol import Started
from dispatcher.operations.calls.followed import AnswerEvents, Pause

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(("first_s", "then_s"), [(15.0, 1.0), (1.0, 15.0), (5.0, 5.0)])
async def test_each_wait_has_its_own_time(first_s: float, then_s: float) -> None:
    loop = asyncio.get_running_loop()
    events = AnswerEvents(loop.time, streamed=True)
    loop.call_later(0.5, events.put, Started(1))
    assert await events.next(first_s) == [Started(1)]
    began = loop.time()
    async with asyncio.timeout(100):
        assert await events.next(then_s) == [Pause.WAITING]
    assert loop.time() - began == pytest.approx(then_s)
