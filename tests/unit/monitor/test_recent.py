"""The window of the last minute, against entries worked out by hand."""

from __future__ import annotations

import pytest

from dispatcher.model.call import CallTerms
from dispatcher.model.facts import Accepted, Dispatched, Dropped, Ended, Entry, Fact
from dispatcher.monitor.picture import Recent


def accepted(call: str, tenant: str) -> Accepted:
    return Accepted(call, 0, "p", CallTerms(tenant, "m", 10.0, 900.0, False, "", ""), 1.0, (0.0,))


def dispatched(call: str) -> Dispatched:
    return Dispatched(call, "w", 1, False, 0.0, 1.0, (0.0,), 0.0)


def ended(call: str, served: float, first_token_s: float = 0.0) -> Ended:
    return Ended(call, 1, "done", 4, 3, served, (0.0,), 0.0, first_token_s)


def window(*entries: tuple[float, tuple[Fact, ...]]) -> Recent:
    recent = Recent()
    for position, (at, facts) in enumerate(entries):
        recent.note(Entry(position, at, "p:1", "", 0, facts))
    return recent


def test_latency_is_the_wait_and_the_workers_time() -> None:
    recent = window(
        (100.0, (accepted("p-1", "a"),)), (103.0, (dispatched("p-1"),)), (110.0, (ended("p-1", 20.0, 0.5),))
    )
    found = recent.of_tenants(110.0)["a"]
    assert (found.ended, found.wait_p50_s, found.first_token_p99_s) == (1, 3.0, 3.5)
    assert found.service_per_s == pytest.approx(2.0)


def test_shares_are_of_the_service_of_all() -> None:
    calls = (accepted("p-1", "a"), accepted("p-2", "b"))
    recent = window((0.0, calls), (1.0, (dispatched("p-1"), dispatched("p-2"))), (5.0, (ended("p-1", 30.0),)))
    recent.note(Entry(3, 6.0, "p:4", "", 0, (ended("p-2", 10.0),)))
    found = recent.of_tenants(10.0)
    assert (found["a"].share, found["b"].share) == (0.75, 0.25)
    assert found["a"].first_token_p50_s is None


def test_old_calls_leave_the_window() -> None:
    recent = window((0.0, (accepted("p-1", "a"),)), (1.0, (dispatched("p-1"),)), (2.0, (ended("p-1", 1.0),)))
    assert set(recent.of_tenants(62.0)) == {"a"}
    assert recent.of_tenants(62.1) == {}


def test_an_entry_counts_once_and_a_call_without_its_beginning_not_at_all() -> None:
    recent = window((0.0, (accepted("p-1", "a"), accepted("p-3", "a"))), (1.0, (Dropped("p-3", "cancelled"),)))
    recent.note(Entry(1, 1.0, "p:2", "", 0, (ended("p-1", 1.0),)))  # a position that was noted
    recent.note(Entry(2, 2.0, "p:3", "", 0, (ended("p-9", 1.0),)))  # accepted before the first entry
    assert recent.of_tenants(2.0) == {}


def test_calls_whose_ends_are_in_a_snapshot_are_forgotten() -> None:
    recent = window((0.0, (accepted("p-1", "a"),)))
    recent.restart()
    recent.note(Entry(9, 50.0, "p:2", "", 0, (ended("p-1", 1.0), accepted("p-2", "a"))))
    recent.note(Entry(10, 60.0, "p:3", "", 0, (ended("p-2", 30.0),)))
    found = recent.of_tenants(60.0)["a"]
    assert (found.ended, found.service_per_s) == (1, 3.0)
