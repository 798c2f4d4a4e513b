"""Rules played forward: the fluid model, and the choice among rules."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.choice import SWAP_MARGIN, cost, play_rules
from dispatcher.policies.planning.claims import TenantBacklog
from dispatcher.policies.planning.fleet import SWAPS_SAVED_S, paid_until, rest_left_s
from dispatcher.policies.planning.forward import Parcel, Play, Start, StartingWorker
from dispatcher.policies.planning.history import ArrivalForecast, Expected
from dispatcher.policies.planning.plan import make_plan
from dispatcher.policies.planning.rules import Rule, rules
from tests.support.planning.fleets import NOW, backlog, group, worker

HOLD_S = 10.0


def start(*parcels: Parcel, workers: int = 1, running: float = 0.0, swap_s: float = 5.0, models: int = 2) -> Start:
    """Return workers of 10 slots with model 0, on which a request of one service unit takes HOLD_S seconds."""
    swaps = [0.0] + [swap_s] * (models - 1)
    each = StartingWorker(0, -100.0, 10, running, HOLD_S, 0.0, 0.0, swaps, [HOLD_S] * models)
    return Start([each] * workers, parcels, models, 2, 60.0, [1.0] * models, [swap_s] * models)


def parcel(
    model: int = 0, requests: float = 1.0, due_s: float = 20.0, tenant: int = 0, release_s: float = -1.0
) -> Parcel:
    return Parcel(release_s, due_s, model, tenant, requests, 1.0, True)


def test_a_full_worker_serves_its_slots_once_in_the_time_of_a_request() -> None:
    """100 requests are ten batches of ten seconds: those due in 30 s are two fifths, if the last begins at 90 s."""
    within = Play(start(parcel(requests=30.0, due_s=30.0))).run(Rule("stay", "stay", [-1]).decide)
    beyond = Play(start(parcel(requests=100.0, due_s=30.0))).run(Rule("stay", "stay", [-1]).decide)
    assert within.late[0] == 0.0
    assert 0.5 <= beyond.late[0] <= 0.75


def test_a_missing_model_is_late_unless_a_worker_swaps_to_it() -> None:
    outcomes = {each.name: Play(start(parcel(1))).run(each.decide) for each in rules(start(parcel(1)), [-1])}
    assert outcomes["stay"].late[0] >= 1.0
    assert outcomes["stay"].models == (0,)
    assert outcomes["exhaust 0"].late[0] == 0.0
    assert outcomes["exhaust 0"].models == (1,)


def test_a_swap_waits_for_what_runs() -> None:
    """One request is drained in half a hold or so; ten take longer than the 20 s until it is due."""
    exhaust = Rule("exhaust", "exhaust", [-1])
    assert Play(start(parcel(1), running=1.0)).run(exhaust.decide).late[0] == 0.0
    assert Play(start(parcel(1), running=10.0)).run(exhaust.decide).late[0] > 0.9


def test_a_hot_model_keeps_its_worker_beside_a_rare_one() -> None:
    """The plan sees arrivals to come: the second request of another tenant goes to the worker that is free."""
    hot, rare = {"a": Expected(4.0, 600.0, 20.0)}, {"b": Expected(0.1, 100.0, 20.0)}
    busy = replace(worker("v", swap_s=5.0), running=8, drain_s=5.0, free_s=2.5, last_swap_s=0.0)
    idle = replace(worker("w", swap_s=5.0), last_swap_s=0.0)
    backlogs = [
        TenantBacklog("hot", Share(), [], {"a": 60 * 4.0 * 600.0}, hot),
        TenantBacklog("rare", Share(), [group("b", 1.0, 0.1, 1)], {"b": 600.0}, rare),
    ]
    plan = make_plan(backlogs, [busy, idle], NOW)
    assert plan.models == {"v": "a", "w": "b"}
    assert plan.rule


def test_a_worker_with_work_serves_as_long_as_its_last_swap_took() -> None:
    for took_s, kept_s in ((0.0, 0.0), (1.0, 4.0), (30.0, 30.0)):
        rested = replace(worker(loaded_at=NOW - kept_s, swap_s=1.0), last_swap_s=took_s)
        assert rest_left_s(rested, "b", NOW, is_waited_for=True) == 0.0
        if kept_s:
            assert rest_left_s(replace(rested, loaded_at=NOW - kept_s + 0.5), "b", NOW, is_waited_for=True) == 0.5


def test_an_idle_worker_swaps_until_a_minute_of_swaps_is_used_up() -> None:
    """The plan, what it plays forward, and the gate have the same rule."""
    rare = TenantBacklog("t", Share(), [group("b", 5.0, 1.0)], {}, {"b": Expected(1.0, 500.0, 5.0)})
    used_up = replace(worker(loaded_at=NOW, swap_s=1.0), last_swap_s=30.0, paid_until=NOW + SWAPS_SAVED_S + 1.0)
    assert rest_left_s(used_up, "b", NOW, is_waited_for=False) == 1.0
    assert make_plan([rare], [used_up], NOW).models == {"w": "a"}
    left = replace(used_up, paid_until=NOW + SWAPS_SAVED_S)
    assert make_plan([rare], [left], NOW).models == {"w": "b"}
    for paid_s, may_swap in ((SWAPS_SAVED_S, True), (SWAPS_SAVED_S + 0.5, False)):
        given = start(parcel(1))
        play = Play(replace(given, workers=[replace(given.workers[0], last_swap_s=30.0, paid_s=paid_s)]))
        assert play.may_swap(play.workers[0], 1) is may_swap


def test_the_worker_pays_for_a_swap_with_as_much_service() -> None:
    assert paid_until(0.0, NOW, 5.0) == NOW + 10.0
    assert paid_until(NOW + 10.0, NOW + 5.0, 5.0) == NOW + 20.0
    assert paid_until(NOW + 10.0, NOW, -1.0) == NOW + 10.0


def test_a_tenant_with_one_request_so_far_takes_no_long_swap_from_another() -> None:
    """A tenant has the worker's model, and another one a request for a model 15 s away. After six requests it gets the
    worker."""
    coming = {"a": Expected(1.0, 1_000.0, 20.0, 60.0)}
    busy = replace(worker(swap_s=15.0, slots=32), running=16, drain_s=5.0, free_s=2.5, last_swap_s=0.0)
    for seen, model in ((1.0, "a"), (6.0, "b")):
        rare = {"b": Expected(0.1, 500.0, 60.0, seen)}
        backlogs = [
            TenantBacklog("t", Share(), [], {"a": 60 * 500.0}, coming),
            TenantBacklog("rare", Share(), [group("b", 60.0, 0.5, 1)], {"b": 6 * 500.0}, rare),
        ]
        assert make_plan(backlogs, [busy], NOW).models == {"w": model}


def test_two_unlike_workers_exchange_their_models() -> None:
    """The fast one has the model of little demand. Alike workers gain nothing."""
    fast, slow = [1.0, 1.0], [8.0, 8.0]
    for holds, expected in (((fast, slow), [1, 0]), ((fast, fast), None)):
        workers = [
            StartingWorker(model, -100.0, 10, 0.0, HOLD_S, 0.0, 0.0, [5.0 * (model != each) for each in (0, 1)], hold_s)
            for model, hold_s in enumerate(holds)
        ]
        made = rules(Start(workers, [], 2, 2, 60.0, [0.1, 1.5], [5.0, 5.0]), [0, 1])
        exchanges = [each.first for each in made if each.name.startswith("exchange")]
        assert exchanges == ([expected] if expected else [])


def test_a_model_with_demand_keeps_its_last_worker_where_another_has_two() -> None:
    """Nothing waits for model 2 now, and requests come. Of model 0, which is served too, there are two workers."""
    swaps = [[5.0 * (model != loaded) for model in range(3)] for loaded in range(3)]
    workers = [
        StartingWorker(loaded, -100.0, 10, running, HOLD_S, 0.0, 0.0, swaps[loaded], [HOLD_S] * 3)
        for loaded, running in ((0, 5.0), (0, 5.0), (1, 10.0), (2, 1.0))
    ]
    parcels = [parcel(1, 60.0, 20.0)]
    slack = Rule("slack", "slack", [-1] * 4)
    for demand, models in ((0.1, (1, 0, 1, 2)), (0.0, (0, 0, 1, 1))):
        outcome = Play(Start(workers, parcels, 3, 2, 60.0, [1.0, 2.0, demand], [5.0] * 3)).run(slack.decide)
        assert outcome.models == models


def test_a_rule_that_is_given_up_could_not_be_chosen() -> None:
    """In random fleets: every rule that costs at most the margin more than the best is played to its end."""
    random = Random(1)
    given_up = 0
    for _ in range(60):
        models = random.randint(2, 4)
        workers = [
            StartingWorker(
                loaded, -100.0, 10, random.uniform(0, 10), HOLD_S, 0.0, random.choice([0.0, 5.0]),
                [5.0 * (model != loaded) for model in range(models)], [random.choice([5.0, HOLD_S])] * models,
            )
            for loaded in (random.randrange(models) for _ in range(random.randint(1, 3)))
        ]  # fmt: skip
        parcels = [
            parcel(random.randrange(models), random.randint(1, 60), random.uniform(0, 40), random.randrange(2))
            for _ in range(6)
        ]
        given = Start(workers, parcels, models, 2, 60.0, [1.0] * models, [5.0] * models)
        made = rules(given, [each.loaded for each in workers])
        costs = {rule.name: cost(Play(given).run(rule.decide), given) for rule in made}
        played = play_rules(given, made, 0.0)
        given_up += len(made) - len(played)
        assert {name for name, each in costs.items() if each <= min(costs.values()) + SWAP_MARGIN} <= played.keys()
        assert all(cost(outcome, given) == costs[name] for name, outcome in played.items())
    assert given_up > 20


def test_work_that_is_in_time_is_played_forward_if_its_swap_takes_longer() -> None:
    """A long swap for one request keeps the worker from the requests that come: t has 3 a second for the loaded model,
    which are due in 5 s. Work of a minute is worth the swap, if another worker keeps that model."""
    coming = {"a": Expected(1.0, 500.0, 5.0)}
    alone = [replace(worker(swap_s=20.0, slots=32), last_swap_s=0.0)]
    both = [*alone, replace(worker("v", swap_s=20.0, slots=32), last_swap_s=0.0)]
    for fleet, seconds, is_played in ((alone, 0.1, True), (alone, 60.0, True), (both, 60.0, False)):
        rare = backlog(group("b", 1_000.0, seconds, 5), tenant="rare")
        plan = make_plan([TenantBacklog("t", Share(), [], {"a": 60 * 500.0}, coming), rare], fleet, NOW)
        assert bool(plan.rule) is is_played
        assert "a" in plan.models.values()


def test_a_request_that_starts_at_once_keeps_no_worker_from_its_swap() -> None:
    """The last swap was two seconds ago, so a worker with waiting work rests. One request for its model has come, and
    slots are free for it. With as many requests as slots some wait."""
    fleet = [replace(worker(loaded_at=NOW - 2.0, slots=8), last_swap_s=2.0)]
    coming = {"a": Expected(0.01, 500.0, 60.0), "b": Expected(1.0, 500.0, 5.0)}
    for requests, model in ((1, "b"), (9, "a")):
        groups = [group("a", 60.0, 0.1, requests), group("b", 2.0, 1.0, 8)]
        backlogs = [TenantBacklog("t", Share(), groups, {"b": 60 * 500.0}, coming)]
        assert make_plan(backlogs, fleet, NOW).models == {"w": model}


def test_a_rule_may_serve_one_missing_model_and_leave_the_others() -> None:
    """Model 2 is due first, and half of the horizon away. Requests for model 1 can be in time, if model 2 is left."""
    swaps = [0.0, 2.0, 30.0]
    one = StartingWorker(0, -100.0, 10, 0.0, HOLD_S, 0.0, 0.0, swaps, [HOLD_S] * 3)
    parcels = [parcel(2, 1.0, 10.0, tenant=1), parcel(1, 10.0, 20.0, tenant=1)]
    parcels += [parcel(0, 5.0, second + 20.0, release_s=float(second)) for second in range(0, 60, 10)]
    given = Start([one], parcels, 3, 2, 60.0, [0.5, 0.2, 0.1], swaps)
    made = rules(given, [0])
    played = play_rules(given, made, 0.0)
    best = min(played, key=lambda name: cost(played[name], given))
    assert {"slack only 1", "slack only 2"} <= {rule.name for rule in made}
    assert best.endswith("only 1")
    assert played[best].models == (1,)
    assert "only" not in " ".join(rule.name for rule in rules(replace(given, parcels=parcels[1:]), [0]))


def test_without_expected_arrivals_nothing_is_played() -> None:
    assert make_plan([backlog(group("b"))], [worker()], NOW).rule == ""


def test_a_rate_is_right_before_the_time_constant_has_passed() -> None:
    forecast = ArrivalForecast()
    for second in range(20):
        forecast.record("t", 3.0, NOW + second, 20.0)
    expected = forecast.arrivals("t", NOW + 20)
    assert expected is not None
    assert 0.9 <= expected.requests_per_s <= 1.1
    assert (round(expected.service, 6), round(expected.due_s, 6)) == (3.0, 20.0)
    assert forecast.arrivals("absent", NOW) is None
