"""Fronts that cannot reach a worker: a front without a route rests no workers, and a worker without a route rests."""

from __future__ import annotations

import pytest

from dispatcher.model.commands import Over
from dispatcher.model.facts import Returned
from dispatcher.shard.codec import pack
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import dump, fields_of, load
from dispatcher.shard.state.records import FAILED_MOST, UNREACHED_KEPT
from tests.support.world.lone_shard import LoneShard, report


def fleet(*workers: str, slots: int = 4) -> LoneShard:
    return LoneShard(None, *(report(worker, slots) for worker in workers))


def states(shard: LoneShard) -> dict[str, str]:
    return {name: worker.config.state for name, worker in shard.shard.state.workers.items()}


def unreached(shard: Shard) -> tuple[str, ...]:
    return shard.state.processes["p"].unreached


def unreachable(shard: LoneShard, *broken: str, process: str = "p") -> bool:
    """Send a call of the process, which cannot reach the broken workers. Return whether the call is done."""
    name = shard.call("a", process=process)
    while (worker := shard.worker_of(name)) in broken:
        shard.give_back(name, "unreachable")
    if worker:
        shard.end(name)
    return bool(worker)


@pytest.mark.parametrize("workers", [("u", "v"), ("u", "v", "w", "x", "y")])
def test_a_front_without_a_route_rests_no_worker(workers: tuple[str, ...]) -> None:
    shard = fleet(*workers)
    for number in range(50):
        assert not unreachable(shard, *workers)
        if number % 10 == 0:
            assert unreachable(shard, process="q")
    assert set(states(shard).values()) == {"serving"}


def test_its_calls_still_fail_after_three_attempts() -> None:
    """They would take slots in vain until their deadlines. The caller may try again at another front."""
    shard = fleet("u", "v")
    name = shard.call("a")
    for _ in range(3):
        shard.give_back(name, "unreachable")
    assert shard.status(name) == Over(name, 3, "failed")


def test_a_single_worker_that_is_unreachable_rests() -> None:
    shard = fleet("w")
    for _ in range(2):
        unreachable(shard, "w")
    assert states(shard) == {"w": "resting"}


def test_a_worker_that_is_unreachable_rests_while_others_are_reached() -> None:
    shard = fleet("broken", "well")
    for _ in range(FAILED_MOST):
        assert unreachable(shard, "broken")
    assert states(shard) == {"broken": "resting", "well": "serving"}


@pytest.mark.parametrize(("count", "failed_most"), [(1, 0), (2, 0), (3, 4), (4, 12)])
def test_several_unreachable_workers_rest_though_only_one_front_uses_them(count: int, failed_most: int) -> None:
    """They have no load, so each call is offered to one of them first. Its next attempts go elsewhere."""
    broken = [f"broken-{number}" for number in range(count)]
    shard = fleet(*broken, "well")
    outcomes = [unreachable(shard, *broken) for _ in range(40)]
    assert outcomes.count(False) <= failed_most
    assert states(shard) == {**dict.fromkeys(broken, "resting"), "well": "serving"}


@pytest.mark.parametrize("reason", ["failed", "refused"])
def test_a_return_by_a_worker_shows_that_it_was_reached(reason: str) -> None:
    shard = fleet("u", "v")
    name = shard.call("a")
    shard.give_back(name, "unreachable")
    assert unreached(shard.shard) == ("u",)
    shard.give_back(name, reason)
    assert unreached(shard.shard) == ()


@pytest.mark.parametrize("reason", ["not_begun", "declined"])
def test_a_return_without_an_order_shows_nothing(reason: str) -> None:
    shard = fleet("u", "v")
    name = shard.call("a")
    shard.give_back(name, "unreachable")
    shard.give_back(name, reason)
    assert unreached(shard.shard) == ("u",)


def test_the_log_says_which_returns_count_against_the_worker() -> None:
    shard = fleet("u", "v")
    name = shard.call("a")
    reasons = []
    for _ in range(2):
        shard.give_back(name, "unreachable")
        reasons += [fact.reason for fact in shard.facts if isinstance(fact, Returned)]
    assert reasons == ["unreachable", "no_route"]
    assert [worker.failures for worker in shard.shard.state.workers.values()] == [1, 0]


def test_only_so_many_unreached_workers_are_remembered() -> None:
    workers = [f"w{number:02}" for number in range(3 * UNREACHED_KEPT)]
    shard = fleet(*workers)
    for _ in workers:
        unreachable(shard, *workers)
    assert len(unreached(shard.shard)) == UNREACHED_KEPT


def test_a_snapshot_of_before_loads() -> None:
    shard = fleet("u", "v")
    shard.give_back(shard.call("a"), "unreachable")
    assert unreached(load(older(shard.shard), ShardSettings())) == ()


def older(shard: Shard) -> bytes:
    """Return a snapshot without the rows that this version added."""
    fields = fields_of(dump(shard))
    rows = ("workers", "processes", "tenants", "calls", "usage", "interactions", "ends")
    values = {name: value for name, value in fields.items() if name not in (*rows, "unreached")}
    return pack(values, *([name, fields[name]] for name in rows))
