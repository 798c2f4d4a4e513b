"""A worker in a pool of two shards: each has a lease, and a shard that is lost costs only its own calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from dispatcher.model.commands import Attempts, Command, Outcome
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.shards import shard_of_call
from dispatcher.policies.slot_shares import ShardNeed
from dispatcher.service.link.sharded import combine
from gpu_worker.service.agent import AgentSettings
from gpu_worker.service.executions.execution import Abort
from gpu_worker.service.executions.executions import Executions
from gpu_worker.service.executions.outbox import Outbox
from gpu_worker.service.shard_agents import JOIN_OTHERS_S, ShardAgents, shard_agents
from tests.support.worker.gate import ScriptedGate
from tests.support.worker.harness import IDENTITY, SETTINGS, WorkerHarness, order, read
from tests.support.worker.scripted_engine import ScriptedEngine
from tests.support.world.virtual_time import START

pytestmark = pytest.mark.virtual_time
SLOTS = 4
CALLS = ("front-1", "front.1-1")
"""A call of each shard."""


class ShardGate(ScriptedGate):
    """The link of a worker to a shard."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = asyncio.Event()
        self.need: ShardNeed | None = None

    def _decide(self, command: Command) -> Outcome:
        outcome = super()._decide(command)
        if isinstance(outcome, Attempts) and self.need is not None:
            return outcome._replace(need=(self.need,))
        return outcome


class ShardedWorker(WorkerHarness):
    def __init__(self) -> None:
        super().__init__(ScriptedEngine(), slots=SLOTS)
        self.gates = [ShardGate(), ShardGate()]
        self.outbox = Outbox(combine(self.gates), self.clock, Random(1))  # type: ignore[arg-type]
        self.executions = Executions("w", self.engine, SLOTS, self.clock, self.outbox)
        self.engine_changed = asyncio.Event()
        self.agents: ShardAgents = shard_agents(
            IDENTITY._replace(slots=SLOTS), self.gates, self.executions, self.clock, Random(1),  # type: ignore[arg-type]
            self.engine_changed, AgentSettings(join_s=20.0),
        )  # fmt: skip

    def begin(self, call_id: str) -> asyncio.Future[list[bytes]]:
        """Begin a long execution of a call that its shard has offered."""
        self.gates[shard_of_call(call_id)].offer(call_id)
        work = order(call_id, max_tokens=900, deadline_at=START + 1000)
        return asyncio.ensure_future(read(self.executions.run(self.token(work), work)))

    def running(self) -> set[str]:
        return {name.partition("#")[0] for name in self.executions.running()}


@asynccontextmanager
async def worker() -> AsyncIterator[ShardedWorker]:
    """Join and serve."""
    made = ShardedWorker()
    await made.agents.join()
    made.serving = asyncio.ensure_future(made.agents.serve(made.stop.wait()))
    try:
        yield made
    finally:
        made.serving.cancel()
        await asyncio.wait({made.serving})


async def test_each_shard_gets_its_own_attempts_and_a_part_of_the_slots() -> None:
    async with worker() as own:
        works = [own.begin(call) for call in CALLS]
        await asyncio.sleep(5)
        seen = [gate.heartbeats[-1] for gate in own.gates]
        assert [each.live for each in seen] == [("front-1#1",), ("front.1-1#1",)]
        assert sum(each.slots for each in seen) == SLOTS
        assert own.running() == set(CALLS)
        for work in works:
            work.cancel()


@pytest.mark.parametrize("lost", [0, 1])
async def test_the_calls_of_a_lost_shard_are_aborted_and_the_others_go_on(lost: int) -> None:
    async with worker() as own:
        for call in CALLS:
            own.begin(call)
        await asyncio.sleep(3)
        own.gates[lost].away = True
        await asyncio.sleep(SETTINGS.lease_s)
        assert own.running() == {CALLS[1 - lost]}, "the lease at the other shard goes on"
        for call in CALLS:
            own.begin(f"{call}1")
        await asyncio.sleep(0.05)
        assert f"{CALLS[lost]}1" not in own.running(), "not even until the next look at the lease"
        await asyncio.sleep(1)
        assert own.running() == {CALLS[1 - lost], f"{CALLS[1 - lost]}1"}, "no order of the lost shard begins"
        own.gates[lost].away = False
        await asyncio.sleep(5)
        own.begin(f"{CALLS[lost]}2")
        await asyncio.sleep(1)
        assert f"{CALLS[lost]}2" in own.running(), "the shard answers again"


async def test_reports_go_to_the_shard_of_their_call() -> None:
    async with worker() as own:
        for call in CALLS:
            own.gates[shard_of_call(call)].offer(call)
            await read(own.executions.run(own.token(order(call)), order(call)))
        assert [[end.id for end in gate.ended] for gate in own.gates] == [[call] for call in CALLS]


async def test_a_worker_serves_without_a_shard_that_it_cannot_reach_and_joins_it_later() -> None:
    own = ShardedWorker()
    own.gates[1].away = True
    began = own.clock.monotonic()
    await own.agents.join()
    assert own.clock.monotonic() - began <= JOIN_OTHERS_S + 1
    assert not own.gates[1].heartbeats
    own.serving = asyncio.ensure_future(own.agents.serve(own.stop.wait()))
    own.begin(CALLS[0])
    await asyncio.sleep(SETTINGS.lease_s + 5)
    assert own.running() == {CALLS[0]}
    own.gates[1].away = False
    await asyncio.sleep(3)
    assert own.gates[1].heartbeats
    own.serving.cancel()
    await asyncio.wait({own.serving})


async def test_a_worker_that_no_shard_answers_does_not_start() -> None:
    own = ShardedWorker()
    for gate in own.gates:
        gate.away = True
    with pytest.raises(StoreUnavailable):
        await own.agents.join()


async def test_it_drains_for_all_shards_and_signs_off_at_each() -> None:
    async with worker() as own:
        works = [own.begin(call) for call in CALLS]
        await asyncio.sleep(3)
        own.stop.set()
        await asyncio.sleep(1)
        assert all(gate.heartbeats[-1].draining for gate in own.gates)
        assert own.running() == set(CALLS), "they may finish"
        await own.serving
        assert [gate.left for gate in own.gates] == [True, True]
        assert all(work.done() for work in works)


async def test_a_shard_that_is_lost_does_not_hold_up_the_drain_of_the_others() -> None:
    async with worker() as own:
        own.begin(CALLS[0])
        own.gates[0].away = True
        own.gates[0].hangs_s = 1000.0
        await asyncio.sleep(SETTINGS.lease_s)
        own.stop.set()
        await asyncio.wait_for(own.serving, 60)
        assert [gate.left for gate in own.gates] == [False, True]


async def test_a_slot_moves_when_the_call_in_it_ends_and_not_a_second_later() -> None:
    """Shard 0 floods the pool; then shard 1 has its first call."""
    nothing = ShardNeed(0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)
    async with worker() as own:
        flood, quiet = own.gates
        flood.need, quiet.need = nothing._replace(slots=80, heavy=80, waiting=500, weight=1.0), nothing
        works = [own.begin(f"front-{number}") for number in range(1, SLOTS + 1)]
        await asyncio.sleep(5)
        quiet.need = nothing._replace(waiting=1, weight=1.0)
        await own.agents.agents[1].heartbeat()
        await asyncio.sleep(0.1)
        assert flood.heartbeats[-1].slots == SLOTS - 1
        assert quiet.heartbeats[-1].slots == 0
        await own.executions.abort("front-1#1", Abort.DRAINED)
        await asyncio.sleep(0.2)
        assert quiet.heartbeats[-1].slots == 1
        for work in works:
            work.cancel()


async def test_each_shard_hears_at_once_that_the_engine_stopped() -> None:
    async with worker() as own:
        counts = [len(gate.heartbeats) for gate in own.gates]
        own.engine_changed.set()
        await asyncio.sleep(0.05)
        assert [len(gate.heartbeats) for gate in own.gates] == [count + 1 for count in counts]


async def test_a_verdict_on_the_engine_goes_to_each_shard() -> None:
    async with worker() as own:
        counts = [len(gate.heartbeats) for gate in own.gates]
        await own.executions.health.report()
        assert [len(gate.heartbeats) for gate in own.gates] == [count + 1 for count in counts]
