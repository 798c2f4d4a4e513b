"""The picture that the planner gets, and the command that comes of its plan."""

from __future__ import annotations

from math import inf

from dispatcher.model.fleet import GROUPS_MAX, ORDER_MAX
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.policies.planning.fleet import DRAIN_S
from dispatcher.policies.planning.groups import GroupKey
from dispatcher.policies.planning.history import ArrivalForecast
from dispatcher.policies.planning.plan import Plan, PlannedGroup, make_plan
from dispatcher.shard.proposals import plan_command, plan_input, predicts_miss
from dispatcher.shard.settings import ShardSettings
from tests.support.world.lone_shard import T0, LoneShard, swap_report

SWAPS = {"a": 2.0, "b": 2.0}


def fleet(**swap_s: float) -> LoneShard:
    return LoneShard(ShardSettings(slack=Slack()), swap_report("w", "a", swap_s or SWAPS))


def group(tenant: str, due_at: float, requests: int = 1) -> PlannedGroup:
    return PlannedGroup(tenant, GroupKey("b", "normal", 1), requests, due_at, due_at + 5, True)


def test_waiting_calls_are_grouped_by_model_class_and_length() -> None:
    shard = fleet()
    shard.call("t", model="a", cost=500.0)
    for due_at, tokens in ((T0 + 20, 100), (T0 + 10, 200), (T0 + 15, 3000)):
        shard.call("t", model="b", slo_class="interactive", due_at=due_at, input_tokens=tokens, cost=7.0)
    shard.call("t", model="b", slo_class="batch", due_at=T0 + 3600, deferred=True, cost=7.0)
    shard.call("u", model="b", rate_per_s=5.0, cost=7.0)
    picture = plan_input(shard.shard.state, {}, T0 + 1)
    of_t, of_u = picture.backlogs
    found = {each.key: (each.requests, each.expected_service, each.due_at, each.last_due_at) for each in of_t.groups}
    assert found == {
        GroupKey("b", "interactive", 0): (2, 14.0, T0 + 10, T0 + 20),
        GroupKey("b", "interactive", 2): (1, 7.0, T0 + 15, T0 + 15),
        GroupKey("b", "batch", 0): (1, 7.0, T0 + 3600, T0 + 3600),
    }
    assert of_u.share.rate_per_s == 5.0
    assert [(each.key.slo_class, each.due_at) for each in of_u.groups] == [("normal", T0 + 60)]
    (worker,) = picture.workers
    assert (worker.loaded, worker.free_s, worker.slots) == ("a", 2.5, 1)
    assert worker.drain_s == 5.0, "the whole of the call that runs"


def test_impossible_reports_make_no_impossible_workers() -> None:
    shard = fleet(a=-1.0, b=inf, c=1e9)
    shard.call("t", model="b", cost=1e9)
    shard.do(swap_report("w", "a", {"a": -1.0, "b": inf, "c": 1e9}, slots=0))
    (worker,) = plan_input(shard.shard.state, {}, T0).workers
    assert worker.swap_s == {"a": 0.0}
    assert worker.slots == 1
    assert max(worker.free_s, worker.drain_s) <= DRAIN_S


def test_a_forecast_is_part_of_the_picture() -> None:
    shard = fleet()
    shard.call("t", model="b")
    forecast = ArrivalForecast()
    forecast.record("t", 60.0, T0)
    (backlog,) = plan_input(shard.shard.state, {"b": forecast}, T0).backlogs
    assert backlog.forecast_service == {"b": 60.0}


def test_a_miss_is_predicted_for_a_missing_model_and_for_a_long_backlog() -> None:
    shard = fleet()
    shard.call("t", model="a", cost=100.0)
    assert not predicts_miss(shard.shard.state, T0)
    for _ in range(59):
        shard.call("t", model="a", cost=100.0)
    assert not predicts_miss(shard.shard.state, T0)
    shard.call("t", model="a", cost=100.0)
    shard.call("t", model="a", cost=100.0)
    assert predicts_miss(shard.shard.state, T0)
    other = fleet()
    other.call("t", model="b")
    assert predicts_miss(other.shard.state, T0)


def test_a_command_names_the_next_groups_of_each_worker() -> None:
    command = plan_command(Plan(T0, {"v": "a", "w": "b"}, {"v": (), "w": (group("t", T0 + 9), group("u", T0 + 5))}))
    assert command.made_at == T0
    assert {each.worker: (each.model, each.order) for each in command.workers} == {"v": ("a", ()), "w": ("b", (0, 1))}
    assert [each.tenant for each in command.groups] == ["t", "u"]


def test_groups_that_the_log_has_no_room_for_are_folded_into_the_laxest() -> None:
    orders = {f"w{n}": tuple(group(f"t{n}-{m}", T0 + 100 * m + n, 2) for m in range(20)) for n in range(8)}
    command = plan_command(Plan(T0, dict.fromkeys(orders, "b"), orders))
    assert len(command.groups) == GROUPS_MAX
    assert all(len(each.order) <= ORDER_MAX for each in command.workers)
    others = command.groups[-1]
    assert others.tenant == ""
    assert others.length_bucket == 1
    assert sum(each.requests for each in command.groups) == 2 * 8 * ORDER_MAX
    for each in command.workers:
        last = each.order[-1]
        assert last == GROUPS_MAX - 1
        assert [command.groups[number].tenant for number in each.order[:-1]] == [
            planned.tenant for planned in orders[each.worker][: len(each.order) - 1]
        ]


def test_a_plan_of_the_picture_is_accepted_by_the_shard() -> None:
    shard = fleet()
    for _ in range(30):
        shard.call("t", model="a", cost=100.0)
        shard.call("t", model="b", cost=100.0)
    picture = plan_input(shard.shard.state, {}, T0 + 30)
    shard.do(plan_command(make_plan(picture.backlogs, picture.workers, picture.made_at)), T0 + 31)
    plan = shard.shard.state.plan
    assert plan is not None
    assert sum(each.requests for each in plan.groups) == 59


def test_a_tenant_without_waiting_calls_is_in_the_picture_for_its_forecast() -> None:
    """Otherwise a model whose queue is empty for a moment looks free to evict."""
    shard = fleet()
    shard.call("t", model="b")
    shard.call("u", model="a")
    forecast = ArrivalForecast()
    forecast.record("u", 60.0, T0, 20.0)
    forecast.record("unknown", 60.0, T0, 20.0)
    backlogs = {each.tenant: each for each in plan_input(shard.shard.state, {"a": forecast}, T0).backlogs}
    assert set(backlogs) == {"t", "u"}
    assert backlogs["u"].groups == []
    assert backlogs["u"].expected["a"].due_s == 20.0
