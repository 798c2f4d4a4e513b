"""The shard orders workers to load models that calls wait for, without any plan."""

from __future__ import annotations

from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.model.commands import Attempts, End, Offer, Plan, Tick
from dispatcher.model.facts import Dispatched, ModelOrdered, WorkerSet
from dispatcher.model.fleet import WorkerPlan
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.policies.planning.fleet import DRAIN_S, PATIENCE_S, RESIDENCY_S, SWAPS_SAVED_S
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.snapshot import dump, load
from dispatcher.shard.state.records import ORDER_MARGIN_S, SLOW_SWAPS
from dispatcher.shard.swapping import DRAIN_MIN_S
from tests.support.world.lone_shard import HEARTBEAT_S, T0, LoneShard, SwappingWorker, heartbeats, swap_report

SWAPS = {"a": 3.0, "b": 3.0, "c": 3.0}
RESIDENT_S = 15.0
"""Later than any residency of an idle worker here, and than the patience with a plan."""
ORDER_S = DRAIN_S + SLOW_SWAPS * 3.0 + ORDER_MARGIN_S


def ordered(shard: LoneShard) -> list[tuple[str, str]]:
    return [(fact.worker, fact.model) for fact in shard.facts if isinstance(fact, ModelOrdered)]


def loaded(shard: LoneShard, now: float, model: str = "a", *, draining: bool = False) -> str:
    """Send a heartbeat of worker w. Return the model that it should load."""
    answer = shard.do(swap_report("w", model, SWAPS, draining=draining), now)
    assert isinstance(answer, Attempts)
    return answer.load


def waiting_for_b() -> tuple[LoneShard, str]:
    shard = LoneShard(None, swap_report("w", "a", SWAPS))
    return shard, shard.call(model="b")


def test_a_waiting_call_gets_its_model() -> None:
    shard, name = waiting_for_b()
    assert loaded(shard, T0 + PATIENCE_S - 0.1) == ""
    assert loaded(shard, T0 + PATIENCE_S) == "b"
    assert ordered(shard) == [("w", "b")]
    assert loaded(shard, T0 + 16) == "b"
    assert shard.facts == ()
    assert loaded(shard, T0 + 17, draining=True) == "b"
    assert loaded(shard, T0 + 20, "b") == ""
    assert isinstance(shard.status(name), Offer)


def test_a_worker_pays_for_a_swap_from_its_order_to_the_report_of_the_model() -> None:
    """A snapshot has it. A swap that was withdrawn costs nothing."""
    shard, _ = waiting_for_b()
    assert loaded(shard, T0 + PATIENCE_S) == "b"
    assert shard.shard.state.workers["w"].paid_until == 0.0
    loaded(shard, T0 + PATIENCE_S + 5.0, "b")
    paid = T0 + PATIENCE_S + 10.0
    assert shard.shard.state.workers["w"].paid_until == paid
    assert load(dump(shard.shard), shard.shard.state.settings).state.workers["w"].paid_until == paid
    shard.call(model="c")
    late = T0 + 100.0
    assert [loaded(shard, at, "b") for at in (late, late + ORDER_S)] == ["c", ""]
    assert shard.shard.state.workers["w"].paid_until == paid


def test_a_plan_swaps_no_worker_that_a_model_needs_which_waits_beyond_the_bound() -> None:
    """The worker has just loaded what an earlier plan wanted. It keeps that for its residency, and then b is next."""
    shard, _ = waiting_for_b()
    shard.do(Plan(T0 + 1, (WorkerPlan("w", "c", ()),), ()), T0 + 1)
    assert loaded(shard, T0 + 1) == "c"
    reported = T0 + 60
    assert loaded(shard, reported, "c") == ""
    shard.do(Plan(reported, (WorkerPlan("w", "a", ()),), ()), reported)
    assert [loaded(shard, reported + after, "c") for after in (0.5, 2.9, 3.0)] == ["", "", "b"]


def test_an_ordered_worker_gets_no_new_calls() -> None:
    shard, name = waiting_for_b()
    running = shard.call(model="a")
    loaded(shard, T0 + RESIDENT_S)
    late = shard.call(model="a")
    shard.end(running)
    assert not [fact for fact in shard.facts if isinstance(fact, Dispatched)]
    loaded(shard, T0 + 20, "b")
    assert shard.worker_of(name) == "w"
    assert not shard.worker_of(late)


def test_an_order_that_is_not_carried_out_is_withdrawn() -> None:
    shard, _ = waiting_for_b()
    late = shard.call(model="a")
    shard.end(late)
    assert loaded(shard, T0 + RESIDENT_S) == "b"
    late = shard.call(model="a")
    due = T0 + RESIDENT_S + ORDER_S
    assert shard.shard.next_tick() == due
    shard.do(Tick(), due)
    assert ordered(shard) == [("w", "")]
    assert shard.worker_of(late) == "w"
    assert loaded(shard, due + 1) == ""
    assert loaded(shard, due + RESIDENT_S) == "b"


def test_another_worker_gets_the_order_that_one_did_not_carry_out() -> None:
    lame, other = SwappingWorker("lame", "a", SWAPS, obeys=False), SwappingWorker("other", "x", {**SWAPS, "x": 3.0})
    shard = LoneShard(None, swap_report("lame", "a", SWAPS), swap_report("other", "x", other.swap_s))
    busy = shard.call(model="x")
    name = shard.call(model="b")
    for seconds in range(int(ORDER_S + RESIDENT_S) + 10):
        heartbeats(shard, [lame, other], T0 + seconds)
    assert other.model == "b"
    shard.end(busy)
    assert shard.worker_of(name) == "other"


def test_batch_causes_no_swap_while_it_has_slack() -> None:
    shard = LoneShard(ShardSettings(slack=Slack()), swap_report("w", "a", SWAPS))
    shard.call(model="b", slo_class="batch", due_at=T0 + 3600.0, deferred=True)
    assert loaded(shard, T0 + 60) == ""
    urgent_at = T0 + 3600 - DRAIN_S - 3.0
    assert loaded(shard, urgent_at - 1) == ""
    assert loaded(shard, urgent_at + 1) == "b"


def test_a_fleet_of_one_model_gets_no_orders() -> None:
    shard = LoneShard()
    shard.call()
    shard.call()
    shard.do(Tick(), T0 + 1000)
    assert not ordered(shard)
    assert not shard.shard.state.slots.can_swap


def test_an_order_ends_if_the_worker_can_no_longer_load_the_model() -> None:
    shard, _ = waiting_for_b()
    loaded(shard, T0 + RESIDENT_S)
    shard.do(swap_report("w", "a", {"a": 3.0}), T0 + 20)
    assert [type(fact) for fact in shard.facts] == [WorkerSet]
    assert shard.shard.state.workers["w"].free == 1


names = st.sampled_from("abcdef")


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 3),
    swap_s=st.sampled_from([0.0, 1.0, 3.0, 8.0]),
    drain_s=st.sampled_from([0.0, 2.0, 30.0]),
    calls=st.lists(st.tuples(st.integers(0, 60), names), min_size=1, max_size=30),
    plans=st.lists(st.tuples(names, names, names), max_size=20),
)
def test_each_model_is_loaded_within_the_bound(
    count: int, swap_s: float, drain_s: float, calls: list[tuple[int, str]], plans: list[tuple[str, str, str]]
) -> None:
    """ceil(models / workers) x (residency + drain + swap) (fleet.py). And at most half of the time is swaps, and with
    plans half of what was saved up.

    Whatever the plan says: `plans` are the models of the workers, a new plan each second, again and again. The swap
    that a plan has begun when a model becomes missing adds one turn. With a plan the bound counts DRAIN_S for a drain.
    The workers run nothing here, so the shard expects drains of DRAIN_MIN_S: a turn adds what its drain takes longer.
    """
    swaps = dict.fromkeys("abcdef", swap_s)
    workers = [SwappingWorker(f"w{number}", "a", swaps, drain_s) for number in range(count)]
    shard = LoneShard(None, *(swap_report(worker.name, "a", swaps) for worker in workers))
    residency_s = max(RESIDENCY_S, swap_s)
    turn_s = residency_s + drain_s + swap_s + 2 * HEARTBEAT_S
    models = {model for _, model in calls} | {"a"}
    rounds = ceil(len(models) / count)
    bound_s = rounds * turn_s
    if plans:
        bound_s = (rounds + 1) * (turn_s - drain_s + DRAIN_S) + rounds * max(0.0, drain_s - DRAIN_MIN_S)
    missing_since: dict[str, float] = {}
    for seconds in range(int(60 + bound_s + len(models) * turn_s)):
        now = T0 + seconds
        for at, model in calls:
            if at == seconds:
                shard.do(Tick(), now)
                shard.call(model=model)
        if plans:
            models_now = plans[seconds % len(plans)]
            planned = (WorkerPlan(worker.name, model, ()) for worker, model in zip(workers, models_now, strict=False))
            shard.do(Plan(now, tuple(planned), ()), now)
        heartbeats(shard, workers, now)
        state = shard.shard.state
        for call in [call for call in state.calls.values() if call.worker]:
            shard.do(End(call.id, call.attempt, "done", 1, 1), now)
        has = {worker.model for worker in workers if not worker.loading}
        missing_since = {model: missing_since.get(model, now) for model in state.waiting_models if model not in has}
        for model, since in missing_since.items():
            assert now - since <= bound_s, (model, now - since)
    assert not shard.shard.state.waiting_models
    for worker in workers:
        assert worker.swapping_s <= (now - T0 + (SWAPS_SAVED_S if plans else 0.0)) / 2 + swap_s
