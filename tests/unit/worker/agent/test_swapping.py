"""The agent carries out the swaps that the gate orders: heartbeats go on, and no request is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dispatcher.model.commands import Report
from gpu_worker.service.swapper import DRAIN_S, Swapper
from tests.support.worker.harness import SETTINGS, WorkerHarness, drained, order, serving
from tests.support.worker.swapped_models import Models, prepared
from tests.support.world.virtual_time import START

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def swapping(models: Models | None = None) -> AsyncIterator[WorkerHarness]:
    """A worker with the models a (loaded) and b. A token takes 10 ms."""
    engine, swaps = await prepared(models or Models(), "b")
    harness = WorkerHarness(engine)  # type: ignore[arg-type]
    harness.executions.engine_serves = engine.serves
    harness.agent.swapper = Swapper(swaps, harness.executions, harness.clock)
    harness.agent.engine_changed = engine.changed
    async with serving(harness):
        yield harness
    await engine.stop()


def asked(model: str, tokens: int = 3, **fields: Any) -> Any:
    return order(model=model, max_tokens=tokens, deadline_at=START + 1000, **fields)


def models_of(reports: list[Report]) -> list[tuple[str, bool]]:
    """Return the model and whether the worker drains, each time that one of them changed."""
    seen = [(report.model, report.draining) for report in reports]
    return [each for number, each in enumerate(seen) if not number or seen[number - 1] != each]


async def test_a_swap_is_reported_and_the_other_model_is_served() -> None:
    async with swapping() as harness:
        assert [event.event for event in await harness.execute(asked("a"))][-1] == "finished"
        harness.gate.load = "b"
        await asyncio.sleep(10)
        assert models_of(harness.gate.heartbeats) == [("a", False), ("a", True), ("b", False)]
        last = harness.gate.heartbeats[-1]
        assert [(each.model, each.swap_s > 0) for each in last.models] == [("a", True), ("b", False)]
        assert (await harness.execute(asked("a", invocation="old")))[-1].code == "model_not_found"  # type: ignore[union-attr]
        assert (await harness.execute(asked("b", invocation="new")))[-1].event == "finished"


async def test_a_swap_waits_for_running_requests() -> None:
    async with swapping() as harness:
        running = harness.start(asked("a", 1000))
        await asyncio.sleep(0.5)
        harness.gate.load = "b"
        await running
        assert [end.outcome for end in harness.gate.ended] == ["done"]
        assert harness.executions.engine.facts.model == "a"
        await asyncio.sleep(10)
        assert harness.executions.engine.facts.model == "b"


@pytest.mark.parametrize(("fields", "returned"), [({"streamed": False}, 1), ({"streamed": True}, 0)])
async def test_a_request_that_runs_too_long_goes_back_to_the_gate(fields: dict[str, Any], returned: int) -> None:
    """A caller that streams has tokens already, so its request ends."""
    async with swapping() as harness:
        running = harness.start(asked("a", 100_000, **fields))
        await asyncio.sleep(0.5)
        harness.gate.load = "b"
        await asyncio.sleep(DRAIN_S + 12)
        await running
        assert [back.reason for back in harness.gate.returned] == ["refused"] * returned
        assert [end.outcome for end in harness.gate.ended] == ["failed"] * (1 - returned)
        assert models_of(harness.gate.heartbeats)[-1] == ("b", False)


def expected(report: Report) -> dict[str, float]:
    return dict(zip((each.model for each in report.models), report.expected_per_s, strict=True))


async def test_a_worker_expects_a_capacity_of_every_model_from_its_start() -> None:
    """The canary of each model shows how long a step takes: 10 ms, in which a request gets 2 service units."""
    async with swapping() as harness:
        await asyncio.sleep(SETTINGS.heartbeat_s)
        first = harness.gate.heartbeats[0]
        assert (first.slots, first.service_per_s) == (2, 0.0)
        assert {name: 200 < rate < 400 for name, rate in expected(first).items()} == {"a": True, "b": True}


async def test_a_worker_that_was_never_full_expects_a_capacity() -> None:
    async with swapping() as harness:
        running = harness.start(asked("a", 3000))
        await asyncio.sleep(20)
        last = harness.gate.heartbeats[-1]
        assert last.service_per_s == 0.0
        assert 250 < expected(last)["a"] < 400, "one request gets 200, and two get 400 of this engine"
        harness.gate.load = "b"
        await running
        await asyncio.sleep(10)
        assert harness.gate.heartbeats[-1].model == "b"
        assert expected(harness.gate.heartbeats[-1])["a"] == pytest.approx(expected(last)["a"], rel=1e-3), (
            "the swap's own time does not count"
        )


async def test_the_service_before_the_first_report_is_of_canaries() -> None:
    async with swapping() as harness:
        assert harness.agent.swapper is not None
        swapper = Swapper(harness.agent.swapper.swaps, harness.executions, harness.clock)
        usual, now_s = harness.gate.heartbeats[0], harness.clock.monotonic()
        swapper.described(usual, now_s, 10_000.0, saturated=False)
        harness.executions.fills.set_running(1, now_s)
        found = swapper.described(usual, now_s + 2, 10_400.0, saturated=False)
        assert 200 < expected(found)["a"] < 400


async def test_the_gate_may_change_its_mind_during_a_swap() -> None:
    async with swapping() as harness:
        harness.gate.load = "b"
        await asyncio.sleep(SETTINGS.heartbeat_s * 1.5)
        harness.gate.load = "a"
        await asyncio.sleep(20)
        assert models_of(harness.gate.heartbeats) == [
            ("a", False), ("a", True), ("b", False), ("b", True), ("a", False),
        ]  # fmt: skip


@pytest.mark.parametrize("load", ["", "a", "unknown"])
async def test_an_order_that_changes_nothing_is_ignored(load: str) -> None:
    async with swapping() as harness:
        harness.gate.load = load
        await asyncio.sleep(10)
        assert models_of(harness.gate.heartbeats) == [("a", False)]


async def test_a_failed_swap_is_reported_without_the_model() -> None:
    models = Models()
    async with swapping(models) as harness:
        models.faults["b"] = ["fails", "fails"]
        harness.gate.load = "b"
        await asyncio.sleep(30)
        assert models_of(harness.gate.heartbeats) == [("a", False), ("a", True), ("a", False)]
        assert [each.model for each in harness.gate.heartbeats[-1].models] == ["a"]
        assert (await harness.execute(asked("a")))[-1].event == "finished"


async def test_a_worker_reports_when_the_gate_asks_and_so_learns_its_order_at_once() -> None:
    async with swapping() as harness:
        before = len(harness.gate.heartbeats)
        harness.gate.load = "b"
        harness.agent.report_asked.set()
        await asyncio.sleep(0.01)
        assert harness.agent.swapper is not None
        assert harness.agent.swapper.is_swapping, "long before the next heartbeat"
        assert models_of(harness.gate.heartbeats[before:])[0] == ("a", False)


async def test_a_worker_that_stops_during_a_swap_ends_it_first() -> None:
    models = Models()
    async with swapping(models) as harness:
        harness.gate.load = "b"
        await asyncio.sleep(SETTINGS.heartbeat_s * 1.5)
        assert harness.agent.swapper is not None
        assert harness.agent.swapper.is_swapping
        await drained(harness)
        assert harness.gate.left
        assert models.alive() == ["b"]
        harness.agent.swapper.order("a")
        assert not harness.agent.swapper.is_swapping
