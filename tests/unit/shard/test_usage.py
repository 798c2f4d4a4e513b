"""Usage stays in the state until its projection is in the log, however long that takes: it is exact to the token."""

from __future__ import annotations

import pytest

from dispatcher.model.commands import End, Saved, Tick
from dispatcher.model.errors import LogCorrupt
from dispatcher.model.facts import Entry, UsageSaved
from dispatcher.model.usage import HOUR_S
from dispatcher.shard.accept import APPS_MAX
from dispatcher.shard.codec import pack
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import dump, fields_of, load
from tests.support.world.lone_shard import LoneShard, report

DAY_S = 24 * HOUR_S
ROWS = ("workers", "processes", "tenants", "calls", "usage", "interactions", "ends")


def served(*tenants: str) -> LoneShard:
    shard = LoneShard()
    for tenant in tenants:
        shard.end(shard.call(tenant), 7)
    return shard


def pass_time(shard: LoneShard, seconds: float) -> None:
    """Write an entry after some time, and one a minute later: what is old is forgotten."""
    shard.do(report("w", 2), shard.now + seconds)
    shard.do(report("w", 1), shard.now + 60)


def test_usage_leaves_the_state_after_its_projection_and_only_then() -> None:
    shard = served("a")
    position = shard.shard.position
    shard.end(shard.call("b"), 9)
    shard.do(Saved(position))
    assert shard.facts == (UsageSaved(position),)
    pass_time(shard, DAY_S)
    assert [row.tenant for row in shard.shard.usage_rows()] == ["b"]
    shard.do(Saved(shard.shard.position))
    pass_time(shard, 60)
    assert shard.shard.usage_rows() == []


def test_a_total_that_changed_after_its_projection_is_projected_again() -> None:
    shard = served("a")
    shard.do(Saved(shard.shard.position))
    assert shard.shard.unsaved_usage() == []
    shard.end(shard.call("a"), 5)
    [(position, row)] = shard.shard.unsaved_usage()
    assert (row.requests, row.input_tokens, row.position) == (2, 12, shard.shard.position)
    assert position == shard.shard.position - 1


def test_unsaved_totals_come_in_the_order_of_their_last_change() -> None:
    shard = served("b", "a", "b", "c")
    assert [row.tenant for _, row in shard.shard.unsaved_usage()] == ["a", "b", "c"]


def test_a_projection_that_says_nothing_new_writes_no_entry() -> None:
    shard = served("a")
    shard.do(Saved(shard.shard.position))
    for position in (shard.shard.position, 0, 10**9):
        shard.do(Saved(position))
        assert shard.facts == ()
    shard.do(Tick())
    assert shard.facts == ()


def test_a_snapshot_of_version_1_counts_as_not_projected() -> None:
    shard = served("a")
    fields = fields_of(dump(shard.shard))
    del fields["usage_saved"]
    rows = {name: value for name, value in fields.items() if name in ROWS}
    old = pack({**{name: value for name, value in fields.items() if name not in ROWS}, "format": 1}, *rows.items())
    assert [row.tenant for _, row in load(old, ShardSettings()).unsaved_usage()] == ["a"]


def test_a_projection_of_later_entries_does_not_fold() -> None:
    with pytest.raises(LogCorrupt, match="entry 0: UsageSaved"):
        Shard().fold(Entry(0, 1.0, "p:1", "", 0, (UsageSaved(5),)))


def test_of_many_tenants_only_the_active_ones_are_held_and_saved() -> None:
    """5,000 tenants came once, and 20 are active (100,000 and 100 behave alike, but take a minute)."""
    shard = served(*(f"tenant-{number}" for number in range(5_000)))
    many = len(dump(shard.shard))
    shard.do(Saved(shard.shard.position))
    for _ in range(180):
        shard.now += 60
        for number in range(20):
            shard.end(shard.call(f"tenant-{number}"), 3)
    shard.do(Saved(shard.shard.position))
    assert len(shard.shard.state.tenants) <= 40
    assert len(shard.shard.usage_rows()) <= 4 * 20
    assert {row.tenant for row in shard.shard.tenant_rows()} <= {f"tenant-{number}" for number in range(20)}
    ends = len(pack([list(over) for over in shard.shard.state.ends.values()]))
    assert len(dump(shard.shard)) - ends < many / 4


def test_a_client_that_names_ever_new_applications_does_not_grow_the_state() -> None:
    shard = LoneShard()
    for number in range(3 * APPS_MAX):
        shard.end(shard.call("a", app=f"app-{number}"), 7)
    shard.end(shard.call("a", app="app-0"), 7)
    shard.end(shard.call("b", app="app-0"), 7)
    rows = {(row.tenant, row.app): row.requests for row in shard.shard.usage_rows()}
    assert len(rows) == APPS_MAX + 2
    assert (rows["a", ""], rows["a", "app-0"], rows["b", "app-0"]) == (2 * APPS_MAX, 2, 1)
    shard.now += HOUR_S
    shard.end(shard.call("a", app="new"), 7)
    assert ("a", "new") in {(row.tenant, row.app) for row in shard.shard.usage_rows()}


def test_the_count_of_applications_is_that_of_the_usage_after_a_snapshot_an_undo_and_forgetting() -> None:
    shard = LoneShard()
    for app in ("x", "y"):
        shard.end(shard.call("a", app=app), 7)
    state = shard.shard.state
    assert load(dump(shard.shard), state.settings).state.apps == state.apps == {("a", int(shard.now // HOUR_S)): 2}
    name = shard.call("a", app="z")
    shard.shard.decide([End(name, 1, "done", 7, 0)], shard.now)
    shard.shard.rollback()
    assert state.apps.total() == 2
    shard.do(Saved(shard.shard.position))
    pass_time(shard, DAY_S)
    assert not state.apps
