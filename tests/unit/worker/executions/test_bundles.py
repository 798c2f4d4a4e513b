"""The text of an answer that is not streamed travels in few events, and is the same text."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.answers import Collected
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkOrder
from gpu_worker.engines.interface import EngineEvent
from gpu_worker.service.executions.engine_reader import STEP_S
from gpu_worker.service.executions.execution import BUNDLE_S, EVENTS_AHEAD_MAX, Bundles, EventsAhead
from gpu_worker.service.executions.executions import ALIVE
from tests.support.worker.harness import WorkerHarness, order
from tests.support.worker.scripted_engine import ScriptedEngine

PIECES = st.tuples(
    st.integers(0, 2),
    st.text(max_size=3),
    st.sampled_from([None, {"reasoning": "r"}, {"tool_calls": [{"index": 0, "function": {"arguments": "a"}}]}]),
    st.sampled_from([None, {"content": [{"token": "t"}]}]),
    st.sampled_from([0.0, 0.1, 2.0]),
)


@given(st.lists(PIECES, max_size=20))
def test_the_caller_gets_the_same_answer(pieces: list[tuple[int, str, Any, Any, float]]) -> None:
    now_s, whole, bundled, bundles = 0.0, Collected(), Collected(), Bundles(0.0)
    for count, (choice, text, delta, logprobs, pause_s) in enumerate(pieces, start=1):
        now_s += pause_s
        token = Token(text, count, choice, delta, logprobs)
        whole.note(token)
        for sent in bundles.add(token, now_s):
            bundled.note(sent)
    for sent in bundles.take(now_s):
        bundled.note(sent)
    assert (bundled.choices(), bundled.output_tokens) == (whole.choices(), whole.output_tokens)


def test_the_first_token_goes_at_once_and_text_waits_a_second_at_most() -> None:
    bundles = Bundles(0.0)
    assert bundles.add(Started(5), 0.0) == [Started(5)]
    assert bundles.add(Token("a", 1), 0.5) == [Token("a", 1)]
    assert bundles.add(Token("b", 2), 0.6) == []
    assert bundles.add(Token("c", 3), 0.5 + BUNDLE_S) == [Token("bc", 3)]
    assert bundles.add(Token("d", 4), 0.6 + BUNDLE_S) == []
    assert bundles.take(0.7 + BUNDLE_S) == [Token("d", 4)]


def test_much_text_does_not_wait() -> None:
    """A line to the gate is bounded."""
    bundles = Bundles(0.0)
    bundles.add(Token("a", 1), 0.0)
    sent = [each for count in range(100) for each in bundles.add(Token("x" * 10_000, count), 0.0)]
    assert all(isinstance(each, Token) and len(each.text) <= 80_000 for each in sent)
    assert len(sent) >= 10


@pytest.mark.virtual_time
@pytest.mark.parametrize(("streamed", "tokens"), [(True, 40), (False, 2)])
async def test_a_worker_bundles_what_is_not_streamed(streamed: bool, tokens: int) -> None:
    harness = WorkerHarness(ScriptedEngine(token_s=0.01))
    lines = await harness.start(order(max_tokens=40, streamed=streamed))
    events = [json.loads(line) for line in lines if line != ALIVE]
    assert [each["event"] for each in events] == ["started", *["token"] * tokens, "finished"]
    assert "".join(each.get("text", "") for each in events) == "x" * 40
    assert events[-2]["output_tokens"] == 40


@pytest.mark.virtual_time
async def test_text_does_not_wait_for_an_engine_that_pauses() -> None:
    """It goes out with the sign of life, so that the front knows what an end in the log counts."""
    harness = WorkerHarness(PausingEngine(token_s=0.01))
    lines = await harness.start(order(max_tokens=10, streamed=False))
    events = [json.loads(line) for line in lines]
    paused = [each["output_tokens"] for each in events if each["event"] == "token"]
    assert paused == [1, 5, 6, 10]
    assert {"event": "alive"} in events


class PausingEngine(ScriptedEngine):
    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        async for event in super().generate(request):
            yield event
            if isinstance(event, Token) and event.output_tokens == 5:
                await asyncio.sleep(2 * STEP_S + 1)


@pytest.mark.virtual_time
async def test_an_engine_is_read_only_so_far_ahead() -> None:
    async def events() -> AsyncGenerator[EngineEvent, None]:
        for count in range(1000):
            yield Token("x", count)

    ahead = EventsAhead(events())
    found: list[EngineEvent] = []
    while len(found) < 1000:
        found += (ready := await ahead.next(1.0))
        assert 1 <= len(ready) <= EVENTS_AHEAD_MAX
        await asyncio.sleep(1)
    assert found == [Token("x", count) for count in range(1000)]


@pytest.mark.virtual_time
async def test_what_is_there_goes_out_together() -> None:
    """An engine that is faster than its reader costs a system call for all that is there, and nothing is held back."""

    class AtOnce(ScriptedEngine):
        async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
            yield Started(5)
            for count in range(1, 41):
                yield Token("x", count)
            await asyncio.sleep(1)
            yield Finished("length", 5, 40)

    items = [item async for item in WorkerHarness(AtOnce()).lines(order(max_tokens=40, streamed=True))]
    counts = [[json.loads(line)["event"] for line in item.splitlines()] for item in items]
    assert counts == [["started"], ["token"] * 40, ["finished"]]
