"""A flood at an empty pool in virtual time: a stand-in for ECS starts and stops workers, the rest is real.

The callers do what an SDK does: after a 503 they wait for its Retry-After and try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress

from dispatcher.model.commands import Leave
from dispatcher.model.facts import Accepted
from dispatcher.model.fleet import ServiceCount
from dispatcher.operations.pools import FRESH_S
from dispatcher.operations.scaling import Scaling, Waking
from dispatcher.operations.worker_count import ScaleSettings
from dispatcher.service.load_watch import fleet_load
from tests.support.world.memory_gate import COMPLETION, Gate

SWEEP_S = 60.0
START_S = 120.0
DRAIN_S = 20.0


class Settings(ScaleSettings):
    hold_s = 300.0


SETTINGS = Settings(workers_min=0, workers_max=3, scale_to_zero=True, worker_start_s=START_S)


class EcsStandIn:
    """Starts and stops workers until there are as many as desired. A worker that stops drains first."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._serving: list[str] = []
        self._kept: set[str] = set()
        self._starting = self._started = self._draining = 0
        self.desired = 0
        self.history: list[int] = []
        self.tasks: set[asyncio.Task[None]] = set()

    async def count(self) -> ServiceCount:
        return ServiceCount(self.desired, self._starting + len(self._serving) + self._draining)

    async def keep(self, workers: Sequence[str], leaver: str = "") -> None:
        self._kept = set(workers)

    async def set(self, workers: int) -> None:
        self.desired = workers
        self.history.append(workers)
        for _ in range(workers - self._starting - len(self._serving)):
            self._starting += 1
            self._spawn(self._start())
        for _ in range(len(self._serving) + self._starting - workers):
            self._draining += 1
            self._spawn(self._stop(self._unkept()))

    def _unkept(self) -> str:
        name = next(each for each in self._serving if each not in self._kept)
        self._serving.remove(name)
        return name

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _start(self) -> None:
        await asyncio.sleep(START_S)
        self._starting, self._started = self._starting - 1, self._started + 1
        self._serving.append(f"ecs{self._started}")
        self._gate.add_worker(self._serving[-1], service_per_s=20.0)

    async def _stop(self, name: str) -> None:
        self._gate.add_worker(name, service_per_s=20.0, draining=True)
        await asyncio.sleep(DRAIN_S)
        self._gate.shard.decide(Leave(name))
        self._draining -= 1


async def sweeps(gate: Gate, scaling: Scaling) -> None:
    seen = 0
    while True:
        costs = [fact.terms.cost for fact in gate.shard.facts[seen:] if isinstance(fact, Accepted)]
        seen = len(gate.shard.facts)
        load = fleet_load(gate.shard.shard.state, sum(costs) / SWEEP_S, gate.clock.now())
        assert not (await scaling.sweep(load)).problem
        await asyncio.sleep(SWEEP_S)


async def answered(gate: Gate, after_s: float) -> int:
    """Return how many tries a caller needs that begins after so many seconds."""
    await asyncio.sleep(after_s)
    body = {"model": "m", "prompt": "hello", "max_tokens": 3}
    for tries in range(1, 20):
        reply = await gate.caller().post(COMPLETION, body)
        if reply.status == 200:
            return tries
        assert reply.status == 503
        await asyncio.sleep(int(reply.headers["retry-after"]))
    raise AssertionError("never answered")


async def test_a_flood_at_zero_is_answered_and_the_pool_returns_to_zero(gate: Gate) -> None:
    ecs = EcsStandIn(gate)
    gate.pool.waking = Waking(ecs, {"m"}, START_S, gate.clock)
    gate.shard.decide(Leave("w"))
    sweeping = asyncio.ensure_future(sweeps(gate, Scaling(ecs, gate.pool.link, SETTINGS, gate.clock)))
    await asyncio.sleep(2 * SWEEP_S + FRESH_S)
    assert ecs.history == []
    tries = await asyncio.gather(*(answered(gate, 0.5 * number) for number in range(400)))
    assert max(tries) <= 2 + 1  # the worker joins some moments after the announced time
    assert ecs.history[0] == 1
    await asyncio.sleep(4 * (START_S + SETTINGS.hold_s))
    assert ecs.desired == 0
    assert gate.shard.shard.state.workers == {}
    top = ecs.history.index(max(ecs.history))
    assert ecs.history[: top + 1] == sorted(ecs.history[: top + 1])
    assert ecs.history[top:] == list(range(max(ecs.history), -1, -1))
    sweeping.cancel()
    with suppress(asyncio.CancelledError):
        await sweeping
