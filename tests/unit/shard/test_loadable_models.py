"""A worker that can load several models: what the log remembers of them."""

from __future__ import annotations

from math import inf, nan

import pytest

from dispatcher.model.commands import Attempts, Offer, Report, Waiting
from dispatcher.model.facts import Entry, WorkerSet
from dispatcher.model.fleet import LoadableModel
from dispatcher.model.formats import OLDEST
from dispatcher.policies.planning.fleet import ServiceRates
from dispatcher.shard.codec import decode_entry, encode_entry
from dispatcher.shard.proposals import plan_input
from dispatcher.shard.snapshot import dump, fields_of, load
from tests.support.world.lone_shard import T0, LoneShard, report

A = LoadableModel("a", 0.0, 4096, 4.0, 100.0, ("chat",))
B = LoadableModel("b", 3.0, 8192, 4.0, 0.0)


def swapping(model: str, b: LoadableModel = B, *, draining: bool = False) -> Report:
    return Report("w", "http://w", model, 2, 4096, 4.0, 100.0, draining, 0.0, 0, (), ("chat",), (A, b))


def test_the_log_says_since_when_a_worker_has_its_model() -> None:
    shard = LoneShard(None, swapping("a"))
    assert shard.do(swapping("a"), T0 + 5) == Attempts("w", 1, ())
    shard.do(swapping("a", draining=True), T0 + 7)
    assert shard.shard.fleet()[0].loaded_at == T0
    shard.do(swapping("b"), T0 + 9)
    (fact,) = shard.facts
    assert isinstance(fact, WorkerSet)
    assert (fact.model, fact.loaded_at, fact.models) == ("b", T0 + 9, (A, B))


def test_a_worker_of_one_model_has_no_such_time() -> None:
    assert LoneShard(None, report()).shard.fleet()[0].loaded_at == 0.0


def test_a_swap_time_is_logged_if_it_changes_by_a_tenth() -> None:
    shard = LoneShard(None, swapping("a"))
    shard.do(swapping("a", B._replace(swap_s=3.2)))
    assert shard.facts == ()
    shard.do(swapping("a", B._replace(swap_s=3.4)))
    assert len(shard.facts) == 1
    shard.do(swapping("a", B._replace(swap_s=3.4, context_tokens=1)))
    assert len(shard.facts) == 1


def test_an_expected_capacity_is_logged_if_it_changes_by_a_tenth() -> None:
    usual = swapping("a")
    shard = LoneShard(None, usual._replace(expected_per_s=(90.0, 50.0)))
    assert shard.shard.fleet()[0].expected_per_s == (90.0, 50.0)
    shard.do(usual._replace(expected_per_s=(91.0, 54.0)))
    assert [*shard.facts] == []
    shard.do(usual._replace(expected_per_s=(91.0, 60.0)))
    assert len(shard.facts) == 1
    fact = shard.facts[0]
    assert decode_entry(encode_entry(Entry(1, T0, "p", "", 0, (fact,)), checked=True)).facts == (fact,)


@pytest.mark.parametrize("rate", [nan, inf, -inf, -1.0, 0.0, 1e300])
def test_a_capacity_that_no_worker_can_have_is_unknown(rate: float) -> None:
    """It gets neither into the log nor into a plan, and its repetition writes nothing."""
    nonsense = swapping("a", B._replace(service_per_s=-1.0))._replace(service_per_s=0.0, expected_per_s=(rate, rate))
    nonsense = nonsense._replace(models=tuple(each._replace(service_per_s=0.0) for each in nonsense.models))
    shard = LoneShard(None, nonsense)
    assert not plan_input(shard.shard.state, {}, T0).has_rate
    shard.do(nonsense, T0 + 1)
    assert shard.facts == ()


@pytest.mark.parametrize("expected_per_s", [(1.0,), (1.0, 2.0, 3.0)])
def test_capacities_that_are_not_of_each_model_are_unknown(expected_per_s: tuple[float, ...]) -> None:
    shard = LoneShard(None, swapping("a")._replace(expected_per_s=expected_per_s))
    assert shard.shard.fleet()[0].expected_per_s == ()


def test_an_expected_capacity_makes_a_plan_and_a_measured_one_replaces_it() -> None:
    unknown = swapping("a")._replace(models=(A._replace(service_per_s=0.0), B), service_per_s=0.0)
    shard = LoneShard(None, unknown)
    assert not plan_input(shard.shard.state, {}, T0).has_rate
    shard.do(unknown._replace(expected_per_s=(30.0, 20.0)))
    state = shard.shard.state
    (worker,) = plan_input(state, {}, T0).workers
    rates = ServiceRates([worker], ["a", "b"])
    assert (rates.are_known, rates.per_s(worker.kind, "a"), rates.per_s(worker.kind, "b")) == (True, 30.0, 20.0)
    assert state.slots.capacity_per_s("a") == 30.0
    assert state.slots.capacity_per_s() == 0.0, "guarantees are scaled down by measurements only"
    shard.do(unknown._replace(expected_per_s=(30.0, 20.0), service_per_s=70.0))
    (worker,) = plan_input(state, {}, T0).workers
    assert ServiceRates([worker], ["a", "b"]).per_s(worker.kind, "a") == 70.0
    assert state.slots.capacity_per_s("a") == state.slots.capacity_per_s() == 70.0


def test_a_log_of_the_older_format_has_no_expected_capacity() -> None:
    shard = LoneShard(None, swapping("a"))
    shard.shard.state.format = OLDEST
    shard.do(swapping("a")._replace(expected_per_s=(90.0, 50.0)), T0 + 1)
    assert shard.shard.fleet()[0].expected_per_s == ()
    fields = fields_of(dump(shard.shard))
    assert [len(config) for config, _ in fields["workers"]] == [12]


def test_a_snapshot_keeps_the_expected_capacity() -> None:
    shard = LoneShard(None, swapping("a")._replace(expected_per_s=(90.0, 50.0)))
    loaded = load(dump(shard.shard), shard.shard.state.settings)
    assert loaded.fleet() == shard.shard.fleet()
    assert loaded.state.workers["w"].expected_per_s == {"a": 90.0, "b": 50.0}


def test_calls_for_a_model_that_is_loaded_nowhere_wait_for_it() -> None:
    shard = LoneShard(None, swapping("a"))
    name, outcome = shard.accept(model="b")
    assert isinstance(outcome, Waiting)
    assert isinstance(shard.accept(model="a")[1], Offer)
    shard.do(swapping("b"))
    assert isinstance(shard.status(name), Offer)


def test_calls_for_a_model_that_nobody_can_load_are_refused() -> None:
    shard = LoneShard(None, swapping("a"))
    refused = shard.refused(model="c")
    assert refused.code == "no_worker"
    shard.do(swapping("a")._replace(models=()))
    shard.refused(model="b")
