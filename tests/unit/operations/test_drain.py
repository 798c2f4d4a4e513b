"""drain: the order of dispatch, overdue requests, wake-ups, and faults that must not stop it."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.model.errors import AnsweredError, StoreUnavailable
from dispatcher.model.old_invocation import State
from dispatcher.model.old_outcomes import Dispatched
from dispatcher.old_operations.answer import wait_or_detach
from dispatcher.old_operations.drain import CONFLICTS_MAX, EXPIRED_MAX, drain, expire
from dispatcher.old_operations.execute import Collected
from dispatcher.old_operations.settle import settle
from dispatcher.policies.clocks import Share
from tests.support.gate.memory_gate import POOL, Gate, make_gate
from tests.support.gate.store_faults import Slow, Unreachable
from tests.support.gate.story import asked, begun, dispatched, queued, submitted
from tests.support.gate.worker_client import WELL, Act

TOKEN_S = WELL.token_s


async def freed(gate: Gate, *running: Dispatched) -> None:
    """End what runs without draining."""
    for one in running:
        gate.context.draining.add(POOL)
        await settle(gate.context, one.invocation, State.DONE)
        await gate.context.finish()
        gate.context.draining.discard(POOL)


async def test_a_queue_full_of_overdue_invocations_does_not_leave_slots_idle(gate: Gate) -> None:
    """They are detached, and a request in time waits behind them: one run finds it."""
    running = [await dispatched(gate, "b", f"r{n}") for n in range(2)]
    overdue = CONFLICTS_MAX * 3
    assert overdue < EXPIRED_MAX
    for number in range(overdue):
        await queued(gate, "a", f"late{number}", deadline_s=5.0, keep_body=True, detached=True)
        await asyncio.sleep(0.001)
    await queued(gate, "a", "in-time", keep_body=True, detached=True)
    await asyncio.sleep(6)
    await freed(gate, *running)
    assert await drain(gate.context, POOL) == 1
    await gate.ended("a", "late0", State.EXPIRED)
    await gate.ended("a", f"late{overdue - 1}", State.EXPIRED)
    in_time = await gate.invocation("a", "in-time")
    assert in_time.state is State.RUNNING
    await settle(gate.context, in_time, State.DONE)


async def test_one_dispatched_at_its_deadline_is_not_answered_as_too_late(gate: Gate) -> None:
    """A stale drain wants to end it; the table knows better, and its waiter executes it."""
    running = [await dispatched(gate, "b", f"r{n}") for n in range(2)]
    waiting = begun(gate, "a", "k", deadline_s=5.0)
    await asyncio.sleep(0.01)
    stale = await gate.invocation("a", "k")
    await freed(gate, *running)
    assert await drain(gate.process(), POOL) == 1  # in another process: the waiter here has not heard yet
    await expire(gate.context, stale, gate.clock.now())
    got = await waiting
    assert isinstance(got, Collected)
    assert got.text == "xxx"


async def test_a_message_that_cannot_be_sent_stops_no_drain(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(gate.context, "launcher", type("Down", (), {"launch": fails})())
    running = [await dispatched(gate, "b", f"r{n}") for n in range(2)]
    await queued(gate, "a", "detached", keep_body=True, detached=True)
    waiting = begun(gate, "a", "held")
    await asyncio.sleep(0.01)
    await freed(gate, *running)  # only the waiters' poll drains now
    assert isinstance(await waiting, Collected)
    left = await gate.invocation("a", "detached")
    assert left.state is State.RUNNING  # no process executes it: the sweep reclaims it
    await settle(gate.context, left, State.FAILED)


async def test_queues_of_a_model_without_a_free_slot_do_not_delay_others(gate: Gate) -> None:
    await gate.add_worker("n", slots=1, model="n")
    held = [begun(gate, "b", f"r{n}") for n in range(2)]
    other = begun(gate, "b", "n0", request=asked(model="n"))
    await asyncio.sleep(0.01)
    first = begun(gate, "a", "m-waits", max_tokens=1)
    second = begun(gate, "b", "n-waits", request=asked(model="n"))
    results = await asyncio.gather(*held, other, first, second)
    assert all(isinstance(one, Collected) for one in results)


@pytest.mark.parametrize("order", ["bwfq", "fcfs"])
async def test_the_order_of_dispatch(order: str) -> None:
    gate = await make_gate(slots=1)
    gate.contexts[0] = gate.process(order)
    await gate.add_tenant("owed", Share(rate_per_s=1000, burst=100))
    calls = [begun(gate, "b", "b0")]
    await asyncio.sleep(0.01)
    for tenant, name in (("b", "b1"), ("b", "b2"), ("a", "a1"), ("owed", "o1"), ("b", "b3")):
        calls.append(begun(gate, tenant, name))
        await asyncio.sleep(0.002)
    await asyncio.gather(*calls)
    served = [order_.invocation for _, order_ in gate.workers.orders]
    if order == "fcfs":
        assert served == ["b0", "b1", "b2", "a1", "o1", "b3"]
    else:
        assert served == ["b0", "o1", "a1", "b1", "b2", "b3"]
    await gate.at_rest()


async def test_in_profile_goes_before_surplus_whatever_was_served() -> None:
    gate = await make_gate(slots=1)
    await gate.add_tenant("owed", Share(rate_per_s=100, burst=1000))
    for number in range(3):  # far ahead on the virtual clock, still within its guarantee
        await begun(gate, "owed", f"before{number}")
    calls = [begun(gate, "owed", "running")]
    await asyncio.sleep(0.01)
    for tenant in ("a", "owed"):
        calls.append(begun(gate, tenant, "waiting"))
        await asyncio.sleep(0.01)
    await asyncio.gather(*calls)
    assert [order.tenant for _, order in gate.workers.orders][4:] == ["owed", "a"]
    await gate.at_rest()


async def test_drains_of_one_process_share_their_runs(gate: Gate) -> None:
    """Twenty settlements at once must not cause twenty drains that race for the same slot."""

    gate.store.faults = Slow(0.01)
    before = gate.store.requests["snapshot"]
    await asyncio.gather(*(drain(gate.context, POOL) for _ in range(20)))
    assert gate.store.requests["snapshot"] - before <= 2


async def test_runs_that_fail_leave_the_next_one_free_to_run(gate: Gate) -> None:
    gate.store.faults = Unreachable()
    with pytest.raises(StoreUnavailable):
        await drain(gate.context, POOL)
    gate.store.faults = None
    waiting = [begun(gate, "a", f"{n}") for n in range(3)]
    assert all(isinstance(one, Collected) for one in await asyncio.gather(*waiting))


async def test_a_waiter_here_is_woken_by_a_drain_here_at_once_and_elsewhere_by_polling() -> None:
    gate = await make_gate(slots=1)
    here, there = gate.context, gate.process()
    waited: dict[str, float] = {}
    for name, context in (("here", here), ("there", there)):
        gate.workers.acts.append(Act(token_s=1.0))
        first = begun(gate, "a", f"first-{name}", max_tokens=1, context=here)
        await asyncio.sleep(0.01)
        second = begun(gate, "a", f"second-{name}", max_tokens=1, context=context)
        await first
        freed_at = gate.clock.now()
        assert isinstance(await second, Collected)
        waited[name] = gate.clock.now() - freed_at - TOKEN_S
    assert waited["here"] == pytest.approx(0.0, abs=1e-6)
    assert 0.0 < waited["there"] <= 1.01 * there.settings.wait_poll_s
    await gate.at_rest()


async def test_a_detached_one_is_launched_and_not_woken(gate: Gate) -> None:
    running = [begun(gate, "b", f"r{n}", max_tokens=30) for n in range(2)]
    await asyncio.sleep(0.01)
    waiting = await queued(gate, "a", "k", keep_body=True)
    assert await wait_or_detach(gate.context, waiting.invocation, 1.0) is None
    await asyncio.gather(*running)
    await gate.quiet()
    assert gate.launcher.launched == [("a", "k", 1)]
    left = await gate.invocation("a", "k")
    assert (left.state, left.detached) == (State.RUNNING, True)
    await settle(gate.context, left, State.FAILED)


async def test_two_processes_dispatch_each_invocation_once(gate: Gate) -> None:
    """Two drains see the same free slots and the same lines: each invocation is dispatched once."""
    there = gate.process()
    running = [await dispatched(gate, "b", f"r{n}") for n in range(2)]
    waiting = [begun(gate, "a", f"{n}") for n in range(4)]
    await asyncio.sleep(0.01)
    await freed(gate, *running)
    await asyncio.gather(drain(gate.context, POOL), drain(there, POOL))
    got = await asyncio.gather(*waiting)
    assert not [one for one in got if isinstance(one, AnsweredError)]
    assert sorted(order.execution for _, order in gate.workers.orders) == [f"a/{n}#1" for n in range(4)]


async def test_a_stale_hint_of_a_backlog_delays_no_request(gate: Gate) -> None:
    await gate.store.note_pool(POOL, backlogged=True)
    got = await asyncio.gather(begun(gate, "a", "k"), begun(gate, "b", "k"))
    assert all(isinstance(one, Collected) for one in got)
    await gate.quiet()
    await drain(gate.context, POOL)
    assert not (await gate.store.snapshot(POOL, "a")).pool.backlogged
    assert isinstance(await submitted(gate, "a", "next", max_tokens=1), Dispatched)
    await settle(gate.context, await gate.invocation("a", "next"), State.DONE)
