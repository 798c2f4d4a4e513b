"""Heaps with dead entries are swept a few entries at a time, and their heads stay those of sorted lists."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from dispatcher.policies.orders import two_clocks_index
from dispatcher.policies.orders.queues import Call, Tenant, TenantQueue
from dispatcher.policies.orders.two_clocks_index import TwoClocksIndex
from dispatcher.shard import deadlines
from dispatcher.shard.deadlines import DUE_MAX, Deadlines


def queue_of(number: int, rate_per_s: float) -> TenantQueue:
    tenant = Tenant(f"t{number}", (0.0, float(number)))
    tenant.rate_per_s = rate_per_s
    queue = tenant.queue("m", False)
    queue.add(Call(f"p-{number}", tenant, "m", 1.0, number, 0.0))
    return queue


def expected(queues: list[TenantQueue], now: float) -> tuple[TenantQueue | None, float]:
    """The queue that is due and the lowest vft, from sorted lists."""
    waiting = sorted((q for q in queues if q.entry is not None), key=lambda q: (q.tenant.clocks[1], q.head().arrival))
    ready = [q for q in waiting if q.tenant.rate_per_s and q.tenant.clocks[0] <= now]
    if not waiting:
        return None, inf
    return (ready or waiting)[0], waiting[0].tenant.clocks[1]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rates", [(0.0,), (0.0, 1.0), (1.0,)])
def test_the_head_is_right_during_every_step_of_a_sweep(
    seed: int, rates: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_clocks_index, "SWEPT", 2)
    random, index, now = Random(seed), TwoClocksIndex(), 0.0
    queues = [queue_of(number, random.choice(rates)) for number in range(40)]
    for queue in queues:
        index.place(queue, now)
    sweeping = 0
    for _ in range(4_000):
        now += random.random() / 100
        queue = random.choice(queues)
        if random.random() < 0.1:
            index.drop(queue)
        else:
            queue.tenant.clocks = (now + random.uniform(-1, 2), random.uniform(0, 100))
            index.place(queue, now)
        sweeping += bool(index._old)
        assert index.due(now, 0.0) == expected(queues, now)
        assert index.lowest_vft() == expected(queues, now)[1]
        assert len(index) <= 4 * len(queues) + two_clocks_index.SLACK + 2
    assert 100 < sweeping < 3_900, "the walk reaches sweeps, and they end"


def test_one_step_of_a_sweep_moves_a_bounded_number_of_entries() -> None:
    index = TwoClocksIndex()
    queues = [queue_of(number, 0.0) for number in range(5_000)]
    most = 0
    for turn in range(8):
        for queue in queues:
            queue.tenant.clocks = (0.0, queue.tenant.clocks[1] + turn + 1.0)
            before = [len(old) for old, _, _ in index._old]
            index.place(queue, 0.0)
            after = [len(old) for old, _, _ in index._old]
            most = max(most, sum(before) - sum(after))
    assert most == two_clocks_index.SWEPT


def waiting_calls(number: int, deadline_s: float) -> dict[str, Call]:
    tenant = Tenant("a", (0.0, 0.0))
    calls = {f"p-{each}": Call(f"p-{each}", tenant, "m", 1.0, each, 0.0) for each in range(number)}
    for call in calls.values():
        call.deadline_at = deadline_s
    return calls


@pytest.mark.parametrize("seed", range(5))
def test_the_next_deadline_is_right_during_a_sweep(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "SWEPT", 1)
    random = Random(seed)
    calls: dict[str, Call] = {}
    heap, tenant, sweeping = Deadlines(calls), Tenant("a", (0.0, 0.0)), 0
    for number in range(4_000):
        call = Call(f"p-{number}", tenant, "m", 1.0, number, 0.0)
        call.deadline_at = random.uniform(0, 1_000)
        calls[call.id] = call
        heap.add(call)
        if len(calls) > 50:
            gone = calls.pop(random.choice(list(calls)))
            if random.random() < 0.3:
                gone.worker = ""
                calls[gone.id] = gone
                heap.add(gone)  # it waits again
        sweeping += bool(heap._old)
        waiting = [each.deadline_at for each in calls.values()]
        assert heap.next() == min(waiting, default=inf)
        assert len(heap) <= 3 * len(calls) + 2 * deadlines.SLACK
        if number % 100 == 0:
            now = random.uniform(0, 100)
            due = heap.take_due(now)
            assert sorted(due) == sorted(name for name, each in calls.items() if each.deadline_at <= now)
            for name in due:
                del calls[name]
    assert sweeping > 100


def test_one_entry_expires_a_bounded_number_of_calls() -> None:
    calls = waiting_calls(3 * DUE_MAX, 10.0)
    heap = Deadlines(calls)
    for call in calls.values():
        heap.add(call)
    for _ in range(3):
        due = heap.take_due(11.0)
        assert len(due) == DUE_MAX
        for name in due:
            del calls[name]
    assert heap.take_due(11.0) == []
