"""Fleets and plans that make no sense: without workers, with swaps of no or endless time, of other versions."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from typing import Any

import pytest

from dispatcher.model.commands import Leave
from dispatcher.model.errors import LogCorrupt
from dispatcher.model.facts import Entry, ModelOrdered, Planned
from dispatcher.model.fleet import GroupPlan, WorkerPlan
from dispatcher.model.formats import NEWEST
from dispatcher.policies.planning.fleet import PATIENCE_S
from dispatcher.policies.planning.history import ArrivalForecast
from dispatcher.policies.planning.plan import Plan, make_plan
from dispatcher.shard.codec import decode_entry, encode_entry, pack
from dispatcher.shard.proposals import plan_command, plan_input, record_forecast
from tests.support.world.lone_shard import T0, LoneShard, swap_report

FIELDS: list[Any] = ["t", "a", "normal", 0, 3, 60.0, 30.0, True]
PLANNED = Planned(T0, (WorkerPlan("w", "b", (0,)),), (GroupPlan(*FIELDS),))


def forecast(*models: str) -> dict[str, ArrivalForecast]:
    found = {}
    for model in models:
        found[model] = ArrivalForecast()
        for second in range(30):
            found[model].record("x", 100.0, T0 - 30 + second, 20.0)
    return found


def plan_of(shard: LoneShard, *models: str) -> Plan:
    """Make a plan as a leader does, and propose it."""
    picture = plan_input(shard.shard.state, forecast(*models), T0)
    plan = make_plan(picture.backlogs, picture.workers, picture.made_at, moves=200)
    record_forecast(shard.shard.state, plan, T0)
    shard.do(plan_command(plan), T0)
    return plan


def test_a_fleet_that_lost_its_last_worker_has_an_empty_plan() -> None:
    shard = LoneShard(None, swap_report("w", "a", {"a": 1.0, "b": 1.0}))
    shard.call("x", model="b")
    shard.do(Leave("w"), T0)
    assert not shard.shard.state.workers
    assert not plan_input(shard.shard.state, {}, T0).has_rate
    plan = plan_of(shard, "a", "b")
    assert (plan.models, plan.left_out, plan.late_parts) == ({}, 1, {})
    assert not [fact for fact in shard.facts if isinstance(fact, Planned)]


@pytest.mark.parametrize("swap_s", [0.0, 1e-9, -5.0])
def test_swaps_of_no_time_are_planned_and_ordered(swap_s: float) -> None:
    shard = LoneShard(None, swap_report("w", "a", {"a": swap_s, "b": swap_s}))
    for _ in range(3):
        shard.call("x", model="b", due_at=T0 + 5)
    plan = plan_of(shard, "b")
    assert (plan.models, plan.rule != "") == ({"w": "b"}, True)
    (ordered,) = [fact for fact in shard.facts if isinstance(fact, ModelOrdered)]
    assert ordered.model == "b"
    assert ordered.service == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("swap_s", [inf, nan, 1e9])
def test_swaps_without_end_are_neither_planned_nor_ordered(swap_s: float) -> None:
    shard = LoneShard(None, swap_report("w", "a", {"a": 0.0, "b": swap_s}))
    shard.call("x", model="b", due_at=T0 + 5)
    assert plan_of(shard, "b").models == {"w": "a"}
    shard.do(swap_report("w", "a", {"a": 0.0, "b": swap_s}), T0 + 10 * PATIENCE_S)
    assert not [fact for fact in shard.facts if isinstance(fact, ModelOrdered)]


def test_tenants_that_are_all_over_their_share_get_a_plan_and_no_forecast() -> None:
    shard = LoneShard(None, swap_report("w", "a", {"a": 1.0, "b": 1.0}))
    for tenant in "xyz":
        for model in "ab":
            for _ in range(20):
                shard.call(tenant, model=model, cost=500.0, due_at=T0 + 1)
    plan = plan_of(shard, "a", "b")
    assert set(plan.models) == {"w"}
    assert plan.late_parts == {}
    assert any(group.is_entitled for group in plan.groups["w"])


def read(groups: Sequence[Any], *facts: Any) -> Entry:
    rows = [["n", T0, [["w", "b", [0]]], groups], *facts]
    return decode_entry(pack([NEWEST, 0, T0, "p:1", "", 0, rows]))


def test_a_plan_of_a_later_version_is_read_without_its_further_fields() -> None:
    assert read([[*FIELDS, "further"]]).facts == (PLANNED,)


def test_a_plan_of_an_older_version_that_lacks_a_field_is_refused() -> None:
    with pytest.raises(LogCorrupt, match="it is no entry"):
        read([FIELDS[:-1]])


def test_an_order_of_an_older_version_names_no_payer() -> None:
    assert read([FIELDS], ["m", "w", "b"]).facts == (PLANNED, ModelOrdered("w", "b"))
    entry = Entry(0, T0, "p:1", "", 0, (ModelOrdered("w", "b", ("p-1",), 30.0),))
    assert decode_entry(encode_entry(entry, checked=True)) == entry
