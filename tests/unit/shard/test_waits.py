"""The waiting times that a shard announces, and the refusals that depend on them."""

from __future__ import annotations

import pytest

from dispatcher.model.commands import Cancel, End, Outcome, Tick, Waiting
from dispatcher.model.facts import Entry, Fact
from dispatcher.model.fleet import LoadableModel
from dispatcher.policies.planning.wait_ratios import Quantiles
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.state.state import State
from dispatcher.shard.waits import estimate as waits
from dispatcher.shard.waits import loads
from dispatcher.shard.waits.estimate import expected_wait
from dispatcher.shard.waits.learned import Pace, Phase
from dispatcher.shard.waits.record import COSTS_MAX, WaitRecord
from tests.support.world.lone_shard import LoneShard, report, swap_report

COST = 700.0
EACH_S = 1.0
TOKENS = 10
"""A call takes a second and 10 units of service: the capacity is 10 a second."""


def busy(shard: LoneShard, calls: int = 60, tenant: str = "a") -> None:
    """Let a tenant's calls run one after the other for so many seconds, with two or three that wait."""
    names = [shard.call(tenant) for _ in range(3)]
    for _ in range(calls):
        names.append(shard.call(tenant))
        shard.now += EACH_S
        shard.end(names.pop(0), TOKENS)
    for name in names:
        shard.now += EACH_S
        shard.end(name, TOKENS)
    shard.now += EACH_S


def waiting(outcome: Outcome) -> Waiting:
    assert isinstance(outcome, Waiting)
    return outcome


def wait_s(outcome: Outcome) -> float:
    found = waiting(outcome).wait_s
    assert found is not None
    return found


def p90_s(outcome: Outcome) -> float:
    found = waiting(outcome).wait_p90_s
    assert found is not None
    return found


def test_a_prior_is_announced_before_anything_is_measured() -> None:
    shard = LoneShard()
    shard.call()
    outcomes = [waiting(shard.accept(cost=COST)[1]) for _ in range(2)]
    assert [outcome.position for outcome in outcomes] == [1, 2]
    assert 0 < wait_s(outcomes[0]) < wait_s(outcomes[1]) < p90_s(outcomes[1])


def test_the_nth_in_the_queue_waits_for_n_ends() -> None:
    shard = LoneShard()
    busy(shard)
    shard.call()
    for position in range(1, 20):
        outcome = shard.accept()[1]
        assert wait_s(outcome) == pytest.approx(position * EACH_S, rel=0.05)
        assert p90_s(outcome) >= 1.05 * wait_s(outcome)


def test_the_wait_follows_the_true_costs_and_not_the_estimates() -> None:
    shard = LoneShard()
    busy(shard)
    shard.call()
    assert wait_s(shard.accept(cost=1_000_000.0)[1]) == pytest.approx(EACH_S, rel=0.05)


def test_a_tenant_gets_half_while_another_waits() -> None:
    shard = LoneShard()
    busy(shard)
    for _ in range(50):
        shard.call("a")
    shard.now += 0.3
    for position in range(1, 10):
        assert wait_s(shard.accept("b")[1]) == pytest.approx(2 * position * EACH_S - 0.3, rel=0.1)


def test_a_short_queue_of_another_tenant_ends() -> None:
    shard = LoneShard()
    busy(shard)
    shard.now += 1_000.0
    for _ in range(3):
        shard.call("a")
    shard.now += 0.3
    last = [shard.accept("b")[1] for _ in range(30)][-1]
    assert wait_s(last) == pytest.approx(32 * EACH_S, rel=0.25), "not 60: the other tenant has 2 calls"


def test_a_guarantee_is_kept_at_its_rate() -> None:
    shard = LoneShard()
    busy(shard)
    for _ in range(50):
        shard.call("a", weight=100.0, version=2)
    shard.now += 0.3
    assert wait_s(shard.accept("b", rate_per_s=5.0, burst=10.0)[1]) == pytest.approx(2 * EACH_S, rel=0.1)


def test_a_model_that_has_to_be_loaded_is_waited_for() -> None:
    both = tuple(LoadableModel(name, 4.0, 0, 1.0, 10.0) for name in ("m", "n"))
    shard = LoneShard(None, report()._replace(models=both))
    busy(shard)
    state = shard.shard.state
    shard.now += 100.0
    shard.call("a", model="m")
    found = expected_wait(state, state.tenants["a"], "n", 1)
    assert found.phase is Phase.MISSING
    drain_s = state.waits.expected_drain_s(next(iter(state.workers.values())))
    assert drain_s == pytest.approx(EACH_S / 2, rel=0.01), "the rest of the one call that runs"
    soonest_s = loads.DECIDED_S + drain_s + 4.0 + state.settings.heartbeat_s
    assert found.p10_s < soonest_s <= found.p50_s < 1.5 * soonest_s, "decision, drain, swap and heartbeats"


def test_an_order_to_load_is_followed_to_its_end() -> None:
    both = tuple(LoadableModel(name, 4.0 if name == "n" else 0.0, 0, 1.0, 10.0) for name in ("m", "n"))
    shard = LoneShard(None, report()._replace(models=both))
    shard.now += 100.0
    shard.call("a", model="n")
    state = shard.shard.state
    worker = next(iter(state.workers.values()))
    for _ in range(20):
        shard.do(Tick())
        shard.now += 0.5
        if worker.load:
            break
    assert worker.load == "n", "the only worker is ordered to load it"
    shard.do(Tick())
    before = expected_wait(state, state.tenants["a"], "n", 1)
    assert before.phase is Phase.ORDERED
    assert before.predicted_s == pytest.approx(4.0 + state.settings.heartbeat_s, abs=0.6), "nothing drains"
    shard.now += 2.0
    shard.call("a", model="n")
    assert expected_wait(state, state.tenants["a"], "n", 1).predicted_s == pytest.approx(
        before.predicted_s - 2.0, abs=0.6
    )


def test_a_worker_that_swaps_late_is_learned() -> None:
    """It says 4 s, and has the model 3 s later."""
    both = tuple(LoadableModel(name, 4.0, 0, 1.0, 10.0) for name in ("m", "n"))
    shard = LoneShard(None, report()._replace(models=both))
    state = shard.shard.state
    for model in ("n", "m", "n"):
        shard.now += 100.0
        shard.call("a", model=model)
        while not (worker := next(iter(state.workers.values()))).load:
            shard.now += 0.5
            shard.do(Tick())
        before = expected_wait(state, state.tenants["a"], model, 1)
        shard.now += 7.0
        shard.do(report(model=model)._replace(models=both))
        for call in [call for call in state.calls.values() if call.worker]:
            shard.end(call.id, TOKENS)
    assert before.phase is Phase.ORDERED
    assert before.predicted_s == pytest.approx(4.0 + 3.0, rel=0.15), "the prior is one of three loads"
    assert before.p90_s >= 4.0 + 3.0
    assert not worker.load


def test_a_missing_model_is_expected_when_a_plan_may_load_it() -> None:
    """A worker that has just swapped may swap again if nothing waits for its model, and else after a batch."""
    both = tuple(LoadableModel(name, 4.0, 0, 1.0, 10.0) for name in ("m", "n"))
    shard = LoneShard(None, report()._replace(models=both))
    shard.now += 100.0
    first = shard.call("a", model="n")
    while not (worker := next(iter(shard.shard.state.workers.values()))).load:
        shard.now += 0.5
        shard.do(Tick())
    shard.now += 4.0
    shard.do(report(model="n")._replace(models=both))
    shard.end(first, TOKENS)
    state = shard.shard.state
    idle_s = loads._turn_in_s(state, worker, "m")
    for _ in range(3):
        shard.call("a", model="n")
    drain_s = state.waits.expected_drain_s(worker)
    assert idle_s == pytest.approx(loads.DECIDED_S + loads._swap_s(state, worker, "m"), abs=0.01)
    assert loads._turn_in_s(state, worker, "m") == pytest.approx(idle_s - loads.DECIDED_S + 4.0 + drain_s, abs=0.01)


def test_levels_move_what_is_announced_and_a_new_tenant_begins_with_those_of_the_model() -> None:
    shard = backlog()
    state = shard.shard.state
    before = expected_wait(state, state.tenants["a"], "m", 30)
    known, costs = state.waits.models["m"], state.waits.costs["a", "m"]
    for each in (known, costs):
        each.coverage[before.phase].p50.at = each.coverage[before.phase].p90.at = 0.0
    level = expected_wait(state, state.tenants["a"], "m", 30)
    costs.coverage[before.phase].p50.at = costs.coverage[before.phase].p90.at = 1.0
    moved = expected_wait(state, state.tenants["a"], "m", 30)
    assert level.p50_s < moved.p50_s
    assert level.p90_s < moved.p90_s
    assert level.predicted_s == moved.predicted_s
    known.coverage[before.phase].p90.at = 0.5
    for _ in range(30):
        shard.now += 0.1
        shard.call("b")
    assert state.waits.costs["b", "m"].coverage[before.phase].p90.at == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("phase", list(Phase))
def test_while_a_model_is_missing_or_loaded_all_models_have_the_same_levels(phase: Phase) -> None:
    record, shard = WaitRecord(), backlog()
    call = next(call for call in shard.shard.state.calls.values() if call.queued)
    record.follow(call, phase, 10.0, Quantiles(5.0, 10.0, 20.0), 0.0)
    estimate = Quantiles(5.0, 10.0, 20.0)
    own, other = (record.cover(None, model, phase, estimate, 30.0) for model in (call.model, "other"))
    assert own.p50 > estimate.p50
    assert other == (own if phase in (Phase.ORDERED, Phase.MISSING) else estimate)


def test_the_first_ends_after_a_load_do_not_change_the_pace_much() -> None:
    pace = Pace(served=400.0, slot_s=1.0, ends=4.0)
    assert pace.slot_per_s(50.0, 100) == pytest.approx(50.0, rel=0.05)
    assert pace.slot_per_s(50.0) > 100.0
    assert Pace(served=40_000.0, slot_s=100.0, ends=400.0).slot_per_s(50.0, 100) == pytest.approx(400.0, rel=0.05)


def test_a_short_first_end_of_a_full_batch_makes_the_next_waits_hardly_shorter() -> None:
    shard = LoneShard(None, report(slots=20))
    first = [shard.call() for _ in range(20)]
    second = [shard.call() for _ in range(40)]
    shard.now += 20 * EACH_S
    for name in first:
        shard.end(name, TOKENS)
    shard.now += 0.05
    state = shard.shard.state
    before = expected_wait(state, state.tenants["a"], "m", 100)
    shard.end(second[0], TOKENS)
    after = expected_wait(state, state.tenants["a"], "m", 100)
    assert after.predicted_s > 0.9 * before.predicted_s


def test_before_any_end_the_mean_of_the_waiting_calls_is_the_cost() -> None:
    shard = LoneShard()
    shard.call()
    waits_s = [wait_s(shard.accept(cost=cost)[1]) for cost in (10.0, 190.0, 100.0, 100.0)]
    assert waits_s[-1] == pytest.approx(4 * 100.0 / TOKENS), "100 each, and 10 a second"


@pytest.mark.parametrize(("inputs", "least_s", "most_s"), [(80, 32.0, 40.0), (0, 10.0, 20.0), (100, 10.0, 20.0)])
def test_behind_a_first_batch_all_its_prompts_come_first(inputs: int, least_s: float, most_s: float) -> None:
    """Four slots at 10 units a second together: a call takes 40 s. Calls without output end one by one."""
    shard = LoneShard(None, report(slots=4))
    for _ in range(5):
        shard.call(cost=100.0, input_tokens=inputs)
    state = shard.shard.state
    first_s = expected_wait(state, state.tenants["a"], "m", 1).predicted_s
    assert least_s <= first_s <= most_s
    shard.now += 20.0
    shard.call(cost=100.0, input_tokens=inputs)
    later_s = expected_wait(state, state.tenants["a"], "m", 1).predicted_s
    if inputs == 80:
        assert later_s == pytest.approx(first_s - 20.0), "nothing ends before 32 s"
    else:
        assert later_s > first_s - 15.0


def test_a_wait_for_more_ends_is_no_shorter_where_the_phase_changes() -> None:
    """The running calls began together, so the first ends come late, and a wait for few ends is not a short one."""
    shard = LoneShard(None, report(slots=4))
    for _ in range(5):
        shard.call(cost=100.0, input_tokens=60)
    state = shard.shard.state
    found = [expected_wait(state, state.tenants["a"], "m", position) for position in range(1, 12)]
    assert {wait.phase for wait in found} == {Phase.NEAR, Phase.FAR}
    assert [wait.p90_s for wait in found] == sorted(wait.p90_s for wait in found)


def test_the_part_of_prompts_is_that_of_the_calls_that_ended() -> None:
    """The estimates say nothing of prompts. Until as many calls have ended as run, they hold."""
    shard = LoneShard(None, report(slots=10))
    running = [shard.call(cost=100.0) for _ in range(10)]
    waiting_calls = [shard.call(cost=100.0) for _ in range(20)]
    state, found = shard.shard.state, list[float]()
    for name in running:
        shard.now += EACH_S
        found.append(waits._batch(state, state.tenants["a"], ("m", False), 10, 10.0, is_loaded=True).prompts)
        shard.finish(name, 80, 10)
    assert found == [0.0] * 10
    batch = waits._batch(state, state.tenants["a"], ("m", False), 10, 10.0, is_loaded=True)
    assert batch.prompts == pytest.approx(0.8)
    assert batch.variation == pytest.approx(0.0)
    for name in waiting_calls[:10]:
        shard.now += EACH_S
        shard.finish(name, 80, 30)
    batch = waits._batch(state, state.tenants["a"], ("m", False), 10, 10.0, is_loaded=True)
    assert batch.prompts == pytest.approx(80 / (80 + 2 * 20))
    assert batch.variation == pytest.approx(0.5)


def two_models_wait() -> LoneShard:
    """Return two workers with a model each that have served half a minute, and two calls that wait for each model."""
    shard = LoneShard(None, *(swap_report(*each, {"m": 4.0, "n": 4.0}) for each in (("w", "m"), ("x", "n"))))
    names = {model: [shard.call("a", model=model) for _ in range(3)] for model in ("m", "n")}
    for _ in range(30):
        shard.now += EACH_S
        for model, waiting_names in names.items():
            shard.end(waiting_names.pop(0), TOKENS)
            waiting_names.append(shard.call("a", model=model))
    return shard


@pytest.mark.parametrize("of_others", [0, 20])
def test_no_wait_is_longer_than_the_fleet_takes_for_all(of_others: int) -> None:
    """One of two workers has the model. The other one turns to it once nothing waits for its own."""
    shard = two_models_wait()
    for _ in range(of_others):
        shard.now += 0.01
        shard.call("b", model="n")
    shard.now += 0.3
    shard.call("a", model="n")
    state, positions = shard.shard.state, (1, 2, 3, 10, 100)
    waits_s = [expected_wait(state, state.tenants["a"], "m", position).predicted_s for position in positions]
    assert waits_s == sorted(waits_s)
    assert 0 < waits_s[0] <= EACH_S
    assert (100 + of_others) / 2 <= waits_s[-1] <= (100 + of_others) / 2 + 4.0 + 20.0, "a swap, and what is forecast"
    assert waits_s[-1] < 80.0


def test_what_waits_for_other_models_is_served_before() -> None:
    """Each call of the other model takes half a second of two workers that can load both."""
    shard = two_models_wait()
    state, found = shard.shard.state, list[float]()
    for others in (0, 40):
        for _ in range(others):
            shard.call("b", model="n")
        shard.now += 0.3
        shard.call("a", model="n")
        waits._present_backlogs(state)
        found.append(waits._all_served_s(state, "m", 10.0))
    few_s, many_s = found
    assert few_s == pytest.approx(4.0 + 10.0 / 2 + 3 / 2, rel=0.1), "a swap, ten seconds of the model, and three calls"
    assert many_s - few_s == pytest.approx(40 / 2, rel=0.1)


def test_what_is_forecast_for_other_models_is_served_before() -> None:
    shard = two_models_wait()
    state = shard.shard.state
    waits._present_backlogs(state)
    others = waits._fleet_works(state)["m"]
    assert others.later_s > others.now_s + 10.0
    served_s = 10.0 / 2 + others.now_s
    assert waits._all_served_s(state, "n", 10.0) > 4.0 + 1.1 * served_s


def test_a_full_queue_says_when_a_place_is_free() -> None:
    shard = LoneShard()
    busy(shard)
    for _ in range(41):
        shard.call(waiting_max=40, version=2)
    shard.now += 0.3
    refused = shard.refused(waiting_max=40, version=2)
    assert (refused.code, refused.retry_after_s) == ("queue_full", 1.0), "the P90 of the first in the queue"
    assert "Try again in about 1 s." in refused.message


def test_a_retry_after_is_bounded() -> None:
    shard = LoneShard()
    busy(shard)
    pace = shard.shard.state.waits.models["m"].pace
    pace.served /= 1e6
    shard.call()
    shard.call(waiting_max=1, version=2)
    shard.shard.state.waits.costs["a", "m"].mean = 1e9
    refused = shard.refused(waiting_max=1, version=2)
    assert refused.retry_after_s == 900.0


def backlog(settings: ShardSettings | None = None) -> LoneShard:
    """A shard with 50 seconds of work before the next call."""
    shard = LoneShard(settings)
    busy(shard)
    for _ in range(50):
        shard.call()
        shard.now += 0.02
    shard.now += 0.3
    return shard


def test_a_deadline_out_of_reach_is_refused_with_the_wait() -> None:
    shard = backlog()
    refused = shard.refused(wait_s=20.0)
    assert (refused.code, shard.facts) == ("deadline_out_of_reach", ())
    assert "would wait about 49" in refused.message
    assert "deadline is in 20 s" in refused.message
    assert 25.0 <= refused.retry_after_s <= 35.0


@pytest.mark.parametrize("deadline_s", [49.0, 60.0])
def test_a_deadline_that_one_wait_in_ten_reaches_is_accepted(deadline_s: float) -> None:
    assert isinstance(backlog().accept(wait_s=deadline_s)[1], Waiting)


def test_predictions_from_the_prior_pace_are_not_compared() -> None:
    shard = LoneShard()
    for _ in range(30):
        shard.call()
        shard.now += 0.1
    assert not shard.shard.state.waits.followed
    assert backlog().shard.state.waits.followed


def test_a_gate_may_refuse_no_deadline() -> None:
    assert isinstance(backlog(ShardSettings(refuses_late=False)).accept(wait_s=1.0)[1], Waiting)


def test_a_deadline_is_not_refused_without_observed_waits() -> None:
    shard = LoneShard()
    shard.shard.state.waits.model("m").pace = Pace(1_000.0, 1_000.0, 1_000.0, 1_000.0)
    for _ in range(50):
        shard.call()
    assert isinstance(shard.accept(wait_s=1.0)[1], Waiting)


def test_a_free_slot_is_given_in_spite_of_a_slow_past() -> None:
    shard = LoneShard()
    busy(shard)
    shard.call("a", wait_s=0.1)
    assert shard.facts


def test_the_sums_are_made_once_for_an_entry_with_many_announced_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = backlog()
    made, sum_changed = list[int](), waits.sum_changed

    def count(state: State, *, most: int = 0) -> None:
        made.append(state.position)
        sum_changed(state, most=most)

    monkeypatch.setattr(waits, "sum_changed", count)
    for _ in range(2):
        names = [f"q-{number}" for number in range(20 * len(made), 20 * len(made) + 20)]
        accepts = [shard.new_call(f"t{name}", 1.0, id=name, process="q", floor=0, deadline_at=2e9) for name in names]
        assert all(wait_s(outcome) > 0 for outcome in shard.decide(*accepts).outcomes)
    assert made == [shard.shard.position - 2, shard.shard.position - 1]


def test_a_decision_that_is_rolled_back_leaves_no_trace() -> None:
    shard = backlog()
    record = shard.shard.state.waits
    pace = record.models["m"].pace
    before = (pace.served, pace.ends, pace.saturated_s, len(record.followed), record.costs["a", "m"].ends)
    running = next(call for call in shard.shard.state.calls.values() if call.worker)
    shard.shard.decide([End(running.id, running.attempt, "done", 999, 0)], shard.now + 9.0)
    shard.shard.rollback()
    shard.shard.fold(Entry(shard.shard.position, shard.shard.at, "other", "", 0, ()))
    assert before == (pace.served, pace.ends, pace.saturated_s, len(record.followed), record.costs["a", "m"].ends)


def test_a_process_that_folds_the_log_announces_the_same() -> None:
    shard, heir = LoneShard(), Shard()
    confirm = shard.shard.confirm

    def both(entry: Entry | None = None) -> object:
        news = confirm(entry)
        if entry is not None:
            heir.fold(entry)
        return news

    heir.fold(Entry(0, shard.shard.at, "test", "", 0, _first_facts()))
    shard.shard.confirm = both  # type: ignore[method-assign, assignment]
    busy(shard)
    shard.call()
    _, outcome = shard.accept()
    found = expected_wait(heir.state, heir.state.tenants["a"], "m", 1)
    assert found.p50_s == pytest.approx(wait_s(outcome), rel=0.01)
    levels = [
        {phase: (each.p50.at, each.p90.at) for phase, each in record.costs["a", "m"].coverage.items()}
        for record in (shard.shard.state.waits, heir.state.waits)
    ]
    assert levels[0] == levels[1]
    assert any(p90 for _, p90 in levels[0].values()), "the heir has the levels, and they have moved"


def _first_facts() -> tuple[Fact, ...]:
    shard = Shard()
    _, facts = shard.decide([report()], 1_000_000.0)
    return facts


def test_the_record_of_many_tenants_is_bounded() -> None:
    shard = LoneShard()
    busy(shard)
    names: list[str] = []
    for number in range(COSTS_MAX + 50):
        shard.now += 0.01
        names.append(shard.call(f"t{number}"))
        if len(names) > 3:
            shard.end(names.pop(0))
    record: WaitRecord = shard.shard.state.waits
    assert len(record.costs) == COSTS_MAX


def test_a_forecast_ends_with_its_arrivals_and_with_its_costs() -> None:
    shard = LoneShard()
    busy(shard)
    record: WaitRecord = shard.shard.state.waits
    names: list[str] = []
    for number in range(COSTS_MAX + 50):
        for _ in range(2):  # the first call gives the tenant its costs, the second one arrives with them
            shard.now += 0.01
            names.append(shard.call(f"t{number}"))
            shard.end(names.pop())
    forecasts = {(tenant, model) for tenant, models in record.forecast.items() for model in models}
    assert forecasts
    assert forecasts <= record.costs.keys(), "of costs that were forgotten nothing is left"
    for _ in range(2 * COSTS_MAX):
        shard.now += 1.0
        shard.end(shard.call("last"))
    assert set(record.forecast) == {"last"}, "what faded is no forecast"


def test_a_dropped_call_is_no_observation() -> None:
    shard = backlog()
    record = shard.shard.state.waits
    ratios = record.models["m"].ratios.values()
    observed = sum(len(each.observed) for each in ratios)
    assert record.followed
    for call in [call for call in shard.shard.state.calls.values() if not call.worker]:
        shard.do(Cancel(call.id, "cancelled"))
    assert not record.followed
    assert sum(len(each.observed) for each in ratios) <= observed, "those that waited longer than predicted are gone"
