"""Swap times that planners are wrong about: the worker measures its loads, and the price follows."""

from __future__ import annotations

from dataclasses import replace

from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.engines.interface import Observer, SimulatedEngine
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.fleet.spec import Loadable
from headgate.simulator.fleet.worker import SimulatedWorker
from tests.support.simulator.fleets import SMALL, fleet_of


def new_engine(loadable: Loadable, observer: Observer) -> SimulatedEngine:
    return make_engine(loadable.profile, make_policy("fcfs", WEIGHTED_TOKENS), observer=observer)


def new_worker() -> SimulatedWorker:
    able = {model: Loadable(SMALL, 3.0, 4, actual_swap_s=30.0) for model in "abc"}
    return SimulatedWorker(replace(fleet_of(1).workers[0], models=able, loaded="a"), new_engine)


def swap(worker: SimulatedWorker, model: str, at_s: float) -> None:
    worker.swap(model, at_s, 30.0)
    worker.settle(at_s)
    worker.settle(worker.due_s)


def test_three_swaps_make_the_price_that_of_the_engine() -> None:
    worker = new_worker()
    assert worker.swap_to_s("b") == 3.0
    for turn in range(3):
        swap(worker, "b", 100.0 * turn)
        swap(worker, "a", 100.0 * turn + 50.0)
    assert worker.swapping_s == 6 * 30.0
    assert worker.swap_to_s("a") == worker.swap_to_s("b") == 30.0


def test_two_swaps_make_the_price_of_a_model_that_was_never_loaded() -> None:
    worker = new_worker()
    swap(worker, "b", 0.0)
    swap(worker, "a", 50.0)
    assert worker.swap_to_s("c") == 30.0


def test_planners_see_the_believed_end_of_a_load() -> None:
    worker = new_worker()
    worker.swap("b", 0.0, 30.0)
    assert worker.loading_left_s(0.0) == 0.0  # it drains
    worker.settle(0.0)
    assert [worker.loading_left_s(at_s) for at_s in (0.0, 2.0, 20.0)] == [3.0, 1.0, 0.0]
    assert worker.due_s == 30.0


def test_a_load_that_a_failure_breaks_off_is_not_measured() -> None:
    worker = new_worker()
    worker.swap("b", 0.0, 30.0)
    worker.settle(0.0)
    worker.fail(40.0)
    assert worker.loading_left_s(10.0) == 60.0
    worker.settle(worker.due_s)
    assert (worker.model, worker.swap_to_s("b")) == ("b", 3.0)
