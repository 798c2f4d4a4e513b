"""What one tenant's failures, an engine's overload and a sick engine do to calls: attempts and order, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from statistics import median
from typing import TypeVar

import pytest

from dispatcher.model.worker_protocol import WorkRefused
from gpu_worker.engines.interface import EngineError, WorkOrder
from gpu_worker.service.health.engine_health import EVERY_S
from gpu_worker.service.health.failures import PROBE_TENANT
from gpu_worker.service.health.limits import FREE, HOLD_MAX_S
from tests.support.worker.fleet import Fault, FaultyEngine, Fleet, fleet
from tests.support.world.virtual_time import run

T = TypeVar("T")
SLOTS = 16
ATTACKERS = 8


def failed() -> EngineError:
    return EngineError("generation_failed", "the engine failed on this request")


def refused(status: int = 429, after_s: float | None = None) -> EngineError:
    return EngineError("engine_overloaded", "no more for now", status=status, retry_after_s=after_s)


def only(tenants: str, error: Callable[[], EngineError]) -> Fault:
    """An engine that fails on the requests of these tenants and on nothing else."""
    return lambda request, _running: error() if request.terms.tenant in tenants.split() else None


def takes(capacity: int, error: Callable[[], EngineError] = refused) -> Fault:
    """An engine that refuses what exceeds its capacity."""
    return lambda _request, running: error() if running >= capacity else None


def play(story: Callable[[Fleet], Awaitable[T]], *faults: Fault, slots: int = SLOTS) -> tuple[T, list[FaultyEngine]]:
    engines = [FaultyEngine(fault) for fault in faults]

    async def scene() -> T:
        async with fleet(*engines, slots=slots) as workers:
            return await story(workers)

    return run(scene()), engines


# ── A request that fails by itself ─────────────────────────────────────────────────────────────────────────────────


def test_a_poison_request_is_not_repeated_where_it_failed_by_itself() -> None:
    answer, (engine,) = play(lambda workers: workers.call("poison"), only("poison", failed))
    assert (answer.status, answer.attempts) == (500, 2)
    assert engine.asked["poison"] == 1
    assert isinstance(answer.event, WorkRefused)
    assert answer.event.code == "generation_failed"


def test_another_worker_tries_it_and_may_do_better() -> None:
    answer, engines = play(lambda workers: workers.call("a"), only("a", failed), only("", failed))
    assert (answer.status, answer.attempts) == (200, 2)
    assert [engine.asked["a"] for engine in engines] == [1, 1]


def test_it_is_tried_once_on_each_worker_at_most() -> None:
    answer, engines = play(lambda workers: workers.call("poison"), *[only("poison", failed)] * 4)
    assert answer.status in (500, 502)
    assert max(engine.asked["poison"] for engine in engines) == 1


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("error", [failed, lambda: refused(503), lambda: refused(429, 7.0)])
def test_a_neighbour_is_served_as_if_it_were_alone(workers: int, error: Callable[[], EngineError]) -> None:
    poisons = "poison worse"

    async def story(workers: Fleet) -> tuple[float, float, set[int]]:
        alone = await workers.repeat("neighbour", 1.0, 0.05)
        attacks = [asyncio.ensure_future(workers.repeat(poison, 3.0)) for poison in poisons.split() * ATTACKERS]
        beside = await workers.repeat("neighbour", 3.0, 0.05)
        await asyncio.gather(*attacks)
        assert {workers.gate.state(name) for name in workers.workers} == {"serving"}
        p50s = (median(each.took_s for each in answers) for answers in (alone, beside))
        return (*p50s, {each.status for each in beside})  # type: ignore[return-value]

    (alone_s, beside_s, statuses), _ = play(story, *[only(poisons, error)] * workers)
    assert statuses == {200}
    assert beside_s < 1.5 * alone_s, (beside_s, alone_s)


def test_a_known_tenant_costs_a_probe_a_second_and_the_failure_of_another_is_probed_at_once() -> None:
    async def story(workers: Fleet) -> tuple[int, int, int]:
        engine = workers.workers["w0"].engine
        assert isinstance(engine, FaultyEngine)
        await asyncio.gather(*(workers.repeat("poison", 20 * EVERY_S) for _ in range(ATTACKERS)))
        by_one = engine.probes
        await asyncio.gather(*(workers.call("poison") for _ in range(ATTACKERS)))
        again = engine.probes
        await workers.call("other")
        return by_one, again - by_one, engine.probes - again

    (by_one, again, by_other), _ = play(story, only("poison other", failed))
    assert 1 <= by_one <= FREE + 21
    assert again <= 1
    assert by_other == 1


def test_an_engine_that_turns_sick_just_after_a_good_probe_costs_no_call() -> None:
    """The verdict of the probe is older than the failures, so it does not explain them."""
    is_sick = False

    def fault(request: WorkOrder, _running: int) -> EngineError | None:
        return failed() if is_sick or request.terms.tenant == "poison" else None

    async def story(workers: Fleet) -> list[int]:
        nonlocal is_sick
        await workers.call("poison")
        is_sick = True
        calls = [asyncio.ensure_future(workers.call(tenant)) for tenant in ("a", "a", "b")]
        await asyncio.sleep(5.0)
        is_sick = False
        return [(await call).status for call in calls]

    assert play(story, fault)[0] == [200, 200, 200]


def test_errors_in_a_row_come_later_and_only_to_their_tenant() -> None:
    async def story(workers: Fleet) -> tuple[list[float], float]:
        late = [(await workers.call("poison")).took_s for _ in range(12)]
        return late, (await workers.call("other")).took_s

    (late, other), _ = play(story, only("poison other", failed))
    assert late[-1] > HOLD_MAX_S > late[0]
    assert other < 2 * late[0]


def test_a_held_error_holds_no_slot() -> None:
    async def story(workers: Fleet) -> int:
        for _ in range(12):
            await workers.call("poison")
        held = asyncio.ensure_future(workers.call("poison"))
        await asyncio.sleep(HOLD_MAX_S / 2)
        running = len(workers.gate.shard.state.workers["w0"].running)
        assert not held.done()
        await held
        return running

    assert play(story, only("poison", failed))[0] == 0


# ── An engine that is overloaded ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("status", "workers", "tries"), [(429, 1, 1), (503, 1, 1), (429, 3, 2), (529, 3, 2)])
def test_a_retry_after_is_honoured_and_passed_on(status: int, workers: int, tries: int) -> None:
    """A single engine is not asked again, another worker's engine once."""
    answer, engines = play(lambda each: each.call("a"), *[takes(0, lambda: refused(status, 7.0))] * workers)
    assert answer.status == (429 if status == 429 else 503)
    assert isinstance(answer.event, WorkRefused)
    assert answer.event.code == "engine_overloaded"
    assert answer.event.retry_after_s == pytest.approx(7.0, abs=0.5)
    assert sum(engine.asked["a"] for engine in engines) == tries


def test_another_worker_takes_what_one_engine_refuses() -> None:
    answer, _ = play(lambda workers: workers.call("a"), takes(0), takes(SLOTS))
    assert (answer.status, answer.attempts) == (200, 2)


def test_the_slots_shrink_to_what_the_engine_takes_and_the_calls_wait() -> None:
    async def story(workers: Fleet) -> tuple[list[int], int]:
        calls = [asyncio.ensure_future(workers.call("a", 500)) for _ in range(8)]
        await asyncio.sleep(1.0)
        slots = workers.gate.slots("w0")
        return [(await call).status for call in calls], slots

    (statuses, slots), _ = play(story, takes(4))
    assert slots == 4
    assert statuses == [200] * 8


def test_all_slots_are_back_within_ten_seconds_of_the_last_refusal() -> None:
    async def story(workers: Fleet) -> tuple[int, int]:
        engine = workers.workers["w0"].engine
        assert isinstance(engine, FaultyEngine)
        await asyncio.gather(*(workers.call(f"t{number}") for number in range(8)))
        shrunk = workers.gate.slots("w0")
        engine.fault = takes(SLOTS)
        await asyncio.sleep(9.9)
        return shrunk, workers.gate.slots("w0")

    (shrunk, back), _ = play(story, takes(0))
    assert (shrunk, back) == (1, SLOTS)


def test_an_overloaded_engine_rests_no_worker() -> None:
    async def story(workers: Fleet) -> str:
        for number in range(30):
            await workers.call(f"t{number}")
        return workers.gate.state("w0")

    assert play(story, takes(0))[0] == "serving"


# ── An engine that is sick ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_sick_engine_gets_no_work_until_a_probe_succeeds_and_the_calls_wait_for_it() -> None:
    is_sick = True

    def fault(_request: WorkOrder, _running: int) -> EngineError | None:
        return failed() if is_sick else None

    async def story(workers: Fleet) -> tuple[str, int, list[int]]:
        nonlocal is_sick
        calls = [asyncio.ensure_future(workers.call("a")) for _ in range(3)]
        await asyncio.sleep(5.0)
        state, asked = workers.gate.state("w0"), workers.workers["w0"].engine.asked["a"]  # type: ignore[attr-defined]
        is_sick = False
        return state, asked, [(await call).status for call in calls]

    (state, asked, statuses), _ = play(story, fault)
    assert state == "draining"
    assert asked == 3, "each call was tried once"
    assert statuses == [200] * 3


def test_one_failed_probe_makes_no_engine_sick() -> None:
    failing = iter([True])

    def fault(request: WorkOrder, _running: int) -> EngineError | None:
        return failed() if request.terms.tenant == "poison" or next(failing, False) else None

    async def story(workers: Fleet) -> set[str]:
        calls = asyncio.ensure_future(workers.call("poison"))
        states = set()
        for _ in range(100):
            states.add(workers.gate.state("w0"))
            await asyncio.sleep(0.01)
        await calls
        return states

    assert play(story, fault)[0] == {"serving"}


def test_a_server_that_refuses_the_probe_as_invalid_is_well() -> None:
    def fault(request: WorkOrder, _running: int) -> EngineError | None:
        return EngineError("invalid_request", "no") if request.terms.tenant == PROBE_TENANT else failed()

    async def story(workers: Fleet) -> str:
        await workers.call("a")
        return workers.gate.state("w0")

    assert play(story, fault)[0] == "serving"


def test_an_engine_that_is_late_with_the_probe_is_not_sick() -> None:
    """Its progress is watched elsewhere."""

    async def story(workers: Fleet) -> set[str]:
        engine = workers.workers["w0"].engine
        assert isinstance(engine, FaultyEngine)
        await workers.call("poison")
        engine.token_s = 60.0
        await asyncio.sleep(EVERY_S)
        answer = await workers.call("poison")
        assert answer.status == 500
        states = set()
        for _ in range(20):
            states.add(workers.gate.state("w0"))
            await asyncio.sleep(0.5)
        return states

    assert play(story, only("poison", failed))[0] == {"serving"}
