"""Sorted blocks hold what a sorted list holds, and no step moves more than a few blocks."""

from __future__ import annotations

from bisect import insort
from math import inf
from random import Random

import pytest

from dispatcher.model.call import CallTerms
from dispatcher.policies.orders import queues as queues_module
from dispatcher.policies.orders.queues import BLOCK_MOST, Call, SortedEntries, Tenant, TenantQueue
from dispatcher.policies.orders.two_clocks import TwoClocksIndex


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("most", [2, 3, 8, 64])
def test_a_walk_beside_a_sorted_list(seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues_module, "BLOCK_MOST", most)
    random, entries, expected = Random(seed), SortedEntries(), list[tuple[float, int]]()
    for number in range(3_000):
        grows = random.random() < (0.7 if number % 1_000 < 500 else 0.3)
        if grows or not expected:
            entry = (float(random.randrange(100)), number)
            entries.add(entry)
            insort(expected, entry)
        else:
            entry = random.choice(expected) if random.random() < 0.5 else expected[0]
            entries.remove(entry)
            expected.remove(entry)
        assert list(entries) == expected
        assert len(entries) == len(expected)
        assert entries.first == (expected[0] if expected else None)
        assert entries._lasts == [block[-1] for block in entries._blocks[:-1]]
        assert len(entries._blocks) == 1 or all(entries._blocks)


def test_an_entry_that_is_not_there() -> None:
    entries = SortedEntries()
    with pytest.raises(KeyError):
        entries.remove((1.0, 1))
    entries.add((1.0, 1))
    for absent in ((0.0, 1), (1.0, 0), (1.0, 2)):
        with pytest.raises(KeyError):
            entries.remove(absent)
    assert list(entries) == [(1.0, 1)]


def test_blocks_stay_short_and_few() -> None:
    random, entries, present = Random(1), SortedEntries(), list[tuple[float, int]]()
    for number in range(20_000):
        entry = (random.random(), number)
        entries.add(entry)
        present.append(entry)
    random.shuffle(present)
    while present:
        entries.remove(present.pop())
        if len(present) % 1_000 == 0:
            assert all(len(block) <= BLOCK_MOST for block in entries._blocks)
            assert len(entries._blocks) <= 1 + len(present) * 4 // BLOCK_MOST
    assert entries.first is None
    assert entries._blocks == [[]]
    assert not entries._lasts


def queue_of(number: int, rate_per_s: float) -> TenantQueue:
    tenant = Tenant(f"t{number}", (0.0, float(number)))
    tenant.config = tenant.config._replace(rate_per_s=rate_per_s)
    queue = tenant.queue("m", False)
    queue.add(Call(f"p-{number}", tenant, CallTerms("t", "m", 1.0, inf, False, "", ""), number, 0.0))
    return queue


def expected(queues: list[TenantQueue], now: float) -> tuple[TenantQueue | None, float]:
    """The queue that is due and the lowest vft, from sorted lists."""
    waiting = sorted((q for q in queues if q.places), key=lambda q: (q.tenant.clocks[1], q.head().arrival))
    ready = [q for q in waiting if q.tenant.config.rate_per_s and q.tenant.clocks[0] <= now]
    if not waiting:
        return None, inf
    return (ready or waiting)[0], waiting[0].tenant.clocks[1]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rates", [(0.0,), (0.0, 1.0), (1.0,)])
def test_the_index_of_two_clocks_beside_sorted_lists(
    seed: int, rates: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues_module, "BLOCK_MOST", 4)
    random, index, now = Random(seed), TwoClocksIndex(), 0.0
    queues = [queue_of(number, random.choice(rates)) for number in range(40)]
    for queue in queues:
        index.place(queue, now)
    for _ in range(4_000):
        now += random.random() / 100
        queue = random.choice(queues)
        if random.random() < 0.1:
            queue.move()
        else:
            queue.tenant.clocks = (now + random.uniform(-1, 2), random.uniform(0, 100))
            index.place(queue, now)
        assert index.due(now, 0.0) == expected(queues, now)
        assert index.lowest_vft() == expected(queues, now)[1]
        assert len(index._ready) + len(index._surplus) == sum(bool(each.places) for each in queues)
