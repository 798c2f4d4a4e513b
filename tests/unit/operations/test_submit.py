"""submit: refusals before any write, dispatch at once, queueing, and the hints to the pool."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.model.errors import AnsweredError, IdempotencyConflict, InvalidRequest, NoWorker, Refused, UnknownModel
from dispatcher.model.old_invocation import State
from dispatcher.model.old_outcomes import Dispatched, Known, Queued
from dispatcher.old_operations.drain import drain
from dispatcher.old_operations.execute import Collected
from dispatcher.old_operations.settle import settle
from dispatcher.policies.clocks import Share
from tests.support.gate.memory_gate import POOL, Gate
from tests.support.gate.store_faults import Slow
from tests.support.gate.story import asked, begun, dispatched, followed, queued, submitted


async def ended(gate: Gate, *running: Dispatched) -> None:
    for one in running:
        await settle(gate.context, one.invocation, State.DONE)
    await gate.quiet()


@pytest.mark.parametrize(
    ("request_", "limits", "error"),
    [
        (asked(model="other"), {}, UnknownModel),
        (asked(), {"models": ("n",)}, UnknownModel),
        (asked(max_tokens=4097), {}, InvalidRequest),
        (asked(max_tokens=8), {"max_tokens_max": 7}, InvalidRequest),
        (asked(max_tokens=None), {"max_tokens_max": 0}, InvalidRequest),
    ],
)
async def test_what_is_refused_leaves_nothing_behind(
    gate: Gate, request_: Any, limits: dict[str, Any], error: type[AnsweredError]
) -> None:
    await gate.add_tenant("c", **limits)
    with pytest.raises(error):
        await submitted(gate, "c", "k", request=request_)
    assert await gate.store.get("c", "k") is None
    assert {"admit", "enqueue"} & set(gate.store.requests) == set()


async def test_a_model_without_live_workers_is_not_unknown(gate: Gate) -> None:
    await gate.add_worker("n", model="n", alive_s=5)
    await asyncio.sleep(6)
    with pytest.raises(NoWorker) as caught:
        await submitted(gate, "a", "k", request=asked(model="n"))
    assert caught.value.retry_after_s


async def test_the_context_is_the_prompt_and_what_may_come(gate: Gate) -> None:
    await gate.add_worker("s", model="s", context_tokens=100, bytes_per_token=2.0)
    await ended(gate, await dispatched(gate, "a", "fits", request=asked("x" * 180, 10, "s")))
    with pytest.raises(InvalidRequest) as caught:
        await submitted(gate, "a", "k", request=asked("x" * 181, 10, "s"))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(InvalidRequest):
        await submitted(gate, "a", "k", request=asked("é" * 91, 10, "s"))  # two bytes each


async def test_a_limit_that_is_not_given_is_the_default_within_the_tenants_limit(gate: Gate) -> None:
    await gate.add_tenant("small", max_tokens_max=7)
    await followed(gate, "a", "k", request=asked(max_tokens=None))
    await followed(gate, "small", "k", request=asked(max_tokens=None))
    assert [order.max_tokens for _, order in gate.workers.orders] == [256, 7]


async def test_a_deadline_is_the_callers_but_never_later_than_the_gates(gate: Gate) -> None:
    short = await dispatched(gate, "a", "short", deadline_s=5.0)
    long = await dispatched(gate, "a", "long", deadline_s=9999.0)
    assert short.invocation.deadline_at == gate.clock.now() + 5
    assert long.invocation.deadline_at == gate.clock.now() + gate.context.settings.deadline_s
    await ended(gate, short, long)


async def test_it_charges_what_it_expects_and_reserves_it(gate: Gate) -> None:
    running = await dispatched(gate, "a", "k", request=asked("x" * 20, 5))
    assert running.invocation.estimate == 20 + 2 * 5
    assert (await gate.store.snapshot(POOL, "a")).queue.reserved == 30.0
    await ended(gate, running)


async def test_a_free_slot_is_taken_on_the_least_loaded_worker(gate: Gate) -> None:
    await gate.add_worker("v", slots=4)
    running = [await dispatched(gate, "a", f"{n}") for n in range(6)]
    assert sorted(one.invocation.slot.worker for one in running if one.invocation.slot) == ["v"] * 4 + ["w"] * 2
    assert len({one.invocation.slot for one in running}) == 6
    await ended(gate, *running)


@pytest.mark.parametrize("changes", [{"draining": True}, {"alive_until": 0.0}])
async def test_a_worker_that_takes_no_work_is_given_none(gate: Gate, changes: dict[str, Any]) -> None:
    worker = await gate.add_worker("v", slots=8)
    await gate.heartbeat(worker, **changes)
    running = [await dispatched(gate, "a", f"{n}") for n in range(2)]
    assert {one.invocation.slot.worker for one in running if one.invocation.slot} == {"w"}
    await queued(gate, "a", "k")
    await ended(gate, *running)
    await settle(gate.context, await gate.invocation("a", "k"), State.DONE)


async def test_an_arrival_does_not_overtake_waiting_requests(gate: Gate) -> None:
    """A slot is free, but the pool's hint says that a request waits: the newcomer queues, and the drain decides."""
    running = [await dispatched(gate, "b", f"{n}") for n in range(2)]
    first = begun(gate, "a", "first")
    await asyncio.sleep(0.01)
    assert (await gate.store.snapshot(POOL, "b")).pool.backlogged
    gate.context.draining.add(POOL)
    await settle(gate.context, running[0].invocation, State.DONE)
    await gate.context.finish()
    gate.context.draining.discard(POOL)
    assert isinstance(await submitted(gate, "b", "newcomer"), Queued)
    assert isinstance(await submitted(gate, "a", "second"), Queued)  # nor its own
    await drain(gate.context, POOL)
    await first
    assert gate.workers.orders[0][1].invocation == "first"
    await ended(gate, running[1])
    for tenant, name in (("b", "newcomer"), ("a", "second")):
        await settle(gate.context, await gate.invocation(tenant, name), State.DONE)


async def test_two_that_see_the_same_free_slot(gate: Gate) -> None:
    gate.store.faults = Slow(0.01)
    got = await asyncio.gather(*(begun(gate, "a", f"{n}") for n in range(8)))
    assert all(isinstance(one, Collected) for one in got)
    assert gate.workers.most_live["w"] == 2
    assert {order.attempt for _, order in gate.workers.orders} == {1}


async def test_a_position_and_a_wait_that_grow(gate: Gate) -> None:
    worker = await gate.worker()
    await gate.heartbeat(worker, service_per_s=11.0)
    running = [await dispatched(gate, "b", f"{n}") for n in range(2)]
    waiting = [await queued(gate, "a", f"{n}") for n in range(3)]
    assert [(one.position, one.wait_s) for one in waiting] == [(1, 1.0), (2, 2.0), (3, 3.0)]  # 5 + 2 x 3 each
    await ended(gate, *running)
    for number in range(3):
        await settle(gate.context, await gate.invocation("a", f"{number}"), State.DONE)
        await gate.quiet()


async def test_the_bound_is_the_tenants_own(gate: Gate) -> None:
    await gate.add_tenant("small", queue_items_max=2)
    running = [await dispatched(gate, "b", f"{n}") for n in range(2)]
    for number in range(2):
        await queued(gate, "small", f"{number}")
    with pytest.raises(Refused):
        await submitted(gate, "small", "2")
    await queued(gate, "a", "k")
    await ended(gate, *running)
    for tenant, name in (("small", "0"), ("a", "k"), ("small", "1")):
        await settle(gate.context, await gate.invocation(tenant, name), State.DONE)
        await gate.quiet()


async def test_the_same_id_is_known_whatever_became_of_it(gate: Gate) -> None:
    running = await dispatched(gate, "a", "k")
    assert isinstance(await submitted(gate, "a", "k"), Known)
    await ended(gate, running)
    again = await submitted(gate, "a", "k")
    assert isinstance(again, Known)
    assert again.invocation.state is State.DONE
    with pytest.raises(IdempotencyConflict):
        await submitted(gate, "a", "k", request=asked("another"))
    busy = [await dispatched(gate, "b", f"{n}") for n in range(2)]
    await queued(gate, "a", "waits")
    assert isinstance(await submitted(gate, "a", "waits"), Known)
    await ended(gate, *busy)
    await settle(gate.context, await gate.invocation("a", "waits"), State.DONE)


async def test_the_fast_path_raises_the_pools_virtual_time(gate: Gate) -> None:
    """So a tenant that comes after an hour of another's fast path starts beside it, not an hour behind."""
    for number in range(5):
        await followed(gate, "a", f"{number}")
        await gate.quiet()
    snapshot = await gate.store.snapshot(POOL, "b")
    assert snapshot.pool.virtual_time == pytest.approx(4 * 16.0)
    running = await dispatched(gate, "b", "late")
    assert (await gate.store.snapshot(POOL, "b")).queue.clocks.vft == pytest.approx(
        4 * 16.0 + running.invocation.estimate
    )
    await ended(gate, running)


async def test_in_profile_is_charged_to_the_bucket_and_surplus_is_not(gate: Gate) -> None:
    await gate.add_tenant("owed", Share(rate_per_s=1.0, burst=10.0))
    first, second = [await dispatched(gate, "owed", f"{n}") for n in range(2)]
    charges = [one.invocation.charge for one in (first, second)]
    assert [charge.in_profile for charge in charges if charge] == [True, False]
    await ended(gate, first, second)
