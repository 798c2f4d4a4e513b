"""What goes wrong between and in processes: each kind of fault is a loop with a rate, until the trouble is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from dispatcher.model.commands import Command, Retire
from dispatcher.model.errors import StoreUnavailable
from dispatcher.policies.clocks import Share
from dispatcher.ports import GateLink
from dispatcher.service.load_watch import LoadWatch
from tests.support.world.store_faults import run_at_once
from tests.support.world.storm.nodes import FrontNode, Node
from tests.support.world.storm.world import World

TAKEOVER_S = 9.0
"""After the death of a gate process: the takeover, and the time in which no loss is decided."""
LEASE_S = 14.0
"""After so long a silent worker is taken for lost: it is found silent, then its lease and a margin pass."""
BUSY_S = 12.0
STOPPED_S = 5.5
"""A gate process has ended so long after an orderly stop."""
LOST_SHARD_S = 9.0
"""After a shard's log is back: a takeover, and the time in which no loss is decided."""
LONGEST_S = 20.0
"""The longest pause and partition, and by how much an isolation may last longer than a lease."""


class Disturbances:
    def __init__(self, world: World) -> None:
        self._world = world
        self._random = Random(f"{world.weather.seed} disturbances")
        self._loops: list[asyncio.Task[None]] = []
        self._damaged: set[int] = set()
        """Positions of damaged snapshots."""
        self._written: set[int] = set()
        """Positions of all snapshots seen so far."""
        self._gone: set[str] = set()
        """Hosts that never come back."""

    def start(self) -> None:
        weather = self._world.weather
        kinds: list[tuple[float, Callable[[], Coroutine[Any, Any, None]]]] = [
            (weather.kills, self._kill),
            (weather.pauses, self._pause),
            (weather.cuts, self._cut),
            (weather.isolations, self._isolate),
            (weather.store_gone, self._store_gone),
            (weather.jumps, self._jump),
            (weather.tears, self._tear),
            (weather.tenant_changes, self._change_tenant),
            (1.0 if weather.expiry else 0.0, self._expire),
            (weather.retires, self._retire),
            (0.3 if weather.looks else 0.0, self._look),
            (weather.stops, self._stop),
            (1.0 if weather.rushed else 0.0, self._revive),
            (weather.shard_losses, self._lose_shard),
        ]
        for number, (rate, act) in enumerate(kinds):
            if rate:
                self._loops.append(self._world.spawn(self._repeat(rate, act, Random(f"{weather.seed} {number}"))))
        if weather.isolations:
            self._loops.append(self._world.spawn(self._isolate_busy()))

    def end(self) -> None:
        """Let nothing fail any more, and bring back what is dead, paused or cut off."""
        world = self._world
        for loop in self._loops:
            loop.cancel()
        world.note("calm")
        world.outage.is_over = True
        for shard in world.lost_shards:
            world.losses[shard].append((world.now(), world.now() + LOST_SHARD_S))
        world.lost_shards.clear()
        world.outage.cut_off.clear()
        world.network.heal()
        for node in world.nodes():
            world.set_skew(node.name, 0.0)
            world.resume(node)
            if node.name not in self._gone:
                world.restart(node)
        if world.weather.leaderless:
            world.start_gates()
        for worker in world.workers:
            worker.engine.fails = 0.0
        for front in world.fronts:
            front.context.workers.duplicates = 0.0  # type: ignore[attr-defined]

    async def _repeat(self, rate: float, act: Callable[[], Coroutine[Any, Any, None]], random: Random) -> None:
        while True:
            await asyncio.sleep(random.expovariate(rate))
            self._world.spawn(act())

    def _victim(self) -> Node:
        """Return a process; one that leads more often than others."""
        leaders = [gate for gate in self._world.gates if gate.is_up and gate.leads]
        if leaders and self._random.random() < 0.4:
            return self._random.choice(leaders)
        if self._world.weather.shared:  # the callers of one call stay at their fronts
            return self._random.choice([*self._world.gates, *self._world.workers])
        return self._random.choice(self._world.nodes())

    async def _kill(self) -> None:
        node, random = self._victim(), self._random
        if node in self._world.gates:
            self._world.disturb(TAKEOVER_S)
        self._world.kill(node)
        fate = random.random()
        if fate < self._world.weather.lost:
            self._lose(node)
        if fate < 2 * self._world.weather.lost:
            return  # until the calm, or for good
        await asyncio.sleep(random.random() ** 2 * 8.0)
        if node.name not in self._gone:
            self._world.restart(node)

    def _lose(self, node: Node) -> None:
        """Let the host never come back, if another one of its kind does."""
        kind = [other for other in self._world.nodes() if other.name[0] == node.name[0]]
        if any(other.name not in self._gone and other is not node for other in kind):
            self._world.note(f"{node.name} is gone for good")
            self._gone.add(node.name)

    async def _revive(self) -> None:
        """Bring all gate processes back."""
        for gate in list(self._world.gates):
            self._world.restart(gate)

    async def _pause(self) -> None:
        node = self._victim()
        self._world.pause(node)
        await asyncio.sleep(self._random.random() ** 2 * LONGEST_S)
        self._world.resume(node)

    async def _cut(self) -> None:
        """Cut one host off from the others, from some of them, or from the store; or a worker from one front."""
        world, random = self._world, self._random
        if random.random() < 0.4:
            front, worker = random.choice(world.fronts), random.choice(world.workers)
            return await self._cut_off(worker, [front.name], False, random.random() * LONGEST_S)
        node = self._victim()
        others = [other.name for other in world.nodes() if other is not node]
        share = random.choice([0.3, 0.6, 1.0])
        chosen = [name for name in others if random.random() < share]
        from_store = random.random() < 0.4 and not world.weather.apart
        return await self._cut_off(node, chosen, from_store, random.random() ** 2 * LONGEST_S)

    async def _isolate_busy(self) -> None:
        """Isolate a worker in the middle of its work."""
        await asyncio.sleep(self._random.random() * BUSY_S)
        while not (busy := [worker for worker in self._world.workers if worker.is_up and worker.engine.running]):
            await asyncio.sleep(0.1)
        self._world.spawn(self._isolated(self._random.choice(busy)))

    async def _isolate(self) -> None:
        await self._isolated(self._victim())

    async def _isolated(self, node: Node) -> None:
        """Pause a process, or cut it off from the gate and perhaps from the fronts, for longer than a lease."""
        world, random = self._world, self._random
        seconds = LEASE_S + random.random() * LONGEST_S
        if random.random() < 0.3:
            world.set_skew(node.name, -random.random() * 3.0)
        if random.random() < (0.7 if world.weather.suspends else 0.4):
            world.pause(node)
            await asyncio.sleep(seconds)
            return world.resume(node)
        if node in world.workers and random.random() < 0.5:
            world.set_skew(node.name, -random.random() * world.weather.set_back_s)
        near = world.fronts if random.random() < 0.5 else []
        others = [other.name for other in world.nodes() if other is not node and other not in near]
        return await self._cut_off(node, others, True, seconds)

    async def _cut_off(self, node: Node, chosen: list[str], from_store: bool, seconds: float) -> None:
        world = self._world
        if from_store:
            world.outage.cut_off.add(node.name)
        world.touched.update((node.name, *chosen))
        for name in chosen:
            world.network.cut(node.name, name)
        world.note(f"cut {node.tag} from {' '.join(chosen)}{' and the store' if from_store else ''}")
        await asyncio.sleep(seconds)
        world.outage.cut_off.discard(node.name)
        for name in chosen:
            world.network.cuts.discard(frozenset((node.name, name)))
        world.network.flow()
        world.note(f"{node.name} is connected again")

    async def _store_gone(self) -> None:
        self._world.outage.gone = self._random.choice([0.3, 0.8, 1.0])
        self._world.note(f"the store fails: {self._world.outage.gone}")
        await asyncio.sleep(self._random.random() ** 2 * 8.0)
        self._world.outage.gone = 0.0

    async def _lose_shard(self) -> None:
        """Let the log of one shard answer no process, also beyond a worker's lease. This disturbs no other shard."""
        world = self._world
        shard, seconds = self._random.randrange(world.weather.shards), 2.0 + self._random.random() * 18.0
        if shard in world.lost_shards:
            return
        world.note(f"the log of shard {shard} is lost")
        world.losses[shard].append((world.now(), world.now() + seconds + LOST_SHARD_S))
        world.lost_shards.add(shard)
        await asyncio.sleep(seconds)
        world.lost_shards.discard(shard)
        world.note(f"the log of shard {shard} is back")

    async def _jump(self) -> None:
        node = self._victim()
        skew_s = (2 * self._random.random() - 1) * 3.0
        self._world.note(f"clock of {node.name}: {skew_s:+.3f} s")
        self._world.set_skew(node.name, skew_s)

    async def _tear(self) -> None:
        """Damage the newest snapshot, if the one before it is whole, or it is the first and no entry is gone yet.

        Entries live beyond two snapshots (rule 12): no log survives the loss of the last two.
        """
        log = self._world.log
        positions = self._snapshots()
        self._written.update(positions)
        if not positions or positions[-1] in self._damaged:
            return
        others = [each for each in sorted(self._written)[-2:] if each != positions[-1]]
        is_first = not others and 0 in log.entries
        if not is_first and not any(each in positions and each not in self._damaged for each in others):
            return
        self._damaged.add(positions[-1])
        self._world.note(f"snapshot {positions[-1]} is damaged")
        self._random.choice([log.tear_snapshot, log.damage_snapshot, log.unfinish_snapshot])(positions[-1])

    async def _expire(self) -> None:
        """Expire entries below the last two whole snapshots, in any order."""
        log, now = self._world.log, self._world.now()
        whole = [position for position in self._snapshots() if position not in self._damaged]
        if len(whole) < 2:
            return
        old = [
            position
            for position, at in log.written_at.items()
            if position < whole[-2] and at < now - EXPIRED_AFTER_S and self._random.random() < 0.7
        ]
        if old:
            self._world.note(f"expired: {len(old)} entries below {whole[-2]}")
        log.expire(old)

    def _snapshots(self) -> list[int]:
        return sorted({position for position, _ in self._world.log.manifests})

    async def _change_tenant(self) -> None:
        """Change a tenant, or delete it and create it again. Versions only grow (operations/administration.py)."""
        world, random = self._world, self._random
        name = random.choice(sorted(world.tenants))
        old = world.tenants[name]
        rate = random.choice([0.0, 0.0, 10.0, 50.0])
        share = Share(weight=random.choice([0.5, 1.0, 2.0]), rate_per_s=rate, burst=rate * 5)
        new = replace(old, share=share, queue_items_max=random.choice([1, 4, 8]), version=old.version + 1)
        world.tenants[name] = new
        run_at_once(world.store.put_tenant(new, expected_version=old.version))

    async def _retire(self) -> None:
        """Let a worker retire or serve again, as the sweep does. The sender of the command may die meanwhile."""
        random, fronts = self._random, [front for front in self._world.fronts if front.is_up]
        if fronts:
            front = random.choice(fronts)
            command = Retire(random.choice(self._world.workers).name, is_over=random.random() < 0.3)
            front.spawn(_sent(front.link, command))

    async def _look(self) -> None:
        """Ask for usage, load and delays, as operators and the sweep do."""
        fronts = [front for front in self._world.fronts if front.is_up]
        if fronts:
            front = self._random.choice(fronts)
            front.spawn(_looked(front))

    async def _stop(self) -> None:
        """Stop a gate process as a deployment does, and begin it again."""
        gates = [gate for gate in self._world.gates if gate.is_up and not gate.host.paused]
        if not gates:
            return
        gate = self._random.choice(gates)
        self._world.note(f"stop {gate.tag}")
        self._world.disturb(TAKEOVER_S)
        gate.shard_gates.stop()
        await asyncio.sleep(STOPPED_S)
        self._world.kill(gate)
        await asyncio.sleep(self._random.random())
        self._world.restart(gate)


async def _looked(front: FrontNode) -> None:
    with suppress(StoreUnavailable):
        await front.link.usage(None, 0, 1 << 40)
        watch = LoadWatch(front.fleets[0].log, front.world.settings, front.clock)
        await watch.load()
        await watch.delays()
        await watch.suspended()


async def _sent(link: GateLink, command: Command) -> None:
    with suppress(StoreUnavailable):
        await link.do(command)


EXPIRED_AFTER_S = 7.0
"""Scaled down, as the age up to which a position may be written (scale.py): more than that and the skew of a clock."""
