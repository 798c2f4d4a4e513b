"""The view of the workers: read at most every few seconds, by one reader, and used for a while if it cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from dispatcher.model.commands import Leave, Report, Silent
from dispatcher.model.errors import NoWorker, StoreUnavailable, UnknownModel
from dispatcher.model.facts import WorkerSet
from dispatcher.model.fleet import LoadableModel
from dispatcher.model.tenants import Tenant
from dispatcher.operations.pools import FRESH_S, PATIENCE_S, REMEMBERED_S, STALE_S, FleetView, with_each_model
from tests.support.world.memory_gate import Gate

A = Tenant("a")


class Counted:
    """A link of which only the fleet is asked."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.reads = 0
        self.takes_s = 0.01

    async def fleet(self) -> Sequence[WorkerSet]:
        self.reads += 1
        await asyncio.sleep(self.takes_s)
        return await self.gate.link().fleet()


@pytest.fixture
def link(gate: Gate) -> Counted:
    return Counted(gate)


@pytest.fixture
def view(gate: Gate, link: Counted) -> FleetView:
    return FleetView(link, gate.clock)  # type: ignore[arg-type]


async def test_many_requests_are_one_read(view: FleetView, link: Counted) -> None:
    await asyncio.gather(*(view.worker_for(A, "m") for _ in range(50)))
    assert link.reads == 1
    await asyncio.sleep(FRESH_S)
    await view.workers()
    assert link.reads == 2


async def test_an_unknown_model_is_looked_for_again_and_no_more_often_than_that(
    gate: Gate, view: FleetView, link: Counted
) -> None:
    await view.workers()
    gate.add_worker("n", model="n")
    await asyncio.sleep(0.3)
    assert (await view.worker_for(A, "n")).worker == "n"
    for _ in range(20):
        with pytest.raises(UnknownModel):
            await view.worker_for(A, "none")
    assert link.reads == 2


async def test_it_outlives_a_gate_that_is_away_and_no_longer_than_a_while(gate: Gate, view: FleetView) -> None:
    await view.workers()
    gate.shard.down = True
    await asyncio.sleep(STALE_S - 1)
    assert (await view.worker_for(A, "m")).worker == "w"
    await asyncio.sleep(2)
    with pytest.raises(StoreUnavailable):
        await view.worker_for(A, "m")
    gate.shard.down = False
    assert {worker.model for worker in await view.workers()} == {"m"}


async def test_a_slow_read_holds_up_only_a_model_that_may_be_refused(
    gate: Gate, view: FleetView, link: Counted
) -> None:
    """As in the second after the leader died."""
    link.takes_s = 1.0
    began = gate.clock.now()
    await view.workers()
    assert gate.clock.now() - began == pytest.approx(1.0)  # there is no view yet
    gate.add_worker("n", model="n")
    await asyncio.sleep(FRESH_S)
    began = gate.clock.now()
    new = asyncio.ensure_future(view.worker_for(A, "n"))
    assert (await view.worker_for(A, "m")).worker == "w"
    assert gate.clock.now() - began == pytest.approx(PATIENCE_S)
    assert (await new).worker == "n"
    assert gate.clock.now() - began == pytest.approx(1.0)
    assert link.reads == 2


async def test_calls_wait_for_a_silent_worker_and_are_refused_once_it_has_left(gate: Gate, view: FleetView) -> None:
    gate.shard.decide(Silent("w", True))
    assert (await view.worker_for(A, "m")).state == "silent"
    gate.shard.decide(Leave("w"))
    await asyncio.sleep(FRESH_S)
    with pytest.raises(NoWorker):
        await view.worker_for(A, "m")


async def test_a_model_is_forgotten_some_time_after_its_last_worker(gate: Gate, view: FleetView) -> None:
    gate.add_worker("n", model="n")
    await view.workers()
    gate.shard.decide(Leave("n"))
    await asyncio.sleep(FRESH_S)
    with pytest.raises(NoWorker):
        await view.worker_for(A, "n")
    await asyncio.sleep(REMEMBERED_S)
    with pytest.raises(UnknownModel):
        await view.worker_for(A, "n")


async def test_a_configured_model_is_known_without_a_worker(gate: Gate, link: Counted) -> None:
    view = FleetView(link, gate.clock, frozenset({"n"}))  # type: ignore[arg-type]
    with pytest.raises(NoWorker):
        await view.worker_for(A, "n")
    with pytest.raises(UnknownModel):
        await view.worker_for(A, "none")
    with pytest.raises(UnknownModel):
        await view.worker_for(Tenant("a", models=("m",)), "n")


async def test_a_model_of_the_tenants_configuration_is_known_without_a_worker(view: FleetView) -> None:
    """Also in a process that has never seen a worker of it."""
    with pytest.raises(NoWorker):
        await view.worker_for(Tenant("a", models=("n",)), "n")
    with pytest.raises(UnknownModel):
        await view.worker_for(A, "n")


async def test_a_reader_that_leaves_does_not_stop_the_others(view: FleetView) -> None:
    first, second = (asyncio.ensure_future(view.workers()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert len(await second) == 1


LOADABLE = LoadableModel("big", 30.0, 32_768, 3.5, 50.0, ("chat", "tools"))


async def test_a_model_that_a_worker_can_load_is_served(gate: Gate, view: FleetView) -> None:
    gate.add_worker("s", model="small")
    link = gate.link()
    (found,) = [each for each in await link.fleet() if each.worker == "s"]
    models = (LOADABLE, LoadableModel("small", 0.0, 1, 1.0, 0.0))
    await link.do(Report(*found[:7], False, 0.0, 0, (), (), models))
    big = await view.worker_for(A, "big")
    assert (big.worker, big.context_tokens, big.bytes_per_token) == ("s", 32_768, 3.5)
    assert view.capabilities("big") == {"chat", "tools"}
    assert (await view.worker_for(A, "small")).context_tokens == found.context_tokens
    with pytest.raises(UnknownModel):
        await view.worker_for(A, "bigger")


def test_each_worker_is_listed_once_for_each_model() -> None:
    worker = WorkerSet("w", "", "a", 1, 9, 1.0, 5.0, "serving", models=(LoadableModel("a", 0.0, 8, 2.0, 0.0), LOADABLE))
    first, second = with_each_model([worker])
    assert first == worker
    assert second == worker._replace(
        model="big", context_tokens=32_768, bytes_per_token=3.5, service_per_s=50.0, capabilities=("chat", "tools")
    )
