"""The gate processes of a pool of several shards in one OS process."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.model.errors import LogCorrupt, LogError
from dispatcher.model.shards import shard_name
from dispatcher.service.gate.process import GateProcess, GateStores
from dispatcher.service.gate.shard_gates import SPREAD_EVERY_S, ShardGates
from dispatcher.service.link.finder import Fleet
from tests.support.world.processes import SECRETS, SHARD, World, in_virtual_time

SHARDS = 3


def gates_of(world: World, name: str) -> ShardGates:
    store = world.store(name)
    stores, transport = GateStores(store.mailboxes, store, store, world.launches), world.network.transport(name)
    made = []
    for number in range(SHARDS):
        shard = shard_name(SHARD, number)
        fleet = Fleet(store.log(shard), transport, world.clock, world.ids, SECRETS)
        made.append(GateProcess(fleet, world.settings, stores, shard))
    return ShardGates(made, world.clock)


async def started(world: World, name: str, address: str = "") -> tuple[ShardGates, asyncio.Task[None]]:
    gates, host = gates_of(world, name), world.host(name)
    await host.spawn(gates.listen(address or f"{name}:8090"))
    running = host.spawn(gates.run())
    await asyncio.sleep(1)
    return gates, running


@in_virtual_time(60)
async def test_it_can_lead_each_shard_at_a_port_of_its_own() -> None:
    world = World()
    gates, _ = await started(world, "one")
    assert [gate.is_leader for gate in gates.gates] == [True] * SHARDS
    assert [gate.address for gate in gates.gates] == ["one:8090", "one:8091", "one:8092"]


@pytest.mark.parametrize(
    ("listens", "public", "reached"),
    [
        ("one:8090", "public:9000", ["public:9000", "public:9001", "public:9002"]),
        ("one:0", "", ["one:1", "one:2", "one:3"]),
    ],
)
def test_the_ports_of_the_other_shards_follow_the_first(listens: str, public: str, reached: list[str]) -> None:
    @in_virtual_time(60)
    async def listening() -> None:
        world = World()
        gates = gates_of(world, "one")
        first = await world.on("one", gates.listen(listens, public))
        assert first == gates.gates[0].address
        if public:
            assert [gate.address for gate in gates.gates] == reached
        else:
            assert len({gate.address for gate in gates.gates}) == SHARDS

    listening()


@in_virtual_time(60)
async def test_another_process_takes_all_its_shards_over() -> None:
    world = World()
    await started(world, "one")
    other, _ = await started(world, "two")
    assert [gate.is_leader for gate in other.gates] == [False] * SHARDS
    world.network.hosts["one"].kill()
    await asyncio.sleep(2)
    assert [gate.is_leader for gate in other.gates] == [True] * SHARDS


@in_virtual_time(200)
async def test_leaders_spread_over_the_hosts_and_then_stay() -> None:
    world = World()
    one, _ = await started(world, "one")
    two, _ = await started(world, "two")
    assert leads(one, two) == [3, 0]
    await asyncio.sleep(2 * SPREAD_EVERY_S)
    assert leads(one, two) == [2, 1]
    takeovers = [gate.takeovers for gate in (*one.gates, *two.gates)]
    await asyncio.sleep(5 * SPREAD_EVERY_S)
    assert takeovers == [gate.takeovers for gate in (*one.gates, *two.gates)], "leadership does not flap"
    three, _ = await started(world, "three")
    world.network.hosts["one"].kill()
    await asyncio.sleep(5 * SPREAD_EVERY_S)
    assert sorted(leads(two, three)) == [1, 2]


def leads(*processes: ShardGates) -> list[int]:
    return [sum(gate.is_leader for gate in gates.gates) for gates in processes]


@in_virtual_time(60)
async def test_a_process_that_leads_waits_longer_for_its_turn() -> None:
    """So the second heir takes over from the dead leader, if the first heir leads another shard."""
    world = World()
    await started(world, "one")
    two, _ = await started(world, "two")
    three, _ = await started(world, "three")
    two.gates[0].leads_beside = lambda: 1
    world.network.hosts["one"].kill()
    await asyncio.sleep(2)
    assert three.gates[0].is_leader


@in_virtual_time(60)
async def test_a_shard_whose_log_cannot_be_used_stops_alone() -> None:
    world = World()
    await world.store("writer").log(shard_name(SHARD, 1)).append(0, b"no entry")
    gates, running = await started(world, "one")
    assert [gate.is_leader for gate in gates.gates] == [True, False, True]
    assert not running.done()
    gates.stop()
    await running


@in_virtual_time(60)
async def test_it_ends_if_no_log_can_be_used() -> None:
    world = World()
    for number in range(SHARDS):
        await world.store("writer").log(shard_name(SHARD, number)).append(0, b"no entry")
    _, running = await started(world, "one")
    assert isinstance(running.exception(), LogError)
    assert isinstance(running.exception(), LogCorrupt)


@in_virtual_time(60)
async def test_it_stops_leading_all_shards() -> None:
    world = World()
    gates, running = await started(world, "one")
    gates.stop()
    await running
    assert [gate.is_leader for gate in gates.gates] == [False] * SHARDS
