"""Refusals of the gate that a process repeats for a moment."""

from __future__ import annotations

import pytest

from dispatcher.model.errors import Refused
from dispatcher.operations.recent_refusals import RecentRefusals

WITHIN_S = 0.25


def test_a_recent_refusal_is_raised_again_for_its_tenant_alone() -> None:
    refusals = RecentRefusals(WITHIN_S)
    refusals.check("a", 1.0)
    refusals.note("a", Refused("full", "queue_full", 3.0), 1.0)
    with pytest.raises(Refused, match="full") as raised:
        refusals.check("a", 1.0 + WITHIN_S - 0.01)
    assert (raised.value.code, raised.value.retry_after_s) == ("queue_full", 3.0)
    refusals.check("b", 1.0)
    refusals.check("a", 1.0 + WITHIN_S)


def test_a_repeated_refusal_does_not_last_longer() -> None:
    refusals = RecentRefusals(WITHIN_S)
    refusals.note("a", Refused("full", "queue_full", 3.0), 1.0)
    with pytest.raises(Refused):
        refusals.check("a", 1.2)
    refusals.check("a", 1.3)


def test_old_refusals_are_forgotten() -> None:
    refusals = RecentRefusals(WITHIN_S)
    for number in range(100):
        refusals.note(f"tenant-{number}", Refused("full", "queue_full", 1.0), 0.1 * number)
    refusals.note("tenant-97", Refused("full", "queue_full", 1.0), 0.1 * 100)
    assert len(refusals) == 3
