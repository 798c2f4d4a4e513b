"""Whole plans: who is entitled, which worker swaps, which keeps its model, and bad input."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.plan import Plan, PlannedGroup, PlanSettings, make_plan
from tests.support.planning.fleets import NOW, PER_S, backlog, group, worker


def orders(plan: Plan) -> dict[str, list[str]]:
    return {name: [each.key.model for each in order] for name, order in plan.groups.items()}


def test_waiting_work_has_an_order_with_its_end() -> None:
    plan = make_plan([backlog(group("a", seconds=5.0))], [worker(free_s=1.0)], NOW)
    [planned] = plan.groups["w"]
    assert (planned.tenant, planned.key.model, planned.requests) == ("t", "a", 10)
    assert (planned.due_at, planned.ends_at) == (NOW + 60.0, NOW + 6.0)
    assert plan.models == {"w": "a"}
    assert (plan.made_at, plan.late_requests, plan.swap_s, plan.left_out) == (NOW, 0.0, 0.0, 0)


def test_an_urgent_model_gets_the_worker_and_another_waits_for_its_turn() -> None:
    plan = make_plan([backlog(group("a", due_s=60.0, seconds=20.0), group("b", due_s=15.0))], [worker()], NOW)
    assert plan.models == {"w": "b"}
    assert orders(plan) == {"w": ["b", "a"]}
    assert plan.swap_s == 4.0


def test_without_lateness_no_worker_swaps_before_its_own_work_is_done() -> None:
    plan = make_plan([backlog(group("a"), group("b"))], [worker()], NOW)
    assert plan.models == {"w": "a"}
    assert orders(plan) == {"w": ["a", "b"]}


def test_a_flood_is_late_and_delays_no_entitled_work() -> None:
    flood = backlog(group("a", due_s=5.0, seconds=600.0, requests=1000), tenant="flood")
    quiet = backlog(group("a", due_s=20.0, seconds=10.0), tenant="quiet")
    plan = make_plan([flood, quiet], [worker()], NOW)
    order = plan.groups["w"]
    assert plan.surplus_late_s > 0
    assert sum(each.requests for each in order if each.tenant == "flood" and each.is_entitled) < 100
    assert all(each.ends_at <= each.due_at for each in order if each.tenant == "quiet")


def test_groups_are_split_into_entitled_and_surplus_and_into_four_batches() -> None:
    plan = make_plan([backlog(group("a", seconds=100.0, requests=100))], [worker(slots=8)], NOW)
    order = plan.groups["w"]
    assert sum(each.requests for each in order) == 100
    assert sum(each.requests for each in order if each.is_entitled) == 60
    assert max(each.requests for each in order) <= 32


def test_a_group_larger_than_a_plan_gets_larger_pieces() -> None:
    huge = backlog(group("a", seconds=1e6, requests=10**9))
    plan = make_plan([huge], [worker()], NOW, settings=PlanSettings(pieces_max=10))
    assert sum(each.requests for each in plan.groups["w"]) + plan.left_out == 10**9
    assert len(plan.groups["w"]) <= 10


def test_a_worker_keeps_its_model_for_ten_seconds_or_a_swap() -> None:
    urgent = [backlog(group("a", seconds=20.0), group("b", due_s=5.0))]
    for swap_s, kept_s in ((0.0, 10.0), (6.0, 10.0), (12.0, 12.0)):
        young = worker(swap_s=swap_s, loaded_at=NOW - kept_s + 0.1)
        assert make_plan(urgent, [young], NOW).models == {"w": "a"}
        assert make_plan(urgent, [replace(young, loaded_at=NOW - kept_s)], NOW).models == {"w": "b"}


def test_an_idle_worker_keeps_its_model_for_a_swap_time_only() -> None:
    waiting = [backlog(group("b"))]
    assert make_plan(waiting, [worker(swap_s=1.0, loaded_at=NOW - 0.9)], NOW).models == {"w": "a"}
    assert make_plan(waiting, [worker(swap_s=1.0, loaded_at=NOW - 1.0)], NOW).models == {"w": "b"}
    assert make_plan(waiting, [worker(swap_s=0.0, loaded_at=NOW)], NOW).models == {"w": "b"}


def test_a_swap_costs_its_drain_too() -> None:
    waiting = [backlog(group("a", due_s=8.0, seconds=1.0), group("b", due_s=2.5, seconds=1.0))]
    busy = worker(swap_s=1.0, loaded_at=NOW - 60.0)
    assert make_plan(waiting, [busy], NOW).models == {"w": "b"}
    assert make_plan(waiting, [replace(busy, drain_s=10.0)], NOW).models == {"w": "a"}


def test_an_order_counts_the_time_until_a_swap_may_start() -> None:
    plan = make_plan([backlog(group("b", seconds=5.0))], [worker(swap_s=10.0, loaded_at=NOW - 4.0)], NOW)
    assert plan.groups["w"][0].ends_at == NOW + 6.0 + 10.0 + 5.0


def test_deferred_work_with_slack_swaps_only_an_idle_worker() -> None:
    batch = group("b", due_s=3600.0, slo_class="batch")
    assert make_plan([backlog(batch)], [worker()], NOW).models == {"w": "b"}
    assert make_plan([backlog(batch, group("a"))], [worker()], NOW).models == {"w": "a"}
    assert make_plan([backlog(batch)], [worker(free_s=1.0)], NOW).models == {"w": "a"}
    plan = make_plan([backlog(batch, group("a"))], [worker(), worker("x", "b")], NOW)
    assert orders(plan) == {"w": ["a"], "x": ["b"]}


def test_deferred_work_of_one_model_uses_every_idle_worker_that_ends_it_sooner() -> None:
    night = [backlog(group("a", 3600.0, seconds=200.0, requests=100, slo_class="batch"))]
    idle = [worker("w1"), worker("w2", loaded="b", swap_s=3.0)]
    assert make_plan(night, idle, NOW).models == {"w1": "a", "w2": "a"}
    slow = [worker("w1"), worker("w2", loaded="b", swap_s=300.0, loaded_at=NOW - 1e5)]
    assert make_plan(night, slow, NOW).models == {"w1": "a", "w2": "b"}


def test_deferred_work_without_slack_claims_its_share() -> None:
    batch = group("b", due_s=30.0, slo_class="batch")
    plan = make_plan([backlog(group("a", seconds=200.0, requests=100, due_s=60.0), batch)], [worker()], NOW)
    assert plan.models == {"w": "b"}
    assert plan.groups["w"][0].is_entitled


def test_a_swap_must_gain_more_than_it_costs_the_queue() -> None:
    a = group("a", due_s=9.0, seconds=10.0, requests=10)
    b = group("b", due_s=12.0, seconds=10.0, requests=12)
    kept = make_plan([backlog(a, b)], [worker(swap_s=0.5)], NOW)
    assert kept.models == {"w": "a"}
    worth = make_plan([backlog(a, replace(b, requests=100, due_at=NOW + 1.0))], [worker(swap_s=0.5)], NOW)
    assert worth.models == {"w": "b"}


def test_the_last_plan_is_the_start_and_what_it_names_wrongly_is_ignored() -> None:
    waiting = [backlog(group("a"), group("b"), group("a", due_s=70.0, slo_class="interactive"))]
    workers = [worker("v"), worker("w", "b")]
    first = make_plan(waiting, workers, NOW)
    assert make_plan(waiting, workers, NOW + 1.0, last=first).groups.keys() == first.groups.keys()
    strange = PlannedGroup("gone", group("zzz").key, 5, NOW, NOW, True)
    for last in (
        Plan(NOW, {"absent": "zzz"}, {"absent": (strange,), "v": (strange, *first.groups["w"], *first.groups["w"])}),
        replace(first, made_at=NOW + 1e9),
        replace(first, made_at=0.0),
        Plan(NOW, {}, {}),
    ):
        plan = make_plan(waiting, workers, NOW, last=last)
        assert sum(each.requests for order in plan.groups.values() for each in order) == 30
        assert plan.late_requests == 0.0


def test_a_model_that_fits_no_worker_is_left_out_and_claims_nothing() -> None:
    for swaps in ({"a": 0.0, "huge": float("inf")}, {"a": 0.0}):
        plan = make_plan([backlog(group("huge"), group("a"))], [replace(worker(), swap_s=swaps)], NOW)
        assert orders(plan) == {"w": ["a"]}
        assert (plan.left_out, plan.entitled_left_out) == (10, 0)


def test_without_any_throughput_each_worker_keeps_its_model_and_nothing_is_ordered() -> None:
    workers = [worker("v", "c", per_s=0.0), worker("w", per_s=0.0), worker("x", "c", per_s=float("nan"))]
    plan = make_plan([backlog(group("a"), group("b"), group("huge"))], workers, NOW)
    assert plan.models == {"v": "c", "w": "a", "x": "c"}
    assert (plan.left_out, plan.groups) == (30, {"v": (), "w": (), "x": ()})


def test_an_unknown_throughput_is_that_of_the_others() -> None:
    unknown = replace(worker("v", "b"), service_per_s={}, kind="new")
    plan = make_plan([backlog(group("b", seconds=10.0))], [unknown, worker("w", per_s=2 * PER_S, models="a")], NOW)
    assert plan.groups["v"][0].ends_at == NOW + 5.0


def test_the_faster_kind_serves_what_is_urgent() -> None:
    workers = [worker("v", kind="slow", per_s=100.0), worker("w", kind="fast", per_s=2_000.0)]
    plan = make_plan([backlog(group("a", due_s=4.0, seconds=6.0))], workers, NOW)
    assert orders(plan) == {"v": [], "w": ["a"]}


def test_ten_thousand_models() -> None:
    models = {f"m{number}": 1.0 for number in range(10_000)}
    fleet = [
        replace(worker(f"w{at}", f"m{at}"), swap_s=models, service_per_s=dict.fromkeys(models, PER_S))
        for at in range(4)
    ]
    groups = [group(model, due_s=float(at), requests=1) for at, model in enumerate(models)]
    plan = make_plan([backlog(*groups)], fleet, NOW, moves=500)
    assert plan.left_out + sum(each.requests for order in plan.groups.values() for each in order) == 10_000
    assert set(plan.models) == {"w0", "w1", "w2", "w3"}


def test_all_requests_urgent_or_long_overdue() -> None:
    for due_s in (0.0, -NOW):
        plan = make_plan([backlog(group("a", due_s=due_s), group("b", due_s=due_s))], [worker(), worker("x", "b")], NOW)
        assert orders(plan) == {"w": ["a"], "x": ["b"]}
        assert plan.late_requests == 20


def test_nothing_to_plan() -> None:
    assert make_plan([], [], NOW) == Plan(NOW, {}, {})
    assert make_plan([], [worker()], NOW) == Plan(NOW, {"w": "a"}, {"w": ()})
    assert make_plan([backlog(group())], [], NOW).left_out == 10
    assert make_plan([], [worker(loaded="")], NOW).models == {"w": ""}


def test_it_is_the_same_for_the_same_arguments_and_better_with_moves() -> None:
    random = Random(3)
    models = "abcdef"
    waiting = [
        backlog(*(group(model, random.uniform(5.0, 60.0), random.uniform(2.0, 9.0)) for model in models), tenant=tenant)
        for tenant in ("one", "two", "three")
    ]
    workers = [worker("v", models=models), worker("w", "b", models=models, swap_s=5.0)]
    plans = [make_plan(waiting, workers, NOW, moves=moves) for moves in (0, 5_000, 5_000)]
    assert plans[1] == plans[2]
    assert plans[1].entitled_late_s < plans[0].entitled_late_s


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [worker(), worker()]), "same name"),
        (([backlog(group()), backlog(group())], [worker()]), "tenants"),
        (([backlog(group(slo_class="gold"))], [worker()]), "unknown SLO class"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[list[object], list[object]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_plan(*arguments, NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields", [{"loaded_at": float("nan")}, {"free_s": float("inf")}, {"swap_s": {"b": -1.0}}, {"slots": 0}]
)
def test_impossible_workers_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="worker 'w'"):
        replace(worker(), **fields)  # type: ignore[arg-type]


def test_a_guarantee_is_entitled_beside_heavier_tenants() -> None:
    heavy = backlog(group("a", due_s=10.0, seconds=120.0, requests=120), tenant="heavy", share=Share(weight=100.0))
    booked = backlog(
        group("a", due_s=30.0, seconds=30.0, requests=30), tenant="booked", share=Share(0.01, rate_per_s=PER_S / 2)
    )
    plan = make_plan([heavy, booked], [worker()], NOW)
    assert sum(each.requests for each in plan.groups["w"] if each.tenant == "booked" and each.is_entitled) == 30
