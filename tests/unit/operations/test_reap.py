"""reap and sweep: an expired lease is reclaimed once, a valid one never; missed hints are repaired."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.old_fleet import Lease
from dispatcher.model.old_invocation import Slot, State
from dispatcher.model.old_outcomes import Settled
from dispatcher.old_operations.execute import execute_detached
from dispatcher.old_operations.reap import reap, sweep
from dispatcher.old_operations.settle import settle
from tests.support.gate.memory_gate import POOL, Gate
from tests.support.gate.store_faults import Unreachable
from tests.support.gate.story import begun, dispatched, kept, queued
from tests.support.gate.worker_client import Act

GRACE_S = 10.0
MARGIN_S = 3.0


async def test_a_lease_that_the_worker_reports_is_never_reclaimed(gate: Gate) -> None:
    worker = await gate.worker()
    gate.workers.acts.append(Act(token_s=40.0))
    running = begun(gate, "a", "k")
    for _ in range(50):
        await asyncio.sleep(2.0)
        await gate.heartbeat(worker, alive_until=gate.clock.now() + 10)
        assert await reap(gate.context, POOL) == 0
    await running
    await gate.ended("a", "k", State.DONE)


@pytest.mark.parametrize(("after_s", "reaped"), [(GRACE_S - 0.1, 0), (GRACE_S + 0.1, 1)])
async def test_a_lease_that_a_live_worker_does_not_report_is_reclaimed_after_its_grace(
    gate: Gate, after_s: float, reaped: int
) -> None:
    running = (await dispatched(gate, "a", "k")).invocation
    await asyncio.sleep(after_s)
    assert await reap(gate.context, POOL) == reaped
    if not reaped:
        await settle(gate.context, running, State.DONE)


@pytest.mark.parametrize(("after_s", "reaped"), [(5 + MARGIN_S - 0.1, 0), (5 + MARGIN_S + 0.1, 1)])
async def test_a_dead_workers_leases_are_reclaimed_after_a_margin_for_clock_skew(
    gate: Gate, after_s: float, reaped: int
) -> None:
    worker = await gate.worker()
    running = (await dispatched(gate, "a", "k")).invocation
    await gate.heartbeat(worker, live=frozenset({"a/k#1"}), alive_until=gate.clock.now() + 5)
    await asyncio.sleep(after_s)
    assert await reap(gate.context, POOL) == reaped
    if not reaped:
        await settle(gate.context, running, State.DONE)


async def test_two_reapers_at_once_take_it_once(gate: Gate) -> None:
    await dispatched(gate, "a", "k", keep_body=True, detached=True)
    await asyncio.sleep(GRACE_S + 1)
    await asyncio.gather(*(reap(gate.process(), POOL) for _ in range(3)))
    await gate.quiet()
    assert gate.launcher.launched == [("a", "k", 2)]
    assert (await gate.leases()) == {("w", 0): "a/k#2"}
    assert await execute_detached(gate.context, "a", "k", 2, lambda _: kept)


async def test_what_was_kept_is_tried_again_three_times_and_then_refunded(gate: Gate) -> None:
    """The worker takes the messages and is never heard of again."""
    await dispatched(gate, "a", "k", keep_body=True, keep_answer=True, detached=True)
    for _ in range(3):
        await asyncio.sleep(GRACE_S + 1)
        assert (await sweep(gate.context, POOL))["reaped"] == 1
        await gate.quiet()
    assert gate.launcher.launched == [("a", "k", 2), ("a", "k", 3)]
    ended = await gate.ended("a", "k", State.FAILED)
    assert (ended.served, await gate.spent("a")) == (0.0, 0.0)


async def test_what_its_callers_process_held_ends_refunded(gate: Gate) -> None:
    """The process is gone, and with it the request and the reader of the answer."""
    await dispatched(gate, "a", "k")
    await asyncio.sleep(GRACE_S + 1)
    assert await reap(gate.context, POOL) == 1
    ended = await gate.ended("a", "k", State.FAILED)
    assert (ended.attempt, ended.served) == (1, 0.0)


async def test_the_late_settlement_of_a_reaped_attempt_is_fenced_off(gate: Gate) -> None:
    running = (await dispatched(gate, "a", "k", keep_body=True, detached=True)).invocation
    await asyncio.sleep(GRACE_S + 1)
    await reap(gate.context, POOL)
    await gate.quiet()
    assert await settle(gate.context, running, State.DONE, output_tokens=3) is Settled.FENCED
    assert await gate.spent("a") == 0.0
    await execute_detached(gate.context, "a", "k", 2, lambda _: kept)
    await gate.ended("a", "k", State.DONE)


async def test_a_lease_without_its_invocation_is_only_freed(gate: Gate) -> None:
    worker = await gate.worker()
    gate.store._seats.claim(worker, 1, Lease("a", "never", 1, gate.clock.now()))
    await asyncio.sleep(GRACE_S + 1)
    assert await reap(gate.context, POOL) == 1
    assert await gate.leases() == {}


async def test_freed_slots_go_to_waiting_requests(gate: Gate) -> None:
    for number in range(2):
        await dispatched(gate, "b", f"{number}")
    waiting = await queued(gate, "a", "k", keep_body=True, detached=True)
    await asyncio.sleep(GRACE_S + 1)
    done = await sweep(gate.context, POOL)
    await gate.quiet()
    assert done["reaped"] == 2
    now = await gate.invocation("a", "k")
    assert (now.state, now.slot) == (State.RUNNING, Slot("w", 0))
    assert waiting.invocation.attempt == 0
    await settle(gate.context, now, State.DONE)


async def test_a_sweep_ends_overdue_detached_invocations(gate: Gate) -> None:
    busy = [begun(gate, "b", f"{n}", max_tokens=200) for n in range(2)]
    await asyncio.sleep(0.01)
    await queued(gate, "a", "k", deadline_s=5.0, keep_body=True, detached=True)
    await asyncio.sleep(6)
    await gate.heartbeat(await gate.worker())
    assert (await sweep(gate.context, POOL))["expired"] == 1
    ended = await gate.ended("a", "k", State.EXPIRED)
    assert ended.result is not None
    assert ended.result.status == 504
    await asyncio.gather(*busy)


async def test_a_sweep_that_cannot_reach_the_table_says_so_and_the_next_one_goes_on(gate: Gate) -> None:
    await dispatched(gate, "a", "k")
    await asyncio.sleep(GRACE_S + 1)
    gate.store.faults = Unreachable()
    with pytest.raises(StoreUnavailable):
        await sweep(gate.context, POOL)
    gate.store.faults = None
    assert (await sweep(gate.context, POOL))["reaped"] == 1
