"""Many threads and processes at once: what was acknowledged is there, nothing else is, nothing twice."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from dispatcher.model.old_fleet import SEATS_MAX
from dispatcher.model.old_invocation import Slot, State
from dispatcher.model.old_outcomes import Written
from tests.conformance.store_backends import Place
from tests.conformance.store_load import TENANTS, Runner, Tally, seat
from tests.conformance.store_world import POOL, FakeClock, World, invocation, worker

ROUNDS = {"memory": 150, "table": 12}


async def test_threads_lose_nothing(place: Place) -> None:
    store = place.open(FakeClock())
    await seat(store)
    rounds = ROUNDS["memory" if place.endpoint_url is None else "table"]

    def run(name: str) -> Tally:
        return asyncio.run(Runner(place.open(FakeClock(), int(name)), name, Random(name)).run(rounds))

    with ThreadPoolExecutor(6) as threads:
        tallies = await asyncio.gather(
            *(asyncio.get_running_loop().run_in_executor(threads, run, str(number)) for number in range(1, 7))
        )
    await _verify(World(store, FakeClock()), tallies)


async def test_processes_lose_nothing(table_place: Place) -> None:
    store = table_place.open(FakeClock())
    await seat(store)
    assert table_place.endpoint_url is not None
    program = [sys.executable, "-m", "tests.conformance.store_load", table_place.endpoint_url, table_place.table]
    children = [
        subprocess.Popen([*program, str(number), "12"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: ASYNC220
        for number in range(1, 4)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
    outputs = await asyncio.gather(*(asyncio.to_thread(child.communicate) for child in children))
    assert [child.returncode for child in children] == [0, 0, 0]
    tallies = []
    for output, _ in outputs:
        fields: dict[str, Any] = json.loads(output)
        counters: dict[str, Any] = {name: Counter(fields.pop(name)) for name in ("queued", "outcomes")}
        tallies.append(Tally(**fields, **counters))
    await _verify(World(store, FakeClock()), tallies)


async def test_one_slot_goes_to_one_of_many(place: Place) -> None:
    store = place.open(FakeClock())
    await seat(store)
    world = World(store, FakeClock())
    new = [invocation(f"{number}", f"tenant-{number}") for number in range(8)]
    outcomes = await asyncio.gather(*(world.admit(one, Slot("w0", 0)) for one in new))
    assert [written for written, _ in outcomes].count(Written.DONE) == 1
    assert len(await world.leases()) == 1


async def test_one_head_goes_to_one_of_many(place: Place) -> None:
    store = place.open(FakeClock())
    await seat(store)
    world = World(store, FakeClock())
    await world.enqueued(invocation("i"))
    slots = [Slot("w0", 0), Slot("w0", 1), Slot("w0", 2), Slot("w1", 0), Slot("w1", 1)]
    outcomes = await asyncio.gather(*(world.dispatch(invocation("i"), slot) for slot in slots))
    assert [written for written, _ in outcomes].count(Written.DONE) == 1
    assert len(await world.leases()) == 1
    assert (await world.queue()).waiting == 0


async def test_a_full_line_takes_exactly_its_bound(place: Place) -> None:
    world = World(place.open(FakeClock()), FakeClock())

    async def until_decided(number: int) -> Written:
        while True:
            written = await world.enqueue(invocation(f"{number}"), waiting_max=3)
            if written is not Written.CONFLICT:
                return written

    outcomes = await asyncio.gather(*(until_decided(number) for number in range(7)))
    assert Counter(outcomes) == {Written.DONE: 3, Written.FULL: 4}
    assert (await world.queue()).waiting == 3


async def test_workers_that_start_together_get_a_seat_each(place: Place) -> None:
    clock = FakeClock()
    store = place.open(clock)
    first = await asyncio.gather(*(store.register(worker(f"w{number}")) for number in range(SEATS_MAX)))
    assert sorted(one.seat for one in first if one is not None) == list(range(SEATS_MAX))
    clock.time += 2000  # all of them dead: two newcomers race for their seats
    later = await asyncio.gather(*(store.register(worker(f"n{number}", alive_until=2e9)) for number in range(3)))
    seats = {one.seat: one.id for one in later if one is not None}
    assert len(seats) == 3
    held = {one.seat: one.id for one in await store.workers(POOL)}
    assert {seat: held[seat] for seat in seats} == seats


async def _verify(world: World, tallies: Sequence[Tally]) -> None:
    started = [execution for tally in tallies for execution in tally.started]
    assert len(started) == len(set(started)), "nothing is dispatched twice"
    outcomes = sum((tally.outcomes for tally in tallies), Counter[str]())
    assert outcomes["admit done"]
    assert outcomes["dispatch done"], f"the load must reach every method: {outcomes}"
    running = {execution: cost for tally in tallies for execution, cost in tally.running.items()}
    assert sorted((await world.leases()).values()) == sorted(running), "slots are exactly what runs"
    for tenant in TENANTS:
        queue = await world.queue(tenant)
        left = sum(tally.queued[tenant] for tally in tallies)
        costs = [cost for execution, cost in running.items() if execution.startswith(f"{tenant}/")]
        assert queue.waiting == left
        assert queue.reserved == pytest.approx(sum(costs), abs=1e-9)
        assert queue.spent == pytest.approx(sum(tally.spent.get(tenant, 0.0) for tally in tallies), abs=1e-9)
        assert (tenant in await world.waiting_names()) is bool(left)
        assert await _queue_length(world, tenant) == left


async def _queue_length(world: World, tenant: str) -> int:
    """By taking it apart."""
    count = 0
    while (head := await world.store.head_of(tenant)) is not None:
        assert head.state is State.QUEUED
        await world.drop(head)
        count += 1
    return count
