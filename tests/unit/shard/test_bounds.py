"""What clients choose makes the state grow up to a bound only, and a snapshot has the same bounds (I12)."""

from __future__ import annotations

import pytest

from dispatcher.model.commands import End, Offer, Outcome, Over, Refused, Unknown, Waiting
from dispatcher.model.facts import Entry
from dispatcher.policies import throttling
from dispatcher.policies.throttling import ThrottleLimits
from dispatcher.shard import accept
from dispatcher.shard.settings import SATURATED, ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import dump, load
from dispatcher.shard.state import remembered
from dispatcher.shard.state.forgetting import forget
from dispatcher.shard.state.remembered import ENDS_KEPT_S
from tests.support.world.lone_shard import LoneShard, report
from tests.support.world.processes import accept as accept_command

THROTTLED = ShardSettings(throttling=ThrottleLimits(user=2, app=100))


@pytest.fixture
def few_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "ENDS_LEAST", 3)
    monkeypatch.setattr(remembered, "ENDS_MOST", 100)


def ended(shard: LoneShard, calls: int, step_s: float = 0.1) -> list[str]:
    """Let so many calls end, one after another. Return their ids."""
    names = []
    for _ in range(calls):
        shard.now += step_s
        names.append(shard.call())
        shard.end(names[-1])
    return names


def known(shard: LoneShard, name: str) -> bool:
    """Return whether the repeated end of a call gets its answer."""
    outcome = shard.do(End(name, 1, "done", 1, 0))
    assert isinstance(outcome, Over | Unknown)
    return isinstance(outcome, Over)


def entries_until(shard: LoneShard, seconds: float) -> None:
    """Write an entry twice a second."""
    for number in range(round(2 * seconds)):
        shard.do(report("w", 1 + number % 2), shard.now + 0.5)


@pytest.mark.usefixtures("few_ends")
def test_an_end_is_kept_by_time() -> None:
    shard = LoneShard()
    first = ended(shard, 20)
    entries_until(shard, ENDS_KEPT_S - 4)
    last = ended(shard, 20)
    assert all(known(shard, name) for name in first)
    entries_until(shard, 8.0)
    assert not any(known(shard, name) for name in first)
    assert all(known(shard, name) for name in last)


@pytest.mark.usefixtures("few_ends")
def test_ends_outlast_an_outage_and_the_last_ones_are_always_kept() -> None:
    """In an outage the log has no entries. After it workers repeat what they could not report."""
    shard = LoneShard()
    names = ended(shard, 10, 0.01)
    shard.do(report("w", 2), shard.now + 3600)
    entries_until(shard, ENDS_KEPT_S - 2)
    assert all(known(shard, name) for name in names)
    entries_until(shard, 4.0)
    assert [name for name in names if known(shard, name)] == names[-2:], "the third row is the mark of their time"


@pytest.mark.usefixtures("few_ends")
def test_ends_have_a_bound_in_number() -> None:
    shard = LoneShard()
    ended(shard, 300, 0.001)
    assert len(shard.shard.state.ends) == 100


@pytest.mark.usefixtures("few_ends")
@pytest.mark.parametrize("at", [0, 7, 40, 60])
def test_a_copy_from_a_snapshot_drops_the_same_ends(at: int) -> None:
    """Whatever is kept depends on the entries alone: marks of time are in the snapshot."""
    shard = LoneShard()
    entries: list[Entry] = []
    copy: Shard | None = None
    for number in range(80):
        if number == at:
            copy = load(dump(shard.shard), ShardSettings())
            entries.clear()
        for command_at in (0.7, 0.9):
            shard.now += command_at
            name = shard.call()
            entries.append(Entry(shard.shard.position - 1, shard.shard.at, "test", "", 0, shard.facts))
            shard.end(name)
            entries.append(Entry(shard.shard.position - 1, shard.shard.at, "test", "", 0, shard.facts))
    assert copy is not None
    for entry in entries:
        copy.fold(entry)
    assert dump(copy) == dump(shard.shard)
    assert len(copy.state.ends) < 80


def test_interactions_are_kept_only_for_throttling() -> None:
    shard = LoneShard(None, report("w", 100))
    for number in range(100):
        shard.call(interaction=f"i{number}")
    assert len(shard.shard.state.interactions) == 0


def test_a_tenant_has_a_bound_of_interactions_and_others_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "INTERACTIONS_MOST", 3)
    shard = LoneShard(THROTTLED, report("w", 100, kv_use=0.1))
    for number in range(10):
        shard.call("a", interaction=f"i{number}")
    shard.call("b", interaction="i0")
    assert sorted(shard.shard.state.interactions) == [("a", "i0"), ("a", "i1"), ("a", "i2"), ("b", "i0")]
    shard.do(report("w", 100, kv_use=SATURATED))
    shard.call("a", interaction="i1")
    shard.refused("a", interaction="i9")  # it is throttled like a first call
    again = load(dump(shard.shard), THROTTLED)
    assert not again.state.interactions.has_room(("a", "i9"))
    again.state.position, again.state.at = 0, shard.now + THROTTLED.interaction_kept_s + 60.0
    forget(again.state, shard.now)
    assert again.state.interactions.has_room(("a", "i9"))


def test_applications_beyond_the_rows_of_usage_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "USAGE_ROWS_MOST", 3)
    shard = LoneShard()
    for number in range(10):
        shard.end(shard.call(app=f"app{number}"), 5)
    shard.end(shard.call(app="app1"), 5)
    rows = {row.app: row.input_tokens for row in shard.shard.usage_rows()}
    assert rows == {"app0": 5, "app1": 10, "app2": 5, "": 35}


@pytest.mark.parametrize("number", range(4))
def test_a_decision_that_is_undone_leaves_no_trace_at_the_bounds(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(throttling, "KEPT_MAX", 2)
    monkeypatch.setattr(remembered, "INTERACTIONS_MOST", 2)
    shard = LoneShard(THROTTLED, report("w", 100))
    for name in ("a", "b"):
        shard.now += 0.4
        shard.call(name, app=name, interaction=name)
    before = dump(shard.shard)
    command = accept_command("z-9", "q", shard.now + 2, ("a", "c", "d", "b")[number], app="new", interaction="new")
    shard.shard.decide([command], shard.now + 2)
    shard.shard.rollback()
    assert dump(shard.shard) == before


def test_an_entry_drops_few_of_many_old_ends() -> None:
    ends = remembered.Ends((f"p-{number}", Over(f"p-{number}", 1, "done")) for number in range(10_000))
    remembered.mark_second(ends, 100.0)
    remembered.drop_old(ends, 131.0)
    assert len(ends) == 10_001
    for _ in range(20):
        before = len(ends)
        remembered.drop_old(ends, 132.0)
        assert before - len(ends) <= remembered.DROPPED_MOST
    assert len(ends) == remembered.ENDS_LEAST


def arrive_together(shard: LoneShard, count: int, waiting_max: int) -> list[Outcome]:
    """Decide so many calls of one tenant for one entry."""
    until = shard.now + 60
    calls = [shard.new_call("a", 1.0, floor=0, deadline_at=until, waiting_max=waiting_max) for _ in range(count)]
    return list(shard.decide(*calls).outcomes)


def kinds(outcomes: list[Outcome]) -> list[type[Outcome]]:
    return [type(outcome) for outcome in outcomes]


def test_a_burst_that_fits_into_the_free_slots_is_accepted_whole() -> None:
    assert kinds(arrive_together(LoneShard(None, report("w", 16)), 16, waiting_max=4)) == [Offer] * 16


def test_a_tenant_that_may_not_wait_gets_all_free_slots() -> None:
    assert kinds(arrive_together(LoneShard(None, report("w", 3)), 5, waiting_max=0)) == [Offer] * 3 + [Refused] * 2


def test_beyond_the_free_slots_the_queue_keeps_its_limit() -> None:
    outcomes = kinds(arrive_together(LoneShard(None, report("w", 8)), 20, waiting_max=2))
    assert outcomes.count(Offer) == 8
    assert outcomes.count(Waiting) == 2
    assert outcomes.count(Refused) == 10
