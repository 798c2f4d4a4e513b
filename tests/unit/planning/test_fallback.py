"""The rule that loads models without a plan."""

from __future__ import annotations

from math import inf

from dispatcher.policies.planning.fallback import RESIDENCY_S, SWAP_MAX_S, ModelLoad, SwapWorker, fallback_loads

SWAPS = {"a": 1.0, "b": 1.0, "c": 1.0}
LATER = RESIDENCY_S


def worker(name: str, model: str, since: float = 0.0, running: int = 0, **swap_s: float) -> SwapWorker:
    return SwapWorker(name, model, since, running, swap_s or SWAPS)


def test_a_worker_keeps_its_model_for_its_residency() -> None:
    workers = [worker("w", "a", b=3.0)]
    assert not fallback_loads(["b"], {}, workers, ["b"], {"a": 1}, 14.9)
    assert fallback_loads(["b"], {}, workers, ["b"], {"a": 1}, 15.0) == [ModelLoad("w", "b")]
    assert not fallback_loads(["b"], {}, [worker("w", "a", b=0.0)], ["b"], {"a": 1}, 9.9)


def test_the_model_whose_last_order_is_the_oldest_goes_first() -> None:
    found = fallback_loads(["a", "b", "c"], {"a": 5.0, "b": 1.0, "c": 2.0}, [worker("w", "d")], ["a"], {}, LATER)
    assert found == [ModelLoad("w", "b")]


def test_a_model_that_was_never_ordered_goes_before_all_others() -> None:
    assert fallback_loads(["a", "c"], {"a": 5.0}, [worker("w", "d")], [], {}, LATER) == [ModelLoad("w", "c")]


def test_a_worker_whose_model_nobody_needs_swaps_first() -> None:
    workers = [worker("only", "x"), worker("busy", "y", running=3), worker("idle", "y", running=1)]
    found = fallback_loads(["a", "b", "c"], {}, workers, ["x"], {"x": 1, "y": 2}, LATER)
    assert found == [ModelLoad("idle", "a"), ModelLoad("busy", "b"), ModelLoad("only", "c")]


def test_one_copy_of_a_wanted_model_stays_while_another_worker_can_swap() -> None:
    workers = [worker("1", "x"), worker("2", "x"), worker("3", "y")]
    found = fallback_loads(["a", "b"], {}, workers, ["x", "y"], {"x": 2, "y": 1}, LATER)
    assert [load.worker for load in found] == ["1", "2"]


def test_a_model_that_fits_no_worker_or_never_loads_holds_up_nothing() -> None:
    workers = [worker("w", "x", a=inf, b=SWAP_MAX_S + 1, c=1.0)]
    assert fallback_loads(["a", "b", "q", "c"], {"c": 9.0}, workers, [], {}, 1e9) == [ModelLoad("w", "c")]
