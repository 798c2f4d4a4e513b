from __future__ import annotations

import pytest

from gpu_worker.policies.fairness.accounting.arrival_queue import Line


def test_members_stand_in_the_order_of_their_places() -> None:
    line: Line[str] = Line()
    for place in (3, 1, 2):
        line.add(place, f"m{place}")
    assert [line.remove(place) for place in (1, 2)] == ["m1", "m2"]
    assert line.head() == "m3"


def test_leaving_from_the_middle_and_returning_to_the_old_place() -> None:
    line: Line[str] = Line()
    for place in range(5):
        line.add(place, f"m{place}")
    line.remove(1)
    line.remove(0)
    assert line.head() == "m2"
    line.add(1, "again")
    assert line.head() == "again"
    assert len(line) == 4


def test_places_of_those_who_left_do_not_pile_up() -> None:
    line: Line[str] = Line()
    line.add(0, "stays")
    for place in range(1, 5_000):
        line.add(place, "leaves")
        line.remove(place)
    assert len(line._places) < 50
    assert line.head() == "stays"


def test_nobody_in_line() -> None:
    with pytest.raises(IndexError):
        Line[str]().head()
