"""The heap of deadlines is swept a few entries at a time, and its head stays that of a sorted list."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from dispatcher.model.call import CallTerms
from dispatcher.policies.orders.queues import Call, Tenant
from dispatcher.shard.state import indexes
from dispatcher.shard.state.indexes import Deadlines


@pytest.mark.parametrize("seed", range(5))
def test_the_next_deadline_is_right_during_a_sweep(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "SWEPT", 1)
    random = Random(seed)
    calls: dict[str, Call] = {}
    heap, tenant, sweeping = Deadlines(calls), Tenant("a", (0.0, 0.0)), 0
    for number in range(4_000):
        terms = CallTerms("a", "m", 1.0, random.uniform(0, 1_000), False, "", "")
        call = Call(f"p-{number}", tenant, terms, number, 0.0)
        calls[call.id] = call
        heap.add(call)
        if len(calls) > 50:
            gone = calls.pop(random.choice(list(calls)))
            if random.random() < 0.3:
                gone.worker = ""
                calls[gone.id] = gone
                heap.add(gone)  # it waits again
        sweeping += bool(heap._old)
        waiting = [each.terms.deadline_at for each in calls.values()]
        assert heap.next() == min(waiting, default=inf)
        assert len(heap) <= 3 * len(calls) + 2 * indexes.DEADLINES_SLACK
        if number % 100 == 0:
            now = random.uniform(0, 100)
            due = heap.take_due(now)
            assert sorted(due) == sorted(name for name, each in calls.items() if each.terms.deadline_at <= now)
            for name in due:
                del calls[name]
    assert sweeping > 100
