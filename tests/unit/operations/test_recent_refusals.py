"""Refusals of the gate that a process repeats for a moment."""

from __future__ import annotations

import pytest

from dispatcher.model.errors import Refused
from dispatcher.operations.limits import RecentRefusals

WITHIN_S = 0.25
A, B = ("pool", "a"), ("pool", "b")


def test_a_recent_refusal_is_raised_again_for_its_queue_alone() -> None:
    refusals = RecentRefusals(WITHIN_S)
    refusals.check(A, 1.0)
    refusals.note(A, Refused("full", "queue_full", 3.0), 1.0)
    with pytest.raises(Refused, match="full") as raised:
        refusals.check(A, 1.0 + WITHIN_S - 0.01)
    assert (raised.value.code, raised.value.retry_after_s) == ("queue_full", 3.0)
    refusals.check(B, 1.0)
    refusals.check(A, 1.0 + WITHIN_S)


def test_a_tenant_is_refused_before_its_pool_is_known_only_if_all_its_queues_refuse() -> None:
    refusals, elsewhere = RecentRefusals(WITHIN_S), ("other", "a")
    refusals.note(A, Refused("full", "queue_full", 3.0), 1.0)
    refusals.check(elsewhere, 1.1)
    refusals.check_all((A, elsewhere), 1.1)
    refusals.note(elsewhere, Refused("full too", "queue_full", 3.0), 1.1)
    with pytest.raises(Refused, match="full"):
        refusals.check_all((A, elsewhere), 1.1)
    refusals.check_all((A, elsewhere), 1.0 + WITHIN_S)


def test_a_repeated_refusal_does_not_last_longer() -> None:
    refusals = RecentRefusals(WITHIN_S)
    refusals.note(A, Refused("full", "queue_full", 3.0), 1.0)
    with pytest.raises(Refused):
        refusals.check(A, 1.2)
    refusals.check(A, 1.3)


def test_old_refusals_are_forgotten() -> None:
    refusals = RecentRefusals(WITHIN_S)
    for number in range(100):
        refusals.note(("pool", f"tenant-{number}"), Refused("full", "queue_full", 1.0), 0.1 * number)
    refusals.note(("pool", "tenant-97"), Refused("full", "queue_full", 1.0), 0.1 * 100)
    assert len(refusals) == 3
