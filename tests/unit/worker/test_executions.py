"""Executions: how they end, and when the worker settles them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gpu_worker.engines.interface import EngineError, EngineRequest
from gpu_worker.service.executions import Refusal
from gpu_worker.service.settlement import PAUSE_MAX_S, TRIES_MAX
from headgate.simulator.virtual_time import START, run
from tests.support.worker.harness import WorkerHarness, order, read
from tests.support.worker.scripted_engine import ScriptedEngine


async def left(harness: WorkerHarness, lines_read: int, **fields: Any) -> None:
    """A gate that disconnects after so many lines."""
    lines = harness.executions.run(harness.executions.claim(order(max_tokens=500, **fields)))
    for _ in range(lines_read):
        await anext(lines)
    await lines.aclose()
    await harness.executions.idle()


@pytest.mark.parametrize("lines_read", [1, 2, 5])
def test_where_the_gate_is_gone_the_exact_count_is_settled_once(lines_read: int) -> None:
    harness = WorkerHarness()
    run(left(harness, lines_read))
    assert harness.settlements.done == [("a/i#1", 5, harness.engine.generated)]
    assert lines_read - 1 <= harness.engine.generated <= lines_read + 1
    assert harness.executions.live() == frozenset()


def test_the_table_away_meanwhile_it_is_settled_when_it_is_back() -> None:
    harness = WorkerHarness()
    harness.settlements.away = TRIES_MAX - 1
    run(left(harness, 5))
    assert len(harness.settlements.done) == 1


def test_a_table_that_stays_away_is_given_up_in_bounded_time() -> None:
    async def story() -> tuple[WorkerHarness, float]:
        harness = WorkerHarness()
        harness.settlements.away = 10**6
        await left(harness, 5)
        return harness, harness.clock.now() - START

    harness, took_s = run(story())
    assert harness.settlements.tries == TRIES_MAX
    assert took_s < TRIES_MAX * PAUSE_MAX_S
    assert harness.executions.live() == frozenset()


def test_until_it_is_settled_it_is_named_live_but_holds_no_slot() -> None:
    async def story() -> None:
        harness = WorkerHarness()
        harness.settlements.away = 3
        leaving = asyncio.ensure_future(left(harness, 2))
        await asyncio.sleep(1)
        assert harness.executions.live() == {"a/i#1"}
        with pytest.raises(Refusal, match="running already"):
            harness.executions.claim(order())
        for name in ("j", "k"):
            harness.executions.claim(order(name))
        leaving.cancel()

    run(story())


def test_where_the_lease_is_lost_nothing_is_settled() -> None:
    async def story() -> WorkerHarness:
        harness = WorkerHarness()
        lines = harness.executions.run(harness.executions.claim(order(max_tokens=500)))
        await anext(lines)
        await harness.executions.abort("a/i#1", lease_lost=True)
        await lines.aclose()
        await harness.executions.idle()
        return harness

    assert run(story()).settlements.tries == 0


def test_an_engine_that_fails_while_a_lost_execution_runs_out_frees_the_slot_and_is_settled() -> None:
    class Failing(ScriptedEngine):
        async def generate(self, request: EngineRequest):  # type: ignore[no-untyped-def]
            async for event in super().generate(request):
                yield event
                if self.generated == 2:
                    raise EngineError("engine_failed", "it failed")

    harness = WorkerHarness(Failing())
    run(left(harness, 3))
    assert harness.executions.live() == frozenset()
    assert [name for name, *_ in harness.settlements.done] == ["a/i#1"]


def test_any_error_of_the_engine_frees_the_slot() -> None:
    class Broken(ScriptedEngine):
        async def generate(self, request: EngineRequest):  # type: ignore[no-untyped-def]
            raise RuntimeError("not what an engine says")
            yield

    async def story() -> WorkerHarness:
        harness = WorkerHarness(Broken())
        with pytest.raises(RuntimeError):
            await harness.start(order())
        await harness.executions.idle()
        return harness

    assert run(story()).executions.live() == frozenset()


class Tokenizing(ScriptedEngine):
    """Knows a request only after a second."""

    async def generate(self, request: EngineRequest):  # type: ignore[no-untyped-def]
        await asyncio.sleep(1)
        async for event in super().generate(request):
            yield event


def test_gone_while_its_prompt_is_tokenized_it_generates_next_to_nothing() -> None:
    async def story() -> WorkerHarness:
        harness = WorkerHarness(Tokenizing())
        reading = harness.start(order(max_tokens=500))
        await asyncio.sleep(0.5)
        reading.cancel()
        await asyncio.wait({reading})
        await harness.executions.idle()
        return harness

    harness = run(story())
    assert harness.engine.generated <= 1
    assert harness.settlements.done == [("a/i#1", 5, harness.engine.generated)]


def test_aborted_while_its_prompt_is_tokenized_it_ends_too() -> None:
    async def story() -> list[bytes]:
        harness = WorkerHarness(Tokenizing())
        reading = harness.start(order(max_tokens=500))
        await asyncio.sleep(0.5)
        await harness.executions.abort("a/i#1")
        return await reading

    assert json.loads(run(story())[-1])["reason"] == "aborted"


@pytest.mark.parametrize("token_s", [0.001, 0.1, 0.7, 30.0])
def test_past_its_deadline_it_is_aborted_at_the_next_step(token_s: float) -> None:
    async def story() -> tuple[dict[str, object], float]:
        harness = WorkerHarness(ScriptedEngine(token_s=token_s))
        lines = await harness.start(order(max_tokens=10_000, deadline_at=START + 2))
        return json.loads(lines[-1]), harness.clock.now() - START

    last, took_s = run(story())
    assert last["reason"] == "aborted"
    assert 2 <= took_s <= max(2.0, token_s) + 2 * token_s


def test_a_deadline_that_passes_while_the_reader_dawdles_is_kept_too() -> None:
    """Tokens are ready whenever it looks: it must not take that for the engine being in time."""

    async def story() -> dict[str, object]:
        harness = WorkerHarness(ScriptedEngine(token_s=0.5))
        lines = harness.executions.run(harness.executions.claim(order(max_tokens=200, deadline_at=START + 1)))
        await anext(lines)
        await anext(lines)
        await asyncio.sleep(1)
        last: dict[str, object] = json.loads((await read(lines))[-1])
        return last

    assert run(story())["reason"] == "aborted"
