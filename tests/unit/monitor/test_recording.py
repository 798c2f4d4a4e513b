"""Recorded calls, against entries worked out by hand."""

from __future__ import annotations

from math import inf

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.facts import Accepted, Dispatched, Dropped, Ended, Entry, Fact, Returned, TenantSet
from dispatcher.monitor.recording import RecordedCall, Recording


def accepted(call: str, tenant: str = "a") -> Accepted:
    return Accepted(call, 0, "p", CallTerms(tenant, "m", 10.0, 900.0, False, "chat", "i"), 1.0, (0.0,))


def dispatched(call: str, worker: str = "w", attempt: int = 1) -> Dispatched:
    return Dispatched(call, worker, attempt, False, 0.0, 1.0, (0.0,), 0.0)


def ended(call: str, first_token_s: float = 0.5, outcome: str = "done") -> Ended:
    return Ended(call, 1, outcome, 4, 3, 10.0, (0.0,), 0.0, first_token_s)


def recording(*entries: tuple[float, tuple[Fact, ...]], worker: str = "") -> Recording:
    made = Recording(worker)
    for position, (at, facts) in enumerate(entries):
        made.note(Entry(position, at, "p:1", "", 0, facts))
    return made


def test_a_row_has_the_wait_and_the_workers_time() -> None:
    premium = TenantSet("a", TenantConfig(1, 1.0, 0.0, 0.0, "premium", 5), (0.0,))
    entries = [(100.0, (premium, accepted("p-1"))), (103.0, (dispatched("p-1"),)), (110.0, (ended("p-1"),))]
    row = RecordedCall(100.0, "a", "chat", "m", "premium", "i", 4, 3, 3.5, 10.0)
    assert recording(*entries).take(inf) == [row]
    assert recording(*entries, worker="w").take(inf) == [row._replace(begun_at=103.0, first_token_s=0.5, latency_s=7.0)]
    assert recording(*entries, worker="v").take(inf) == []


def test_a_row_waits_for_the_calls_that_began_before_it() -> None:
    made = recording(
        (0.0, (accepted("p-1"),)), (1.0, (accepted("p-2"),)), (2.0, (dispatched("p-1"), dispatched("p-2"))),
        (3.0, (ended("p-2"),)),
    )  # fmt: skip
    assert (made.horizon, made.take(made.horizon)) == (0.0, [])
    made.note(Entry(4, 9.0, "p:2", "", 0, (ended("p-1", 0.0),)))
    assert [(row.begun_at, row.first_token_s) for row in made.take(made.horizon)] == [(0.0, None), (1.0, 1.5)]
    assert made.take(inf) == []


def test_an_attempt_that_came_back_is_the_next_workers() -> None:
    entries: list[tuple[float, tuple[Fact, ...]]] = [
        (0.0, (accepted("p-1"),)), (1.0, (dispatched("p-1", "v"),)), (2.0, (Returned("p-1", 1, "lost", True, (0.0,)),)),
        (5.0, (dispatched("p-1", "w", 2),)), (6.0, (ended("p-1"),)),
    ]  # fmt: skip
    assert [row.begun_at for row in recording(*entries, worker="w").take(inf)] == [5.0]
    assert recording(*entries, worker="v").take(inf) == []
    assert [row.first_token_s for row in recording(*entries).take(inf)] == [5.5]


def test_calls_without_an_answer_are_counted() -> None:
    made = recording(
        (0.0, (accepted("p-1"), accepted("p-2"), accepted("p-3"))),
        (1.0, (dispatched("p-1"), Dropped("p-2", "expired"))),
        (2.0, (ended("p-1", 0.0, "cancelled"), ended("p-9"))),
    )
    assert (made.take(inf), made.unanswered, made.horizon) == ([], 2, 0.0)
    made.restart()
    made.note(Entry(2, 3.0, "p:9", "", 0, (ended("p-3"),)))  # a position that was noted
    made.note(Entry(3, 3.0, "p:9", "", 0, (ended("p-3"),)))  # accepted before the snapshot that replaced its entry
    assert (made.take(inf), made.interrupted, made.horizon) == ([], 1, inf)
