"""Waiting callers: notified at once or found by a poll, ended by their timeout, and polled for after any failure."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dispatcher.model.old_invocation import Invocation, State
from dispatcher.old_operations.answer import abandon
from dispatcher.old_operations.settle import settle
from dispatcher.old_operations.wakeups import ANY_CHANGE, READ_ALL_EVERY, TERMINAL, Wakeups
from tests.support.gate.memory_gate import Gate
from tests.support.gate.story import dispatched, queued

POLL_S = 0.25


async def nothing(_: str) -> None: ...


async def waiting(gate: Gate, name: str = "k") -> Invocation:
    """Queue a request behind two that are never executed."""
    for number in range(2):
        if not (await gate.leases()).get(("w", number)):
            await dispatched(gate, "b", f"{number}")
    return (await queued(gate, "a", name)).invocation


async def tidied(gate: Gate) -> None:
    for execution in list((await gate.leases()).values()):
        tenant, _, rest = execution.partition("/")
        await settle(gate.context, await gate.invocation(tenant, rest.partition("#")[0]), State.DONE)
        await gate.quiet()
    if await gate.leases():
        await tidied(gate)


async def test_a_notification_wakes_all_its_waiters_at_once(gate: Gate) -> None:
    invocation = await waiting(gate)
    wakeups = gate.context.wakeups
    asks = [asyncio.ensure_future(wakeups.wait(invocation, ANY_CHANGE, 60, nothing)) for _ in range(3)]
    until_over = asyncio.ensure_future(wakeups.wait(invocation, TERMINAL, 60, nothing))
    await asyncio.sleep(0.01)
    running = replace(invocation, state=State.RUNNING)
    started = gate.clock.now()
    wakeups.notify(running)
    assert await asyncio.gather(*asks) == [running] * 3
    assert gate.clock.now() == started
    assert not until_over.done()
    over = replace(running, state=State.DONE)
    wakeups.notify(over)
    assert await until_over is over
    assert wakeups.waiting == 0
    await tidied(gate)


async def test_dispatched_elsewhere_it_is_found_by_the_next_poll(gate: Gate) -> None:
    invocation = await waiting(gate)
    ask = asyncio.ensure_future(gate.context.wakeups.wait(invocation, ANY_CHANGE, 60, nothing))
    await asyncio.sleep(0.01)
    elsewhere = gate.process()
    await settle(elsewhere, await gate.invocation("b", "0"), State.DONE)
    await elsewhere.finish()
    since = gate.clock.now()
    found = await ask
    assert found is not None
    assert (found.state, found.attempt) == (State.RUNNING, 1)
    assert gate.clock.now() - since <= POLL_S
    await tidied(gate)


async def test_ended_elsewhere_without_a_dispatch_it_is_found_too(gate: Gate) -> None:
    invocation = await waiting(gate)
    ask = asyncio.ensure_future(gate.context.wakeups.wait(invocation, ANY_CHANGE, 60, nothing))
    await asyncio.sleep(0.01)
    await abandon(gate.process(), invocation)
    since = gate.clock.now()
    found = await ask
    assert found is not None
    assert found.state is State.CANCELLED
    assert gate.clock.now() - since <= READ_ALL_EVERY * POLL_S + 1e-6
    await tidied(gate)


async def test_a_wait_ends_at_its_timeout(gate: Gate) -> None:
    invocation = await waiting(gate)
    started = gate.clock.now()
    for timeout_s in (0.0, -5.0, 3.0):
        assert await gate.context.wakeups.wait(invocation, ANY_CHANGE, timeout_s, nothing) is None
    assert gate.clock.now() - started == pytest.approx(3.0)
    assert gate.context.wakeups.waiting == 0
    await tidied_with(gate, invocation)


async def tidied_with(gate: Gate, invocation: Invocation) -> None:
    await abandon(gate.context, invocation)
    await tidied(gate)


async def test_a_poll_costs_the_same_however_many_wait(gate: Gate) -> None:
    invocations = [await waiting(gate, f"{n}") for n in range(20)]
    wakeups = Wakeups(gate.store, gate.clock, POLL_S)
    asks = [asyncio.ensure_future(wakeups.wait(one, ANY_CHANGE, 10.0, nothing)) for one in invocations]
    gate.store.requests.clear()
    await asyncio.gather(*asks)
    polls = 10.0 / POLL_S
    assert polls - 1 <= gate.store.requests["snapshot"] <= polls
    assert gate.store.requests["get_many"] <= polls / READ_ALL_EVERY
    for one in invocations:
        await tidied_with(gate, one)


async def test_it_drains_where_a_slot_stays_free(gate: Gate) -> None:
    """The process that freed it crashed before it drained."""
    invocation = await waiting(gate)
    drained: list[str] = []

    async def note(pool: str) -> None:
        drained.append(pool)

    gate.context.draining.add("default")  # the settlement's own drain does not come
    await settle(gate.context, await gate.invocation("b", "0"), State.DONE)
    await gate.context.finish()
    gate.context.draining.clear()
    await gate.context.wakeups.wait(invocation, ANY_CHANGE, 4 * POLL_S, note)
    assert drained
    assert set(drained) == {"default"}
    await tidied_with(gate, invocation)


async def test_a_poll_that_fails_is_not_the_last(gate: Gate) -> None:
    class FailsAtFirst:
        left = 3

        async def before(self, operation: str) -> None:
            if operation == "snapshot" and self.left:
                self.left -= 1
                raise RuntimeError("whatever it is")

        async def after(self, operation: str) -> None: ...

    invocation = await waiting(gate)
    ask = asyncio.ensure_future(gate.context.wakeups.wait(invocation, ANY_CHANGE, 60, nothing))
    elsewhere = gate.process()
    await settle(elsewhere, await gate.invocation("b", "0"), State.DONE)
    await elsewhere.finish()
    gate.store.faults = FailsAtFirst()
    found = await ask
    assert found is not None
    assert found.state is State.RUNNING
    await tidied(gate)


async def test_a_waiter_that_is_cancelled_is_forgotten_and_the_poll_ends_with_the_last(gate: Gate) -> None:
    invocation = await waiting(gate)
    ask = asyncio.ensure_future(gate.context.wakeups.wait(invocation, ANY_CHANGE, 60, nothing))
    await asyncio.sleep(1.0)
    ask.cancel()
    await asyncio.wait({ask})
    assert gate.context.wakeups.waiting == 0
    await asyncio.sleep(2 * POLL_S)
    gate.store.requests.clear()
    await asyncio.sleep(60)
    assert gate.store.requests.total() == 0
    await tidied_with(gate, invocation)
