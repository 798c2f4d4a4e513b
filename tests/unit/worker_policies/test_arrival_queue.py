"""A queue in the order of arrival."""

from __future__ import annotations

import pytest

from gpu_worker.policies.fairness.accounting import ArrivalQueue


def test_members_are_in_the_order_of_their_places() -> None:
    queue: ArrivalQueue[str] = ArrivalQueue()
    for place in (3, 1, 2):
        queue.add(place, f"m{place}")
    assert [queue.remove(place) for place in (1, 2)] == ["m1", "m2"]
    assert queue.head() == "m3"


def test_leaving_from_the_middle_and_returning_to_the_old_place() -> None:
    queue: ArrivalQueue[str] = ArrivalQueue()
    for place in range(5):
        queue.add(place, f"m{place}")
    queue.remove(1)
    queue.remove(0)
    assert queue.head() == "m2"
    queue.add(1, "again")
    assert queue.head() == "again"
    assert len(queue) == 4


def test_stale_places_do_not_accumulate() -> None:
    queue: ArrivalQueue[str] = ArrivalQueue()
    queue.add(0, "stays")
    for place in range(1, 5_000):
        queue.add(place, "leaves")
        queue.remove(place)
    assert len(queue._places) < 50
    assert queue.head() == "stays"


def test_an_empty_queue_has_no_head() -> None:
    with pytest.raises(IndexError):
        ArrivalQueue[str]().head()
