"""Which executions a worker reports as those that caused the load of an adapter."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.model.fleet import ADAPTER_PREFIX
from dispatcher.model.kept import StoredAnswer, priced_details_of
from gpu_worker.engines.interface import EngineFacts
from gpu_worker.service.executions.execution import Abort
from tests.support.worker.harness import WorkerHarness, order
from tests.support.worker.scripted_engine import MODEL, ScriptedEngine

pytestmark = pytest.mark.virtual_time

ADAPTERS = frozenset(f"{ADAPTER_PREFIX}{name}" for name in "xyz")


def engine(max_loras: int | None, model: str = MODEL) -> ScriptedEngine:
    return ScriptedEngine(facts=EngineFacts(model, 1000, 1.0, ADAPTERS, max_loras=max_loras))


async def loads_of(harness: WorkerHarness, *models: str, **fields: object) -> list[bool]:
    """Execute an order for each of these models, one after the other. Return which were reported as loads."""
    before = len(harness.gate.ended)
    for number, model in enumerate(models, before):
        await harness.start(order(f"i{number}", model=model, **fields))
    return [end.adapter_loaded for end in harness.gate.ended[before:]]


async def test_the_last_used_adapters_are_loaded() -> None:
    harness = WorkerHarness(engine(2))
    assert await loads_of(harness, "x", "x", MODEL, "y", "x") == [True, False, False, True, False]
    assert await loads_of(harness, "z", "x", "y") == [True, False, True], "y was not used for the longest time"


async def test_an_adapter_in_use_stays() -> None:
    harness = WorkerHarness(engine(2))
    long = harness.start(order("long", model="x", max_tokens=200))
    await asyncio.sleep(1)
    assert await loads_of(harness, "y", "z", "y") == [True, True, True]
    await long
    assert harness.gate.ended[-1].adapter_loaded
    assert await loads_of(harness, "x") == [False]


async def test_a_worker_that_does_not_know_its_places_reports_no_loads() -> None:
    assert await loads_of(WorkerHarness(engine(None)), "x", "y", "x") == [False, False, False]


async def test_another_model_has_none_of_its_adapters_yet() -> None:
    harness = WorkerHarness(scripted := engine(2))
    assert await loads_of(harness, "x", "x") == [True, False]
    scripted.facts = EngineFacts("another", 1000, 1.0, ADAPTERS, max_loras=2)
    assert await loads_of(harness, "x", "x") == [True, False]


async def test_an_aborted_execution_pays_too_and_only_the_one_that_caused_the_load() -> None:
    harness = WorkerHarness(engine(1))
    for name, pays in (("first", True), ("second", False)):
        running = harness.start(order(name, model="x", max_tokens=50))
        await asyncio.sleep(0.5)
        await harness.executions.abort(f"{name}#1", Abort.LATE)
        await running
        assert harness.gate.ended[-1].adapter_loaded is pays


async def test_a_kept_answer_says_so() -> None:
    harness = WorkerHarness(engine(1))
    assert await loads_of(harness, "x", "x", durable=True) == [True, False]
    answers = [StoredAnswer(end.outcome, 1, 5, 3, end.answer, 0.0) for end in harness.gate.ended]
    assert [priced_details_of(answer)["adapter_loaded"] for answer in answers] == [True, False]
