"""What the shard keeps of a fleet so that a command does not look at every worker."""

from __future__ import annotations

from collections import Counter
from random import Random
from statistics import fmean, stdev

import pytest

from dispatcher.model.commands import Leave, Retire, Tick
from dispatcher.model.facts import ModelOrdered
from dispatcher.policies.planning.fleet import FleetWorker
from dispatcher.shard import swapping
from dispatcher.shard.state.records import Worker
from dispatcher.shard.state.state import State
from dispatcher.shard.swapping import LOOK_FREE, LOOK_S
from tests.support.world.lone_shard import T0, LoneShard, SwappingWorker, heartbeats, swap_report

SWAPS = {"a": 3.0, "b": 3.0, "c": 3.0}
LARGE = 300


def held(state: State) -> Counter[str]:
    """Return what `HeldModels` must have, by a look at every worker."""
    workers = state.workers.values()
    return Counter(each.target for each in workers if each.load or each.config.state not in ("draining", "retiring"))


def ages(state: State, model: str) -> tuple[float, float]:
    found = [state.at - call.dispatched_at for call in state.calls.values() if call.worker and call.model == model]
    return fmean(found) if found else 0.0, stdev(found) if len(found) > 1 else 0.0


def test_the_indexes_have_what_a_look_at_every_worker_and_call_finds() -> None:
    random, shard = Random("fleet"), LoneShard(None, *(swap_report(name, "a", SWAPS, slots=3) for name in "wxy"))
    workers = [SwappingWorker(name, "a", SWAPS, slots=3) for name in "wxy"]
    state, seen = shard.shard.state, Counter[str]()
    for _ in range(400):
        shard.now += random.expovariate(4.0)
        kind = random.choice(["call", "call", "end", "heartbeats", "return", "retire", "leave"])
        running = [call.id for call in state.calls.values() if call.worker]
        if kind == "call":
            shard.call(random.choice("tu"), model=random.choice("abc"))
        elif kind == "end" and running:
            shard.end(random.choice(running))
        elif kind == "return" and running:
            shard.give_back(random.choice(running), "failed")
        elif kind == "retire":
            shard.do(Retire(random.choice("wxy"), random.random() < 0.7))
        elif kind == "leave" and random.random() < 0.1:
            shard.do(Leave(random.choice("wxy")))
        else:
            heartbeats(shard, workers, shard.now)
        assert state.held_models.counts == held(state)
        for model in SWAPS:
            assert state.running_ages.of(model, state.at) == pytest.approx(ages(state, model), abs=1e-4)
        seen.update(["held by two"] * (len(state.held_models.counts) > 1))
        seen.update(["loads"] * bool(state.waits.loads))
        loading = {worker.name for worker in state.workers.values() if worker.load}
        assert state.waits.loads.keys() == loading
    assert min(seen["held by two"], seen["loads"]) > 20, seen


def looks(monkeypatch: pytest.MonkeyPatch, workers: int) -> tuple[LoneShard, list[str]]:
    """Return a shard with so many workers of model a, and the workers that are looked at from now on."""
    shard = LoneShard(None, *(swap_report(f"w{number}", "a", SWAPS) for number in range(workers)))
    found, look = list[str](), swapping.fleet_worker

    def noted(worker: Worker, now: float) -> FleetWorker:
        found.append(worker.name)
        return look(worker, now)

    monkeypatch.setattr(swapping, "fleet_worker", noted)
    shard.now = T0 + 100.0
    return shard, found


def test_a_large_fleet_is_looked_at_seldom_while_a_model_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, looked = looks(monkeypatch, LARGE)
    shard.call(model="b")
    assert len(looked) >= LARGE, "at once, because a model is missing now"
    looked.clear()
    for _ in range(1000):
        shard.now += 0.0001
        shard.call(model="b")
    due = 0.1 / (LOOK_S * (LARGE - LOOK_FREE))
    assert len(looked) <= LARGE * (due + 1), "and not a thousand times"
    looked.clear()
    shard.call(model="c")
    assert len(looked) >= LARGE, "another model is missing"


def test_a_small_fleet_is_looked_at_with_every_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, looked = looks(monkeypatch, 3)
    for number in range(1, 10):
        shard.call(model="b")
        assert len(looked) >= 3 * number


def test_a_seldom_look_still_orders_what_is_missing() -> None:
    shard = LoneShard(None, *(swap_report(f"w{number}", "a", SWAPS) for number in range(LARGE)))
    shard.now = T0 + 100.0
    shard.call(model="b")
    orders = list[ModelOrdered]()
    for _ in range(600):
        shard.now += 0.01
        shard.do(Tick())
        orders += [fact for fact in shard.facts if isinstance(fact, ModelOrdered)]
    assert [fact.model for fact in orders] == ["b"]
