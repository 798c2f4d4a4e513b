"""The index of the workers that can load a model, by the time since which each keeps its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.facts import WorkerSet
from dispatcher.model.fleet import LoadableModel
from dispatcher.shard.state.indexes import Tenures
from dispatcher.shard.state.records import Worker
from dispatcher.shard.state.state import State
from dispatcher.shard.waits import loads
from dispatcher.shard.waits.estimate import expected_wait
from tests.support.world.lone_shard import LoneShard, report

MODELS = ("a", "b", "c")
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from(["configure", "order", "remove"]),
        st.floats(0.0, 100.0),
        st.sets(st.sampled_from(MODELS)),
    ),
    max_size=40,
)


def config(name: str, at: float, models: set[str]) -> WorkerSet:
    able = tuple(LoadableModel(model, 2.0, 0, 1.0, 10.0) for model in sorted(models))
    model = min(models, default="m")
    return WorkerSet(name, "http://w", model, 4, 0, 1.0, 0.0, "serving", models=able, loaded_at=at)


def held(workers: dict[str, Worker], model: str) -> Iterator[tuple[float, str]]:
    for worker in workers.values():
        if model in worker.swap_s:
            yield max(worker.config.loaded_at, worker.ordered_at), worker.name


@given(CHANGES)
def test_it_has_what_a_look_at_every_worker_finds(changes: list[tuple[int, str, float, set[str]]]) -> None:
    tenures, workers = Tenures(), dict[str, Worker]()
    for number, kind, at, models in changes:
        name = f"w{number}"
        worker = workers.get(name)
        if kind == "remove" or worker is None:
            workers.pop(name, None)
            tenures.remove(name)
            if kind == "configure":
                workers[name] = Worker(config(name, at, models))
        elif kind == "configure":
            worker.configure(config(name, at, models))
        else:
            worker.order(min(models, default=""), at)
        if name in workers:
            tenures.update(workers[name])
        for model in MODELS:
            assert tenures.longest(model, 3) == [each for _, each in sorted(held(workers, model))[:3]]
            assert {each.name for each in tenures.loading(model)} == {
                each.name for each in workers.values() if each.load == model
            }


def test_a_missing_models_wait_looks_at_few_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many workers there are, the wait for a model that none has looks at TURNS_MOST of them."""
    models = tuple(LoadableModel(name, 4.0 if name == "n" else 0.0, 0, 1.0, 10.0) for name in ("m", "n"))
    shard = LoneShard(None, *(report(worker=f"w{number}")._replace(models=models) for number in range(200)))
    state: State = shard.shard.state
    shard.call("a")
    looked, turn_in_s = list[str](), loads._turn_in_s

    def count(state: State, worker: Worker, model: str) -> float:
        looked.append(worker.name)
        return turn_in_s(state, worker, model)

    monkeypatch.setattr(loads, "_turn_in_s", count)
    assert expected_wait(state, state.tenants["a"], "n", 1).p50_s > 0
    assert 0 < len(looked) <= loads.TURNS_MOST
