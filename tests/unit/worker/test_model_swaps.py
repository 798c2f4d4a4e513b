"""Swaps of a worker's model, also of sleeping ones: each failure ends with an engine that serves, or with the
worker's end; virtual time."""

from __future__ import annotations

import asyncio

import pytest

from gpu_worker.engines.interface import Token, own_order
from gpu_worker.engines.model_swaps import REST_S, ModelSwaps, SwapFailed
from gpu_worker.engines.registry import EngineUnavailable
from gpu_worker.engines.sleeping_engines import FAILURES_MAX
from gpu_worker.engines.supervised import SupervisedEngine
from tests.support.worker.swapped_models import DEVICE_BYTES, SLEEP_BYTES, Models, prepared

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


ROOM_FOR_ALL = 10 * SLEEP_BYTES

SWAP_S, WAKE_S = 5.1, 1.1
"""A start or a wake-up, and the canary."""


async def sleeping(models: Models, *others: str, budget: int = ROOM_FOR_ALL) -> tuple[SupervisedEngine, ModelSwaps]:
    return await prepared(models, *others, sleep_memory_bytes=budget)


def costs_s(swaps: ModelSwaps, loaded: str) -> dict[str, float]:
    return {each.model: round(each.swap_s, 1) for each in swaps.loadable(loaded, lambda _: 0.0)}


async def answer(engine: SupervisedEngine, name: str) -> str:
    request = own_order(name, "tenant", {"prompt": "p"}, 3)
    return "".join([event.text async for event in engine.generate(request) if isinstance(event, Token)])


async def test_what_tenants_received_is_counted_once() -> None:
    engine, swaps = await sleeping(Models(SLEEP_BYTES), "b")
    before = engine.stats().tenants["a"].service
    for number, name in enumerate(("b", "a", "b", "a", "b"), 1):
        await swaps.load(name)
        await answer(engine, str(number))
        assert engine.stats().tenants["a"].service == before + number * 2 * (3 + 8), "an answer and a canary"
    await engine.stop()


async def test_the_gate_gets_the_seconds_of_the_state_that_a_model_is_in() -> None:
    engine, swaps = await sleeping(Models(SLEEP_BYTES), "b", "c")
    assert costs_s(swaps, "a") == {"a": 0.0, "b": WAKE_S, "c": WAKE_S}
    await swaps.sleeping.evict("b")
    assert costs_s(swaps, "a") == {"a": 0.0, "b": pytest.approx(SWAP_S, abs=0.2), "c": WAKE_S}
    await engine.stop()


async def test_a_disk_that_became_slower_is_expected_of_models_that_were_not_loaded_since() -> None:
    models = Models()
    engine, swaps = await prepared(models, "b", "c")
    models.slower = 10.0
    for name in ("b", "a"):
        await swaps.load(name)
    assert costs_s(swaps, "a")["c"] == pytest.approx(50.0, abs=1.0)
    await engine.stop()


@pytest.mark.parametrize("sleep_bytes", [None, SLEEP_BYTES])
async def test_without_a_budget_or_the_ability_no_engine_sleeps(sleep_bytes: int | None) -> None:
    models = Models(sleep_bytes)
    engine, swaps = await sleeping(models, "b", budget=0 if sleep_bytes else ROOM_FOR_ALL)
    await swaps.load("b")
    assert (models.alive(), models.asleep(), engine.swaps.sleeps) == (["b"], [], 0)
    await engine.stop()


async def test_a_full_budget_stops_the_engine_that_was_used_least_recently() -> None:
    models = Models(SLEEP_BYTES)
    engine, swaps = await sleeping(models, "b", "c", "d", budget=2 * SLEEP_BYTES)
    for name in ("b", "c", "d", "a", "b"):
        await swaps.load(name)
        assert sum(each.sleep_bytes or 0 for each in engine.asleep.values()) <= 2 * SLEEP_BYTES
    assert [*engine.asleep] == ["d", "a"]
    await swaps.load("c")
    assert [*engine.asleep] == ["a", "b"]
    assert engine.swaps.evicted > 0
    await engine.stop()


async def test_room_is_made_by_another_engine_than_the_one_that_wakes() -> None:
    """Although that one was used least recently."""
    engine, swaps = await sleeping(Models(SLEEP_BYTES), "b", "c", budget=2 * SLEEP_BYTES)
    await swaps.load("c")
    assert [*engine.asleep] == ["b", "a"]
    wakes = engine.swaps.wakes
    await swaps.load("b")
    assert (engine.swaps.wakes, [*engine.asleep]) == (wakes + 1, ["c"])
    await engine.stop()


async def test_an_engine_that_must_be_woken_is_not_stopped_to_make_room() -> None:
    """Its memory is taken until it is awake: with room for one, the loaded engine is stopped."""
    models = Models(SLEEP_BYTES)
    engine, swaps = await sleeping(models, "b", budget=SLEEP_BYTES)
    states = []
    for name in ("b", "a", "b", "a"):
        states.append((name, *engine.asleep))
        await swaps.load(name)
    wakes = [len(state) == 2 for state in states]
    assert wakes in ([True, False, True, False], [False, True, False, True])
    await engine.stop()


@pytest.mark.parametrize("fault", ["sleep fails", "sleep hangs", "sleep frees nothing"])
async def test_an_engine_whose_sleep_fails_is_stopped(fault: str) -> None:
    models = Models(SLEEP_BYTES)
    engine, swaps = await sleeping(models, "b")
    models.made[-1].fault = fault
    assert models.made[-1].facts.model == engine.facts.model == "a"
    await swaps.load("b")
    assert (engine.facts.model, models.alive(), models.asleep()) == ("b", ["b"], [])
    assert (engine.swaps.done, engine.swaps.failed, engine.swaps.sleeps_failed) == (1, 0, 1)
    assert await models.free_bytes() == DEVICE_BYTES - 80
    await swaps.load("a")
    assert (engine.facts.model, models.asleep()) == ("a", ["b"])
    await engine.stop()


async def test_a_model_that_fails_again_and_again_is_only_stopped() -> None:
    models = Models(SLEEP_BYTES)
    engine, swaps = await sleeping(models, "b")
    for _ in range(FAILURES_MAX + 2):
        models.made[-1].fault = "sleep fails"
        await swaps.load("b")
        await swaps.load("a")
    assert engine.swaps.sleeps_failed == FAILURES_MAX
    await engine.stop()


async def test_a_start_that_fails_gets_all_the_memory_for_its_second_try() -> None:
    models = Models(SLEEP_BYTES)
    engine, swaps = await sleeping(models, "b", "c")
    await swaps.sleeping.evict("b")
    assert models.asleep() == ["c"]
    models.faults["b"] = ["fails", ""]
    await swaps.load("b")
    assert (engine.facts.model, models.alive(), [*engine.asleep]) == ("b", ["b"], [])
    await engine.stop()


async def test_the_worker_starts_also_if_a_model_does_not_start_while_others_sleep() -> None:
    models = Models(SLEEP_BYTES)
    models.faults["c"] = ["fails", ""]
    engine, swaps = await sleeping(models, "b", "c")
    assert [each.model for each in swaps.loadable("a", lambda _: 0.0)] == ["a", "b", "c"]
    assert sorted(models.alive()) == ["a", *engine.asleep] == ["a", "c"]
    models = Models(SLEEP_BYTES)
    models.faults["b"] = ["fails", ""]
    with pytest.raises(RuntimeError, match="out of memory"):
        await sleeping(models, "b", "c")
    await engine.stop()
