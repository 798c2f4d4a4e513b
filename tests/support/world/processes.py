"""A world of gate processes and links in virtual time, over one memory store, for tests of dispatcher/service."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from random import Random
from typing import Any, NoReturn, ParamSpec

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Command, End, Offer, Outcome, Over, Report
from dispatcher.model.fleet_secrets import FleetSecrets
from dispatcher.service.gate.follower import Offload, at_once
from dispatcher.service.gate.process import GateProcess, GateStores
from dispatcher.service.gate.replica import Replica
from dispatcher.service.link.finder import Fleet
from dispatcher.service.link.link import Link
from dispatcher.shard.alone import with_fields
from dispatcher.shard.settings import ShardSettings
from tests.support.world.memory_store import MemoryData, MemoryStore
from tests.support.world.network import Host, Network, install_hosts
from tests.support.world.store_faults import Latency, StoreFaults
from tests.support.world.virtual_time import LoopClock, run

SHARD = "pool"
SECRETS = FleetSecrets("a secret of the whole fleet")
P = ParamSpec("P")


def light(random: Random) -> float:
    """Return a light-tailed latency of DynamoDB, 4 ms in the mean."""
    return 0.004 * random.lognormvariate(-0.045, 0.3)


def tailed(p99_s: float) -> Latency:
    """Return a latency of 4 ms with a P99 of `p99_s`."""
    return lambda random: light(random) + (2 * p99_s * random.random() if random.random() < 0.02 else 0.0)


class SeededIds:
    def __init__(self, random: Random) -> None:
        self._random = random

    def new(self) -> str:
        return "".join(self._random.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=12))

    def secret(self) -> str:
        return self.new() + self.new()


class Launches:
    """ports.Launcher: a list."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int]] = []

    async def launch(self, invocation_id: str, attempt: int) -> None:
        self.started.append((invocation_id, attempt))


class ReadLink(Link):
    """A link whose news are read when a test wants them. `do` holds the call of each Accept."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._news = defaultdict[str, asyncio.Queue[Offer | Over]](asyncio.Queue)

    async def do(self, command: Command) -> Outcome:
        if isinstance(command, Accept) and command.id not in self._news:
            self.hold(command.id, self._news[command.id].put_nowait)
        return await super().do(command)

    async def news(self, call_id: str, timeout_s: float) -> Offer | Over | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await self._news[call_id].get()
        return None


class World:
    """Everything is seeded. Use it within a test in virtual time."""

    def __init__(self, seed: int = 1, latency_s: Latency = light, settings: ShardSettings | None = None) -> None:
        self._has_hosts = False
        self.random = Random(seed)
        self.clock = LoopClock()
        self.settings = settings or ShardSettings()
        self.latency_s = latency_s
        self.network = Network(self.random)
        self.ids = SeededIds(self.random)
        self.data = MemoryData()
        self.launches = Launches()
        self.faults: dict[str, StoreFaults] = {}
        self.gates: dict[str, GateProcess] = {}

    def host(self, name: str) -> Host:
        """Return a host. Call it first in the task of the test: the world ends with that task."""
        if not self._has_hosts:
            self._has_hosts = True
            install_hosts()
        return self.network.host(name)

    def store(self, name: str) -> MemoryStore:
        faults = self.faults.setdefault(name, StoreFaults(self.random, self.latency_s))
        return MemoryStore(self.clock, faults, self.data)

    def fleet(self, name: str) -> Fleet:
        return Fleet(self.store(name).log(SHARD), self.network.transport(name), self.clock, self.ids, SECRETS)

    async def gate(self, name: str, plan_offload: Offload = at_once) -> GateProcess:
        """Start a gate process on a host of its own."""
        store, host = self.store(name), self.host(name)
        stores = GateStores(store.mailboxes, store, store, self.launches)
        gate = self.gates[name] = GateProcess(self.fleet(name), self.settings, stores, SHARD, plan_offload=plan_offload)
        await host.spawn(gate.listen(f"{name}:0"))
        host.spawn(gate.run())
        return gate

    def link(self, name: str) -> ReadLink:
        """Make the link of a process on its own host. Use it through `on`."""
        store = self.store(name)
        return ReadLink(
            name, self.fleet(name), self.settings, mailboxes=store.mailboxes, launcher=self.launches, answers=store
        )

    def replica(self, name: str) -> Replica:
        store = self.store(name)
        return Replica(store.log(SHARD), self.settings, self.clock, name, answers=store)

    async def on(self, name: str, work: Any) -> Any:
        """Run a coroutine on a host."""
        return await self.host(name).spawn(work)

    @property
    def leaders(self) -> list[str]:
        return [name for name, gate in self.gates.items() if gate.is_leader and not self.network.hosts[name].dead]

    async def folded(self) -> Replica:
        """Return a replica of the whole log, read without faults."""
        store = MemoryStore(self.clock, None, self.data)
        replica = Replica(store.log(SHARD), self.settings, self.clock, "reader")
        await replica.catch_up()
        return replica


def in_virtual_time(limit_s: float = 10_000.0) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Make a test run in virtual time. It fails if it takes more than `limit_s` virtual seconds."""

    def decorated(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
        @wraps(test)
        def run_test(*args: P.args, **fields: P.kwargs) -> None:
            async def limited() -> None:
                async with asyncio.timeout(limit_s):
                    await test(*args, **fields)

            run(limited())

        return run_test

    return decorated


def accept(call_id: str, process: str, now: float, tenant: str = "acme", **fields: Any) -> Accept:
    """Return an Accept with plain values."""
    plain = Accept(
        id=call_id,
        floor=0,
        process=process,
        terms=CallTerms(
            tenant=tenant, model="m", cost=100.0, deadline_at=now + 300, durable=False, app="", interaction=""
        ),
        config=TenantConfig(version=1, weight=1.0, rate_per_s=0.0, burst=0.0, tier="standard", waiting_max=1000),
    )
    return with_fields(plain, **fields)


def new_call(world: World, link: Link, **fields: Any) -> Accept:
    """Return the Accept of a process's next call."""
    return accept(link.new_id(), link.process, world.clock.now(), **fields)


def report(worker: str, slots: int = 4, live: tuple[str, ...] = ()) -> Report:
    return Report(worker, f"http://{worker}", "m", slots, 8192, 1000.0, 1000.0, False, 0.0, 0, live)


def end(call_id: str, attempt: int, outcome: str = "done") -> End:
    return End(call_id, attempt, outcome, 10, 20)


async def start_gates(world: World, *names: str) -> None:
    """Start gate processes one after another; the first leads."""
    for name in names:
        await world.gate(name)
        await asyncio.sleep(0.2)


async def start_worker(world: World, slots: int = 4) -> ReadLink:
    """Start the worker w1 in a process of its own, which sends a heartbeat each second. Return its link."""
    link = world.link("worker")

    async def heartbeats() -> NoReturn:
        while True:
            await link.do(report("w1", slots))
            await asyncio.sleep(1)

    world.host("worker").spawn(heartbeats())
    await asyncio.sleep(0.5)
    return link


async def start_fleet(world: World, *gates: str, slots: int = 4) -> tuple[ReadLink, ReadLink]:
    """Start gate processes and the worker w1. Return the links of a front and of the worker."""
    await start_gates(world, *gates)
    worker = await start_worker(world, slots)
    return world.link("front"), worker
