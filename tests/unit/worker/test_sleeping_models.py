"""Swaps between sleeping models: within the budget, and each failure ends with an engine that serves; virtual time."""

from __future__ import annotations

import pytest

from gpu_worker.engines.interface import Token, own_order
from gpu_worker.engines.supervised import SupervisedEngine
from gpu_worker.engines.swapping.model_swaps import ModelSwaps, SwapFailed
from gpu_worker.engines.swapping.sleeping_engines import FAILURES_MAX
from tests.support.worker.swapped_models import DEVICE_BYTES, SLEEP_BYTES, Models, prepared

pytestmark = pytest.mark.virtual_time

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


async def test_twenty_cycles_wake_one_engine_and_put_the_other_to_sleep() -> None:
    models = Models(SLEEP_BYTES)
    engine, swaps = await sleeping(models, "b")
    made = len(models.made)
    for cycle in range(20):
        for name, other in (("b", "a"), ("a", "b")):
            await swaps.load(name)
            assert (engine.facts.model, models.asleep(), [*engine.asleep]) == (name, [other], [other])
            assert await answer(engine, f"{name}{cycle}") == "xxx"
    assert len(models.made) == made, "no engine was started"
    assert (engine.swaps.done, engine.swaps.failed, engine.swaps.wakes_failed) == (40, 0, 0)
    assert engine.swaps.last_s == engine.swaps.wake_s == pytest.approx(WAKE_S, abs=0.1)
    await engine.stop()
    assert models.alive() == []


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


@pytest.mark.parametrize("fault", ["wake fails", "wake hangs", "wake lies", "wrong after wake"])
async def test_an_engine_whose_wake_up_fails_is_stopped_and_started(fault: str) -> None:
    models = Models(SLEEP_BYTES)
    engine, swaps = await sleeping(models, "b")
    engine.asleep["b"].fault = fault  # type: ignore[attr-defined]
    bad = engine.asleep["b"]
    await swaps.load("b")
    assert (engine.facts.model, engine.serves(), models.asleep()) == ("b", True, ["a"])
    assert bad.is_stopped  # type: ignore[attr-defined]
    assert (engine.swaps.done, engine.swaps.failed, engine.swaps.wakes_failed) == (1, 0, 1)
    assert engine.restarts == 0, "the watch did not start one more"
    assert await answer(engine, "r") == "xxx"
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


async def test_a_failed_swap_returns_to_the_former_model() -> None:
    models = Models(SLEEP_BYTES)
    engine, swaps = await sleeping(models, "b")
    engine.asleep["b"].fault = "wrong after wake"  # type: ignore[attr-defined]
    models.faults["b"] = ["fails", "fails"]
    with pytest.raises(SwapFailed):
        await swaps.load("b")
    assert (engine.facts.model, engine.serves(), models.alive()) == ("a", True, ["a"])
    assert not engine.hopeless.is_set()
    await engine.stop()


async def test_an_engine_that_died_in_its_sleep_is_started() -> None:
    models = Models(SLEEP_BYTES)
    engine, swaps = await sleeping(models, "b")
    await engine.asleep["b"].stop()
    engine.asleep["b"].fault = "wake fails"  # type: ignore[attr-defined]
    await swaps.load("b")
    assert (engine.facts.model, models.alive()) == ("b", ["a", "b"])
    await engine.stop()
