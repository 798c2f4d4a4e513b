"""Swaps of a worker's model: each failure ends with an engine that serves, or with the worker's end; virtual time."""

from __future__ import annotations

import asyncio

import pytest

from gpu_worker.engines.interface import own_order
from gpu_worker.engines.registry import EngineUnavailable
from gpu_worker.engines.swapping.model_swaps import REST_S, ModelSwaps, SwapFailed
from tests.support.worker.swapped_models import Models, prepared

pytestmark = pytest.mark.virtual_time


def names(swaps: ModelSwaps) -> list[str]:
    return [each.model for each in swaps.loadable("a", lambda _: 0.0)]


async def test_every_model_is_loaded_once_at_the_start_and_the_first_one_serves() -> None:
    models = Models()
    engine, swaps = await prepared(models, "b")
    assert (engine.facts.model, models.alive()) == ("a", ["a"])
    a, b = swaps.loadable("a", {"a": 7.0, "b": 0.0}.__getitem__)
    assert (a.model, a.swap_s, a.service_per_s, a.capabilities) == ("a", 0.0, 7.0, ("completion",))
    assert (b.model, b.context_tokens) == ("b", 1000)
    assert b.swap_s == pytest.approx(5.0)
    await engine.stop()


async def test_a_worker_of_one_model_offers_no_swaps() -> None:
    engine, swaps = await prepared(Models())
    assert swaps.loadable("a", lambda _: 0.0) == ()
    assert not swaps.can_load("a")
    await engine.stop()


async def test_after_a_swap_the_other_model_serves_and_the_former_is_gone() -> None:
    models = Models()
    engine, swaps = await prepared(models, "b")
    for name, other in (("b", "a"), ("a", "b"), ("b", "a")):
        await swaps.load(name)
        assert (engine.facts.model, models.alive(), engine.serves()) == (name, [name], True)
        assert {each.model: each.swap_s > 0 for each in swaps.loadable(name, lambda _: 0.0)} == {
            name: False,
            other: True,
        }
    assert (engine.swaps.done, engine.swaps.failed) == (3, 0)
    assert engine.swaps.last_s == pytest.approx(5.0, abs=0.2)
    await engine.stop()


@pytest.mark.parametrize("fault", ["fails", "wrong"])
async def test_one_fault_is_answered_by_another_start(fault: str) -> None:
    models = Models()
    engine, swaps = await prepared(models, "b")
    models.faults["b"] = [fault, ""]
    await swaps.load("b")
    assert (engine.facts.model, models.alive()) == ("b", ["b"])
    assert engine.swaps.last_s == pytest.approx(10.0, abs=0.3)
    await engine.stop()


@pytest.mark.parametrize("faults", [["fails", "fails"], ["wrong", "wrong"], ["fails", "wrong"]])
async def test_two_faults_bring_the_former_model_back_and_the_other_rests(faults: list[str]) -> None:
    models = Models()
    engine, swaps = await prepared(models, "b")
    for failures in (1, 2):
        models.faults["b"] = list(faults)
        with pytest.raises(SwapFailed):
            await swaps.load("b")
        assert (engine.facts.model, engine.serves(), models.alive()) == ("a", True, ["a"])
        assert (names(swaps), swaps.can_load("b"), engine.swaps.failed) == (["a"], False, failures)
        await asyncio.sleep(REST_S * failures + 1)
        assert (names(swaps), swaps.can_load("b")) == (["a", "b"], True)
    await swaps.load("b")
    assert engine.facts.model == "b"
    assert not engine.hopeless.is_set()
    await engine.stop()


async def test_if_the_former_model_does_not_come_back_the_worker_ends() -> None:
    models = Models()
    engine, swaps = await prepared(models, "b")
    models.faults = {"b": ["fails", "fails"], "a": ["fails"]}
    with pytest.raises(SwapFailed):
        await swaps.load("b")
    assert engine.hopeless.is_set()
    assert not engine.serves()
    await engine.stop()
    assert models.alive() == []


async def test_the_watch_does_not_replace_an_engine_that_is_swapped() -> None:
    models = Models()
    engine, swaps = await prepared(models, "b")
    asking = asyncio.ensure_future(anext(engine.generate(own_order("r", "t", {"prompt": "p"}, 10_000))))
    await asking
    await swaps.load("b")
    assert (engine.restarts, engine.facts.model, models.alive()) == (0, "b", ["b"])
    await engine.stop()


async def test_two_models_of_one_name_are_refused() -> None:
    models = Models()
    with pytest.raises(EngineUnavailable, match="two models of this worker have the name 'a'"):
        await prepared(models, "a")
