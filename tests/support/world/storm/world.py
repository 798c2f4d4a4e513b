"""The world of one run: store, log, network, clocks, processes, and the queue that launches durable calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dispatcher.model.errors import AnsweredError
from dispatcher.model.shards import shard_name
from dispatcher.model.tenants import Tenant
from dispatcher.model.usage import UsageRow
from dispatcher.operations.calls.detached import execute_detached
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.policies.throttling import ThrottleLimits
from dispatcher.policies.tiers import TENANT_TIERS
from dispatcher.shard.settings import ShardSettings, TierFloors
from tests.support.world.memory_store import MemoryData, MemoryStore
from tests.support.world.network import Host, Network
from tests.support.world.store_faults import Outage, run_at_once
from tests.support.world.storm.callers import TENANTS
from tests.support.world.storm.machine import Disk, SkewedClock
from tests.support.world.storm.nodes import SHARD, FrontNode, GateNode, Node, WorkerNode
from tests.support.world.storm.oracles.facts import Queues
from tests.support.world.storm.records import Books, RecordedLog
from tests.support.world.storm.shards import ShardView
from tests.support.world.storm.thrown_errors import ThrownErrors, is_thrown
from tests.support.world.storm.weather import Weather

if TYPE_CHECKING:
    from tests.support.world.storm.nodes import FrontNode


TIMES_MAX = 5
RETRY_S = 3.0
STEP_DOWN_S = 9.0
"""A leader that steps down slows its shard down for so long."""
VISIBLE_S = 70.0
"""A message is delivered again if its consumer has not ended after this time."""


class LaunchQueue:
    """ports.Launcher."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = Random(f"{world.weather.seed} queue")
        self._tasks: set[asyncio.Task[None]] = set()

    async def launch(self, invocation_id: str, attempt: int) -> None:
        times = self._random.randrange(1, TIMES_MAX) if self._random.random() < self._world.weather.duplicates else 1
        for _ in range(times):
            delay_s = 0.05 + self._random.random() ** 3 * (10.0 if times > 1 else 0.1)
            self._tasks.add(self._world.spawn(self._deliver(invocation_id, delay_s)))

    async def _deliver(self, call_id: str, delay_s: float) -> None:
        while True:
            await asyncio.sleep(delay_s)
            fronts = [front for front in self._world.fronts if front.is_up]
            if fronts and await self._consumed(self._random.choice(fronts), call_id):
                return
            delay_s = RETRY_S

    async def _consumed(self, front: FrontNode, call_id: str) -> bool:
        """False: the message is delivered again."""
        work = front.host.spawn(execute_detached(front.context, call_id))
        died = asyncio.ensure_future(front.died.wait())
        await asyncio.wait((work, died), timeout=VISIBLE_S, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if not work.done():
            return False
        error = work.exception()
        if error is not None and not isinstance(error, AnsweredError) and not is_thrown(error):
            self._world.violate("processes go on", f"execute_detached: {error!r}")
        return error is None


LIMITS = ThrottleLimits(user=3, app=4, window_s=4.0)
CROWD_MAX = 24
"""The most waiting calls of a tenant in a crowded run."""
FLOORS = TierFloors({"standard": 0.3, "background": 0.1}, slack=30.0)
SLACK = Slack(window=50.0, urgent_s=5.0)


def settings_of(weather: Weather) -> ShardSettings:
    """Return the settings of the run's shard."""
    return ShardSettings(
        order=weather.order,
        throttling=LIMITS if weather.throttled else None,
        tiers=FLOORS if weather.tiered else None,
        slack=SLACK if weather.due_times else None,
        is_sharded=weather.shards > 1,
    )


class Violation(NamedTuple):
    """`oracle`: the invariant, in words."""

    oracle: str
    message: str
    at: float


class ServedCall(Protocol):
    """A request at a front. `id`: of its call, once it has one."""

    id: str
    front: FrontNode
    deadline_at: float


class World:
    """`crash_at`: of a host, the step of its requests to the store at which its first process dies."""

    def __init__(self, weather: Weather, crash_at: dict[str, int] | None = None) -> None:
        self.weather = weather
        self.crash_at = crash_at or {}
        self.began_at = self.now()
        self.settings = settings_of(weather)
        self.violations: list[Violation] = []
        self.books = Books()
        self.logs = [RecordedLog(shard_name(SHARD, number), self.settings) for number in range(weather.shards)]
        self.shard, self.log = 0, self.logs[0]
        self.lost_shards: set[int] = set()
        """The shards of which the log answers no process."""
        self.losses: list[list[tuple[float, float]]] = [[] for _ in self.logs]
        """When the log of each shard was lost, and until when that slows the shard down."""
        self.outage = Outage()
        self.errors = ThrownErrors(weather)
        self.disks: dict[str, Disk] = {}
        self.network = Network(Random(f"{weather.seed} network"), self._latency)
        self.tenants = dict(TENANTS)
        if weather.crowded:
            self.tenants = {name: replace(each, queue_items_max=CROWD_MAX) for name, each in TENANTS.items()}
        if weather.tiered:
            tiers = zip(self.tenants.items(), TENANT_TIERS, strict=True)
            self.tenants = {name: replace(each, tier=tier) for (name, each), tier in tiers}
        data = MemoryData()
        data.logs.update({log.shard: log for log in self.logs})
        self.store = MemoryStore(SkewedClock(), data=data)
        self.launcher = LaunchQueue(self)
        self.hosts: list[Host] = []
        """All hosts so far, also the dead ones."""
        self.gates: list[GateNode] = []
        self.fronts: list[FrontNode] = []
        self.workers: list[WorkerNode] = []
        self.callers: dict[asyncio.Task[Any], ServedCall] = {}
        """The requests that are being served."""
        self.disturbed_until = self.began_at
        """Until then some fault was active that slows healthy processes down. The start counts as one: a takeover."""
        self.touched: set[str] = set()
        """The hosts that were ever killed, paused, cut off, or got a wrong clock."""
        self.queues = Queues()
        self.restarts = 0
        self.kills = 0
        self.down_since: dict[str, float] = {}
        """The hosts that are dead or paused."""
        self.resumed_at: dict[str, float] = {}
        """When hosts went on after their last pause."""
        self._skews: dict[str, float] = {}
        self._random = Random(f"{weather.seed} world")
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        for tenant in self.tenants.values():
            run_at_once(self.store.put_tenant(tenant, expected_version=None))
        if not self.weather.leaderless:
            self.start_gates()
        for number in range(self.weather.workers):
            self.workers.append(WorkerNode(self, f"w{number}", 0))
        for number in range(self.weather.fronts):
            self.fronts.append(FrontNode(self, f"f{number}", 0))

    def start_gates(self) -> None:
        for number in range(self.weather.gates):
            self.gates.append(GateNode(self, f"g{number}", 0))

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def views(self) -> list[World]:
        """Return the world as the oracles look at it: one view for each shard."""
        if len(self.logs) == 1:
            return [self]
        return [ShardView(self, number) for number in range(len(self.logs))]  # type: ignore[misc]

    def living(self) -> set[str]:
        """Return the names that the fronts which are up have in the shard."""
        return {front.tag for front in self.fronts if front.is_up}

    def was_lost(self, since: float, until: float) -> bool:
        """Return whether the shard alone was slowed down at some time between."""
        return False

    def held_on(self, worker: str) -> int:
        """Return the attempts that the logs of all shards hold for a worker."""
        known = (log.reference.state.workers.get(worker) for log in self.logs)
        return sum(len(each.running) for each in known if each is not None)

    def usage_rows(self, rows: Sequence[tuple[str, UsageRow]]) -> Iterator[UsageRow]:
        """Return the rows of the shard."""
        return (row for _, row in rows)

    def nodes(self) -> list[Node]:
        return [*self.gates, *self.workers, *self.fronts]

    def note(self, text: str) -> None:
        self.books.note(self.now(), text)

    def violate(self, oracle: str, message: str) -> None:
        self.note(f"VIOLATION {oracle}: {message}")
        self.violations.append(Violation(oracle, message, self.now() - self.began_at))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work of the world itself, on no host."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.violate("the simulation itself works", repr(error))

    def lowest_limit(self, tenant: str) -> int:
        """Return the lowest limit of waiting calls that the tenant may have had."""
        return 1 if self.weather.tenant_changes else self.tenants[tenant].queue_items_max

    # What the weather does

    def tenant(self, name: str) -> Tenant:
        return self.tenants[name]

    def skew_of(self, host: str) -> float:
        """Return by how much the host's clock is ahead."""
        if self.outage.is_over:
            return 0.0
        most = self.weather.skew_s
        return self._skews.setdefault(host, (2 * self._random.random() - 1) * most)

    def set_skew(self, host: str, skew_s: float) -> None:
        self._skews[host] = skew_s
        for node in self.nodes():
            if node.name == host:
                node.clock.skew_s = skew_s

    def kill(self, node: Node) -> None:
        """End the node's process at its next await."""
        if node.host.dead:
            return
        self.note(f"kill {node.tag}")
        self.kills += 1
        self.touched.add(node.name)
        self.down_since[node.name] = self.now()
        node.host.kill()
        node.died.set()

    def restart(self, node: Node) -> None:
        """Begin a new process on a dead host."""
        if not node.host.dead or node not in self.nodes():
            return
        self.note(f"restart {node.name}")
        self.restarts += 1
        self.down_since.pop(node.name, None)
        incarnation = node.incarnation + 1
        if isinstance(node, GateNode):
            self.gates[self.gates.index(node)] = GateNode(self, node.name, incarnation)
        elif isinstance(node, WorkerNode):
            self.workers[self.workers.index(node)] = WorkerNode(self, node.name, incarnation)
        elif isinstance(node, FrontNode):
            self.fronts[self.fronts.index(node)] = FrontNode(self, node.name, incarnation)

    def pause(self, node: Node) -> None:
        if not node.host.dead and not node.host.paused:
            self.note(f"pause {node.tag}")
            self.touched.add(node.name)
            self.down_since[node.name] = self.now()
            node.host.pause()

    def resume(self, node: Node) -> None:
        if not node.host.dead and node.host.paused:
            self.note(f"resume {node.tag}")
            paused_at = self.down_since.pop(node.name, self.now())
            if self.weather.suspends:
                node.clock.stand_still(self.now() - paused_at)
            self.resumed_at[node.name] = self.now()
            node.host.resume()

    def freeze(self, node: Node, seconds: float) -> None:
        """Pause the process for so long."""
        self.pause(node)
        asyncio.get_running_loop().call_later(seconds, self.resume, node)

    def note_step_down(self, shard: int) -> None:
        """Note that the leader of a shard lets its heir lead. This disturbs no other shard."""
        self.note(f"the leader of shard {shard} steps down")
        self.losses[shard].append((self.now(), self.now() + STEP_DOWN_S))

    def disturb(self, seconds: float) -> None:
        """Note a fault that slows healthy processes down for so long."""
        self.disturbed_until = max(self.disturbed_until, self.now() + seconds)

    def _latency(self, random: Random) -> float:
        late = self.weather.latency_s
        if not self.weather.mild and not self.outage.is_over and random.random() < 0.01:
            late *= 20
        return late * (0.5 + random.random())
