"""Processes of a gate in virtual time: gate processes, fronts and workers, each on a host of its own."""

from __future__ import annotations

from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

from benchmarks.gate_model.requests import ModelledStore, ProcessCpu, Weather
from benchmarks.gate_model.table import ModelledTable
from dispatcher.model.fleet_secrets import FleetSecrets
from dispatcher.service.gate.process import GateProcess, GateStores
from dispatcher.service.gate.replica import Replica
from dispatcher.service.link.finder import Fleet
from dispatcher.service.link.link import Link
from dispatcher.shard.settings import ShardSettings
from tests.support.world.network import Host, Network, install_hosts
from tests.support.world.virtual_time import LoopClock

SHARD = "default"
SECRETS = FleetSecrets("a secret of the whole fleet")
NETWORK_S = 0.0015
"""A frame's way in the mean, log-normal (the design's model)."""

T = TypeVar("T")


def network_latency_s(random: Random) -> float:
    return NETWORK_S * random.lognormvariate(-0.045, 0.3)


class SeededIds:
    def __init__(self, random: Random) -> None:
        self._random = random

    def new(self) -> str:
        return "".join(self._random.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=12))

    def secret(self) -> str:
        return self.new() + self.new()


class Launches:
    """ports.Launcher that starts nothing."""

    async def launch(self, invocation_id: str, attempt: int) -> None:
        return None


class ModelledFleet:
    """Make it within a virtual-time loop. Everything is seeded. `cpu_s`: client CPU of a request to DynamoDB.

    `client` and `table_name`: a real DynamoDB client instead of the modelled table; its requests take no virtual time
    but that of the model.
    """

    def __init__(
        self,
        seed: int,
        *,
        p99_s: float = 0.0,
        cpu_s: float = 0.0015,
        hedged: bool = True,
        stripes: int = 1,
        settings: ShardSettings | None = None,
        client: Any = None,
        table_name: str = "headgate",
    ) -> None:
        install_hosts()
        self.random = Random(seed)
        self.clock = LoopClock()
        self.settings = settings or ShardSettings()
        self.table = ModelledTable(self.clock)
        self.weather = Weather(self.random, p99_s)
        self.network = Network(self.random, network_latency_s)
        self.ids = SeededIds(self.random)
        self.gates: dict[str, GateProcess] = {}
        self._cpu_s, self._hedged, self._stripes = cpu_s, hedged, stripes
        self._client, self._table_name = client or self.table, table_name

    def host(self, name: str) -> Host:
        return self.network.host(name)

    def store(self, slow: float = 1.0) -> ModelledStore:
        return ModelledStore(self._client, self._table_name, self.weather, ProcessCpu(self._cpu_s, slow), self.clock)

    async def gate(self, name: str) -> GateProcess:
        """Start a gate process on a host of its own."""
        store, host = self.store(), self.host(name)
        stores = GateStores(store.mailboxes, store.invocations, store.projections, Launches())
        gate = self.gates[name] = GateProcess(self._reach(store, name), self.settings, stores, SHARD)
        await host.spawn(gate.listen(f"{name}:0"))
        host.spawn(gate.run())
        return gate

    def link(self, name: str, store: ModelledStore) -> Link:
        """Make the link of a process. Use it on its host."""
        return Link(
            name,
            self._reach(store, name),
            self.settings,
            mailboxes=store.mailboxes,
            launcher=Launches(),
            answers=store.invocations,
        )

    def on(self, name: str, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Run a coroutine on a host."""
        return _joined(self.host(name), work)

    @property
    def leader(self) -> str:
        """The name of a living gate process that leads; empty if there is none."""
        leading = (name for name, gate in self.gates.items() if gate.is_leader and not self.network.hosts[name].dead)
        return next(leading, "")

    @property
    def takeovers(self) -> int:
        return sum(gate.takeovers for gate in self.gates.values())

    def replica(self, name: str) -> Replica:
        """Return a replica of the log, of a process of its own."""
        return Replica(self.store().log(SHARD), self.settings, self.clock, name)

    def _reach(self, store: ModelledStore, name: str) -> Fleet:
        log = store.log(SHARD, hedged=self._hedged, stripes=self._stripes)
        return Fleet(log, self.network.transport(name), self.clock, self.ids, SECRETS)


async def _joined(host: Host, work: Coroutine[Any, Any, T]) -> T:
    result: T = await host.spawn(work)
    return result
