"""The processes of a run, each of production code on a simulated host: gate processes, fronts and workers.

A node is one incarnation: after its host is killed, another node takes its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

from dispatcher.model.commands import Accept, Command, Outcome, Refused, Report
from dispatcher.model.errors import ConnectionLost, StoreUnavailable
from dispatcher.model.shards import process_in, shard_name
from dispatcher.operations.calls.detached import serve_launched
from dispatcher.operations.context import Context
from dispatcher.operations.pools import Pool, Pools
from dispatcher.policies.planning.slo import SloClass, SloClasses
from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.ports import Connection, Log
from dispatcher.service.gate.process import GateProcess, GateStores
from dispatcher.service.gate.shard_gates import ShardGates
from dispatcher.service.link.finder import Fleet
from dispatcher.service.link.link import Link
from dispatcher.service.link.sharded import combine
from dispatcher.stores.hedged_log import HedgedLog
from gpu_worker.service.agent import Agent
from gpu_worker.service.executions.executions import Executions
from gpu_worker.service.executions.outbox import Outbox
from gpu_worker.service.shard_agents import ShardAgents, shard_agents
from gpu_worker.service.swapper import Swapper
from tests.support.world.store_faults import StormFaults
from tests.support.world.storm.engine import CONTEXT_TOKENS, DRAIN_S, MODELS, StormEngine, StormSwaps
from tests.support.world.storm.machine import CountingIds, Disk, MemoryJournal, SkewedClock
from tests.support.world.storm.records import Books
from tests.support.world.storm.shards import LostLog
from tests.support.world.storm.wire import SECRETS, StormWorkerClient, serve_orders

if TYPE_CHECKING:
    from tests.support.world.storm.world import World


SHARD = "pool"
DEADLINE_S = 60.0
CLASSES = (SloClass("soon", 3.0), SloClass("normal", 10.0), SloClass("batch", 30.0, is_deferred=True))


class NotedLink(Link):
    """A link that notes which calls without a key were refused."""

    def __init__(self, *arguments: Any, books: Books, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._books = books

    def send(self, command: Command, take: Callable[[Outcome | StoreUnavailable], None]) -> None:
        def noted(outcome: Outcome | StoreUnavailable) -> None:
            if isinstance(command, Accept) and isinstance(outcome, Refused) and not command.terms.durable:
                self._books.refusals[command.id] = outcome.code
            take(outcome)

        super().send(command, noted)


class NotedGate(GateProcess):
    """A gate process that notes when it lets its heir lead."""

    on_step_down: Callable[[], None]

    def step_down(self) -> None:
        self.on_step_down()
        super().step_down()


class Node:
    """`name`: of its host; `incarnation` counts from 0."""

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        self.world, self.name, self.incarnation = world, name, incarnation
        self.tag = f"{name}x{incarnation}"
        self.host = world.network.host(name)
        world.hosts.append(self.host)
        self.clock = SkewedClock()
        self.clock.skew_s = world.skew_of(name)
        weather = world.weather
        self.random = Random(f"{weather.seed} {self.tag}")
        self.faults = StormFaults(
            name,
            world.outage,
            Random(f"{weather.seed} store {self.tag}"),
            lambda: world.kill(self),
            fails=weather.store_fails,
            pauses=weather.store_pause,
            crashes=weather.crash if name.startswith("g") or not weather.rushed else 0.0,
            freeze=lambda seconds: world.freeze(self, seconds),
            freezes=weather.freezes,
        )
        self.faults.crash_at = world.crash_at.get(name, 0) if not incarnation else 0
        self.store = world.store.view(self.clock, self.faults)
        self.transport = world.network.transport(name)
        self.died = asyncio.Event()
        self.began_at = world.now()
        self.ids = CountingIds(self.tag)
        self.hedged: list[HedgedLog] = []
        self.fleets = [self._fleet(number) for number in range(weather.shards)]

    @property
    def is_up(self) -> bool:
        return not self.host.dead

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run work of this process for its whole life. Its end by an error is a violation."""
        task = self.host.spawn(work)
        task.add_done_callback(self._ended)
        return task

    def new_links(self, process: str) -> list[Link]:
        """Return a link to each shard."""
        store = self.store
        return [
            NotedLink(
                process_in(process, number),
                fleet,
                self.world.settings,
                mailboxes=store.mailboxes,
                launcher=self.world.launcher,
                answers=store,
                books=self.world.books,
            )
            for number, fleet in enumerate(self.fleets)
        ]

    def _fleet(self, number: int) -> Fleet:
        """Return what this process needs to reach a shard."""
        store = self.store
        if self.world.weather.shards > 1:
            store = self.world.store.view(self.clock, LostLog(self.world, number, self.faults))
        log: Log = store.log(shard_name(SHARD, number))
        if self.world.weather.hedged:
            log = HedgedLog(log)
            self.hedged.append(log)
        return Fleet(log, self.transport, self.clock, self.ids, SECRETS)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.host.dead:
            self.world.violate("processes go on", f"{self.tag}: {error!r}")


class GateNode(Node):
    def __init__(self, world: World, name: str, incarnation: int) -> None:
        super().__init__(world, name, incarnation)
        stores = GateStores(self.store.mailboxes, self.store, self.store, world.launcher)
        self.processes = [
            NotedGate(fleet, world.settings, stores, shard_name(SHARD, number))
            for number, fleet in enumerate(self.fleets)
        ]
        for number, process in enumerate(self.processes):
            process.on_step_down = partial(world.note_step_down, number)
        self.shard_gates = ShardGates(self.processes, self.clock)
        self.spawn(self._run())

    @property
    def leads(self) -> bool:
        """Whether it leads a shard."""
        return any(process.is_leader for process in self.processes)

    async def _run(self) -> None:
        await self.shard_gates.listen(f"{self.name}:1")
        await self.shard_gates.run()


class FrontNode(Node):
    def __init__(self, world: World, name: str, incarnation: int) -> None:
        super().__init__(world, name, incarnation)
        self.link = combine(self.new_links(self.tag))
        workers = StormWorkerClient(self.transport, self.clock, self.random, world.weather.duplicates)
        classes = SloClasses(CLASSES) if world.weather.due_times else None
        pools = Pools(Pool(self.link, self.clock, SHARD, DEADLINE_S, slo_classes=classes))
        self.context = Context(pools, self.store, workers, world.launcher, self.clock, self.ids)
        if world.weather.executors:
            self.spawn(serve_launched(self.context, pools.first))


class WorkerNode(Node):
    """It joins, and executes orders until it dies."""

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        super().__init__(world, name, incarnation)
        weather = world.weather
        fails = 0.0 if world.outage.is_over else weather.engine_fails
        first = MODELS[int(name[1:]) % weather.models]
        self.engine = StormEngine(world.books, name, incarnation, weather.seed, weather.token_s, fails, first)
        self.engine.has_small_cache = weather.throttled
        self.links = self.new_links(self.tag)
        journal = MemoryJournal(world.disks.setdefault(name, Disk()))
        self.outbox = Outbox(combine(self.links), self.clock, self.random, journal)
        self.executions = Executions(
            name, self.engine, weather.slots, self.clock, self.outbox, started_at=self.clock.now()
        )
        output_per_s = weather.slots / weather.token_s if weather.planned else 0.0
        swaps: Any = StormSwaps(self.engine, weather.models, self.random, WEIGHTED_TOKENS.output_weight * output_per_s)
        self.swapper = Swapper(swaps, self.executions, self.clock, DRAIN_S) if weather.models > 1 else None
        self.agents: Sequence[Agent] = ()
        self.spawn(self._run())

    def answered_s_ago(self, shard: int) -> float:
        """Return how old its last heartbeat is that the shard answered; infinity before it joins."""
        return self.clock.monotonic() - self.agents[shard]._answered_s if self.agents else inf

    async def _run(self) -> None:
        self.executions.recover()
        listener = await self.transport.listen(f"{self.name}:0", self._serve)
        identity = Report(
            self.name, listener.address, self.engine.facts.model, self.world.weather.slots, CONTEXT_TOKENS, 1.0, 0.0,
            False, 0.0, 0, (),
        )  # fmt: skip
        agent: Agent | ShardAgents
        if len(self.links) > 1:
            agent = shard_agents(
                identity, self.links, self.executions, self.clock, self.random, self.engine.changed
            )  # fmt: skip
            self.agents = agent.agents
        else:
            agent = Agent(
                identity, self.links[0], self.executions, self.clock, self.random, engine_changed=self.engine.changed,
                connection_lost=self.links[0].lost, swapper=self.swapper,
            )  # fmt: skip
            self.agents = [agent]
        while True:
            try:
                await agent.join()
                break
            except StoreUnavailable:
                continue
        await agent.run()

    async def _serve(self, connection: Connection) -> None:
        try:
            await serve_orders(connection, self.executions, self.name, self.clock)
        except ConnectionLost:
            return
