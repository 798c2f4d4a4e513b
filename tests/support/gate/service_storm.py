"""A storm over dispatcher/service: simple fronts and workers over links, and random faults of hosts, network and store.

Workers and fronts do only what the protocol asks of them. What is checked is in `check`: slots, one end a call, and
that nothing waits or is held after the faults are over.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from dispatcher.model.commands import Attempts, Cancel, End, Offer, Over, Refused, Report, Return, Unknown
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.facts import Dropped, Ended
from dispatcher.service.link.link import Link
from dispatcher.shard.codec import decode_entry
from tests.support.gate.service_world import SHARD, World, accept, tailed

OFFER_S = 2.0
LEASE_S = 10.0
SLOTS = 3
SERVICE_S = 0.4


class SimpleWorker:
    """A worker that counts its slots, fences what it must not begin, and reports ends until they are in the log."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.link: Link = world.link(name)
        self.running: dict[str, asyncio.Task[None]] = {}
        self.seen: set[str] = set()
        self.held_since: dict[str, float] = {}
        self.unknown_since: dict[str, float] = {}
        self.answered_at = world.clock.now()
        self.most = 0

    async def run(self) -> None:
        while True:
            await asyncio.gather(self._report(), asyncio.sleep(1.0))

    async def begin(self, call_id: str, attempt: int) -> bool:
        """Begin an attempt that a front brings. False: refused, for good."""
        name = f"{call_id}#{attempt}"
        if name in self.seen or len(self.running) >= SLOTS or self._lease_is_over():
            if name not in self.seen:
                self.seen.add(name)
                self._soon(Return(call_id, attempt, "refused", self.name))
            return False
        self.seen.add(name)
        self.running[name] = asyncio.get_running_loop().create_task(self._execute(call_id, attempt))
        self.most = max(self.most, len(self.running))
        return True

    async def _execute(self, call_id: str, attempt: int) -> None:
        name = f"{call_id}#{attempt}"
        try:
            await asyncio.sleep(SERVICE_S * (0.5 + self.world.random.random()))
        finally:
            self.running.pop(name, None)
        self._soon(End(call_id, attempt, "done", 10, 20))

    def _soon(self, command: End | Return) -> None:
        asyncio.get_running_loop().create_task(self._until_written(command))

    async def _until_written(self, command: End | Return) -> None:
        while True:
            try:
                await self.link.do(command)
                return
            except StoreUnavailable:
                await asyncio.sleep(0.2)

    async def _report(self) -> None:
        sent_at = self.world.clock.now()
        if self._lease_is_over():
            for task in list(self.running.values()):
                task.cancel()
        live = tuple(self.running)
        command = Report(self.name, f"http://{self.name}", "m", SLOTS, 8192, 1.0, 1000.0, False, 0.0, 0, live)
        try:
            outcome = await self.link.do(command)
        except StoreUnavailable:
            return
        if isinstance(outcome, Attempts):
            self.answered_at = max(self.answered_at, sent_at)
            self._compare(set(outcome.held))

    def _lease_is_over(self) -> bool:
        return self.world.clock.now() - self.answered_at > LEASE_S - 1

    def _compare(self, held: set[str]) -> None:
        now = self.world.clock.now()
        self.held_since = {name: self.held_since.get(name, now) for name in held}
        for name, since in self.held_since.items():
            if name not in self.seen and now - since > OFFER_S:
                self.seen.add(name)
                call_id, _, attempt = name.partition("#")
                self._soon(Return(call_id, int(attempt), "not_begun", self.name))
        self.unknown_since = {n: self.unknown_since.get(n, now) for n in self.running if n not in held}
        for name, since in self.unknown_since.items():
            if now - since > 2.0 and name in self.running:
                self.running[name].cancel()


class SimpleFront:
    """A front with callers that wait up to `deadline_s`."""

    def __init__(self, world: StormWorld, name: str, workers: dict[str, SimpleWorker]) -> None:
        self.world, self.name, self.workers = world, name, workers
        self.link: Link = world.link(name)
        self.open: set[str] = set()
        self.outcomes: Counter[str] = Counter()
        self.longest_s = 0.0

    async def call(self, deadline_s: float = 60.0) -> None:
        began = self.world.clock.now()
        call_id = self.link.new_id()
        self.open.add(call_id)
        try:
            async with asyncio.timeout(deadline_s):
                self.outcomes[await self._followed(call_id, began + deadline_s)] += 1
        except TimeoutError:
            self.outcomes["expired"] += 1
            await self._cancel(call_id)
        self.open.discard(call_id)
        self.link.forget(call_id)
        self.longest_s = max(self.longest_s, self.world.clock.now() - began)

    async def _followed(self, call_id: str, deadline_at: float) -> str:
        call = accept(call_id, self.name, self.world.clock.now(), tenant=self.name, deadline_at=deadline_at)
        try:
            found = await self.link.do(call)
        except StoreUnavailable:
            await self._cancel(call_id)
            return "unavailable"
        while True:
            if isinstance(found, Refused):
                return found.code
            if isinstance(found, Over):
                return found.outcome
            if isinstance(found, Unknown):
                return "unknown"
            if isinstance(found, Offer):
                await self._bring(found)
            news = None
            while news is None:
                news = await self.link.news(call_id, 1.0)
                if news is None and isinstance(found, Offer) and self._ended(found):
                    return "done"
            found = news

    async def _bring(self, offer: Offer) -> None:
        await asyncio.sleep(0.002)
        worker = self.workers[offer.worker]
        host = self.world.network.hosts[offer.worker]
        if host.dead:
            await self._return(offer)
        elif not self.world.network.is_cut(self.world.host(self.name), host):
            host.spawn(worker.begin(offer.id, offer.attempt))

    def _ended(self, offer: Offer) -> bool:
        worker = self.workers[offer.worker]
        name = f"{offer.id}#{offer.attempt}"
        return name in worker.seen and name not in worker.running and self.world.is_done(offer.id)

    async def _return(self, offer: Offer) -> None:
        try:
            await self.link.do(Return(offer.id, offer.attempt, "unreachable", offer.worker))
        except StoreUnavailable:
            return

    async def _cancel(self, call_id: str) -> None:
        try:
            await self.link.do(Cancel(call_id, "expired"))
        except StoreUnavailable:
            return


class StormWorld(World):
    """A world with `gates`, fronts and workers. `log_ends` are read from the log itself."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, tailed(0.05))
        self.workers: dict[str, SimpleWorker] = {}
        self.fronts: dict[str, SimpleFront] = {}

    def is_done(self, call_id: str) -> bool:
        return call_id in self.log_ends()

    def log_ends(self) -> Counter[str]:
        ends: Counter[str] = Counter()
        for data in self.data.logs[SHARD].entries.values():
            for fact in decode_entry(data).facts:
                if isinstance(fact, Ended | Dropped):
                    ends[fact.id] += 1
        return ends

    async def begin(self, gates: int = 3, fronts: int = 3, workers: int = 2) -> None:
        await asyncio.gather(*(self.gate(f"g{number}") for number in range(gates)))
        for number in range(workers):
            worker = self.workers[f"w{number}"] = SimpleWorker(self, f"w{number}")
            self.host(worker.name).spawn(worker.run())
        await asyncio.sleep(1)
        for number in range(fronts):
            self.fronts[f"f{number}"] = SimpleFront(self, f"f{number}", self.workers)

    async def load(self, until: float, rate_per_s: float) -> None:
        """Let callers arrive at the fronts that live."""
        while self.clock.now() < until:
            await asyncio.sleep(self.random.expovariate(rate_per_s))
            live = [front for front in self.fronts.values() if not self.host_of(front.name).dead]
            front = self.random.choice(live)
            self.host(front.name).spawn(front.call())

    def host_of(self, name: str):  # type: ignore[no-untyped-def]
        return self.network.hosts[name]

    async def faults(self, until: float) -> None:
        """Do something bad every now and then, each for a while."""
        rate = self.random.uniform(0.1, 1.0)
        kinds = [self._pause, self._cut, self._kill_gate, self._lose, self._away, self._kill_front]
        weights = [self.random.random() for _ in kinds]
        while self.clock.now() < until:
            await asyncio.sleep(self.random.expovariate(rate))
            fault = self.random.choices(kinds, weights)[0]
            asyncio.get_running_loop().create_task(fault())

    def _any(self) -> str:
        live = [name for name, host in self.network.hosts.items() if not host.dead]
        return self.random.choice(live)

    async def _pause(self) -> None:
        host = self.host_of(self._any())
        if not host.paused:
            host.pause()
            await asyncio.sleep(self.random.choice([0.3, 2.0, 5.0]))
            if not host.dead:
                host.resume()

    async def _cut(self) -> None:
        self.network.cut(self._any(), self._any())
        await asyncio.sleep(self.random.choice([0.5, 3.0, 8.0]))
        self.network.heal()

    async def _kill_gate(self) -> None:
        name = self.random.choice(sorted(self.gates))
        if not self.host_of(name).dead:
            self.host_of(name).kill()
            await asyncio.sleep(self.random.choice([0.1, 3.0]))
            await self.gate(name)

    async def _kill_front(self) -> None:
        live = [name for name in self.fronts if not self.host_of(name).dead]
        if len(live) > 1:
            self.host_of(self.random.choice(live)).kill()

    async def _lose(self) -> None:
        self.faults_of(self._any()).lost.append(self.random.choice(["append", "read_log", "last_entry", "append"]))

    async def _away(self) -> None:
        faults = self.faults_of(self._any())
        faults.away = True
        await asyncio.sleep(self.random.choice([0.2, 1.0, 4.0]))
        faults.away = False

    def faults_of(self, name: str):  # type: ignore[no-untyped-def]
        self.store(name)
        return self.faults_by_host[name]


async def storm(seed: int, length_s: float = 40.0) -> StormWorld:
    """Run a storm and the calm after it. Raises AssertionError."""
    world = StormWorld(seed)
    await world.begin()
    until = world.clock.now() + length_s
    faults = asyncio.get_running_loop().create_task(world.faults(until))
    await world.load(until, world.random.uniform(2, 12))
    await faults
    await asyncio.sleep(10)
    for host in world.network.hosts.values():
        assert host.dead or not host.paused
    await asyncio.sleep(100)
    await check(world)
    return world


async def check(world: StormWorld) -> None:
    replica = await world.folded()
    ends = world.log_ends()
    assert all(count == 1 for count in ends.values()), "a call ended twice"
    assert all(worker.most <= SLOTS for worker in world.workers.values())
    for front in world.fronts.values():
        if not world.host_of(front.name).dead:
            assert not front.open, f"calls of {front.name} never returned: {sorted(front.open)[:3]}"
    assert not replica.shard.state.calls, f"still in the shard: {list(replica.shard.state.calls)[:3]}"
    assert len(world.leaders) == 1
