"""What one tenant's failures, an engine's overload and a sick engine do to calls: attempts and order, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from statistics import median

import pytest

from dispatcher.model.worker_protocol import Finished, WorkRefused
from gpu_worker.engines.interface import EngineError, WorkOrder
from gpu_worker.service.health.engine_health import EVERY_S
from gpu_worker.service.health.failures import PROBE_TENANT
from gpu_worker.service.health.limits import FREE, HOLD_MAX_S
from tests.support.worker.fleet import Fault, fleet

pytestmark = pytest.mark.virtual_time

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


def is_sick(_request: WorkOrder, _running: int) -> EngineError:
    return failed()


async def test_the_last_event_the_record_and_the_charge_agree() -> None:
    async with fleet(only("", failed)) as workers:
        answer = await workers.call("a")
        (row,) = workers.gate.shard.usage_rows()
        assert answer.event == Finished("length", 5, 3)
        assert (row.tenant, row.input_tokens, row.output_tokens) == ("a", 5, 3)


# ── A request that fails by itself ─────────────────────────────────────────────────────────────────────────────────


async def test_a_poison_request_is_not_repeated_where_it_failed_by_itself() -> None:
    async with fleet(only("poison", failed)) as workers:
        answer = await workers.call("poison")
    assert (answer.status, answer.attempts) == (500, 2)
    assert workers.engine.asked["poison"] == 1
    assert isinstance(answer.event, WorkRefused)
    assert answer.event.code == "generation_failed"


async def test_another_worker_tries_it_and_may_do_better() -> None:
    async with fleet(only("a", failed), only("", failed)) as workers:
        answer = await workers.call("a")
    assert (answer.status, answer.attempts) == (200, 2)
    assert [engine.asked["a"] for engine in workers.engines] == [1, 1]


async def test_it_is_tried_once_on_each_worker_at_most() -> None:
    async with fleet(*[only("poison", failed)] * 4) as workers:
        assert (await workers.call("poison")).status in (500, 502)
    assert max(engine.asked["poison"] for engine in workers.engines) == 1


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("error", [failed, lambda: refused(503), lambda: refused(429, 7.0)])
async def test_a_neighbour_is_served_as_if_it_were_alone(count: int, error: Callable[[], EngineError]) -> None:
    poisons = "poison worse"
    async with fleet(*[only(poisons, error)] * count) as workers:
        alone = await workers.repeat("neighbour", 1.0, 0.05)
        attacks = [asyncio.ensure_future(workers.repeat(poison, 3.0)) for poison in poisons.split() * ATTACKERS]
        beside = await workers.repeat("neighbour", 3.0, 0.05)
        await asyncio.gather(*attacks)
        assert {workers.gate.state(name) for name in workers.workers} == {"serving"}
    alone_s, beside_s = (median(each.took_s for each in answers) for answers in (alone, beside))
    assert {each.status for each in beside} == {200}
    assert beside_s < 1.5 * alone_s, (beside_s, alone_s)


async def test_a_known_tenant_costs_a_probe_a_second_and_the_failure_of_another_is_probed_at_once() -> None:
    async with fleet(only("poison other", failed)) as workers:
        await asyncio.gather(*(workers.repeat("poison", 20 * EVERY_S) for _ in range(ATTACKERS)))
        by_one = workers.engine.probes
        await asyncio.gather(*(workers.call("poison") for _ in range(ATTACKERS)))
        again = workers.engine.probes
        await workers.call("other")
    assert 1 <= by_one <= FREE + 21
    assert again - by_one <= 1
    assert workers.engine.probes - again == 1


async def test_an_engine_that_turns_sick_just_after_a_good_probe_costs_no_call() -> None:
    """The verdict of the probe is older than the failures, so it does not explain them."""
    async with fleet(only("poison", failed)) as workers:
        await workers.call("poison")
        workers.engine.fault = is_sick
        calls = [asyncio.ensure_future(workers.call(tenant)) for tenant in ("a", "a", "b")]
        await asyncio.sleep(5.0)
        workers.engine.fault = only("poison", failed)
        assert [(await call).status for call in calls] == [200, 200, 200]


async def test_errors_in_a_row_come_later_and_only_to_their_tenant() -> None:
    async with fleet(only("poison other", failed)) as workers:
        late = [(await workers.call("poison")).took_s for _ in range(12)]
        assert late[-1] > HOLD_MAX_S > late[0]
        assert (await workers.call("other")).took_s < 2 * late[0]


async def test_a_held_error_holds_no_slot() -> None:
    async with fleet(only("poison", failed)) as workers:
        for _ in range(12):
            await workers.call("poison")
        held = asyncio.ensure_future(workers.call("poison"))
        await asyncio.sleep(HOLD_MAX_S / 2)
        assert not workers.gate.shard.state.workers["w0"].running
        assert not held.done()
        await held


# ── An engine that is overloaded ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("status", "count", "tries"), [(429, 1, 1), (503, 1, 1), (429, 3, 2), (529, 3, 2)])
async def test_a_retry_after_is_honoured_and_passed_on(status: int, count: int, tries: int) -> None:
    """A single engine is not asked again, another worker's engine once."""
    async with fleet(*[takes(0, lambda: refused(status, 7.0))] * count) as workers:
        answer = await workers.call("a")
    assert answer.status == (429 if status == 429 else 503)
    assert isinstance(answer.event, WorkRefused)
    assert answer.event.code == "engine_overloaded"
    assert answer.event.retry_after_s == pytest.approx(7.0, abs=0.5)
    assert sum(engine.asked["a"] for engine in workers.engines) == tries


async def test_another_worker_takes_what_one_engine_refuses() -> None:
    async with fleet(takes(0), takes(SLOTS)) as workers:
        answer = await workers.call("a")
    assert (answer.status, answer.attempts) == (200, 2)


async def test_the_slots_shrink_to_what_the_engine_takes_and_the_calls_wait() -> None:
    async with fleet(takes(4)) as workers:
        calls = [asyncio.ensure_future(workers.call("a", 500)) for _ in range(8)]
        await asyncio.sleep(1.0)
        assert workers.gate.slots("w0") == 4
        assert [(await call).status for call in calls] == [200] * 8


async def test_all_slots_are_back_within_ten_seconds_of_the_last_refusal() -> None:
    async with fleet(takes(0)) as workers:
        await asyncio.gather(*(workers.call(f"t{number}") for number in range(8)))
        assert workers.gate.slots("w0") == 1
        workers.engine.fault = takes(SLOTS)
        await asyncio.sleep(9.9)
        assert workers.gate.slots("w0") == SLOTS


async def test_an_overloaded_engine_rests_no_worker() -> None:
    async with fleet(takes(0)) as workers:
        for number in range(30):
            await workers.call(f"t{number}")
        assert workers.gate.state("w0") == "serving"


# ── An engine that is sick ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_sick_engine_gets_no_work_until_a_probe_succeeds_and_the_calls_wait_for_it() -> None:
    async with fleet(is_sick) as workers:
        calls = [asyncio.ensure_future(workers.call("a")) for _ in range(3)]
        await asyncio.sleep(5.0)
        assert workers.gate.state("w0") == "draining"
        assert workers.engine.asked["a"] == 3, "each call was tried once"
        workers.engine.fault = only("", failed)
        assert [(await call).status for call in calls] == [200] * 3


async def test_one_failed_probe_makes_no_engine_sick() -> None:
    failing = iter([True])

    def fault(request: WorkOrder, _running: int) -> EngineError | None:
        return failed() if request.terms.tenant == "poison" or next(failing, False) else None

    async with fleet(fault) as workers:
        call = asyncio.ensure_future(workers.call("poison"))
        for _ in range(100):
            assert workers.gate.state("w0") == "serving"
            await asyncio.sleep(0.01)
        await call


async def test_a_server_that_refuses_the_probe_as_invalid_is_well() -> None:
    def fault(request: WorkOrder, _running: int) -> EngineError | None:
        return EngineError("invalid_request", "no") if request.terms.tenant == PROBE_TENANT else failed()

    async with fleet(fault) as workers:
        await workers.call("a")
        assert workers.gate.state("w0") == "serving"


async def test_an_engine_that_is_late_with_the_probe_is_not_sick() -> None:
    """Its progress is watched elsewhere."""
    async with fleet(only("poison", failed)) as workers:
        await workers.call("poison")
        workers.engine.token_s = 60.0
        await asyncio.sleep(EVERY_S)
        assert (await workers.call("poison")).status == 500
        for _ in range(20):
            assert workers.gate.state("w0") == "serving"
            await asyncio.sleep(0.5)
