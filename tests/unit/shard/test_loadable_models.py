"""A worker that can load several models: what the log remembers of them."""

from __future__ import annotations

from dispatcher.model.commands import Attempts, Offer, Report, Waiting
from dispatcher.model.facts import WorkerSet
from dispatcher.model.fleet import LoadableModel
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
