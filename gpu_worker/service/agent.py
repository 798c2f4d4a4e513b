"""The agent: tells the gate that this worker lives, what it can take and what it runs, and obeys what it learns.

    join ──▶ beat, every beat_s ──▶ … ──▶ SIGTERM: draining, still beating ──▶ finish what runs ──▶ leave

A beat renews all leases of the worker at once, for what it names as live; its answer carries the leases as they are
stored. An execution whose lease is gone belongs to another attempt: its work is aborted, and settled by nobody here. A
seat that is gone means that the gate took this worker for dead: everything is aborted and it registers anew. And where
no beat has come through for lease_s less a margin above any clock skew, it aborts everything by itself, before the gate
may give its work to someone else: a watch beside the beats, because a beat may hang.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.fleet import Worker
from dispatcher.ports import Clock, WorkerRegistry
from gpu_worker.policies.capacity import MeasuredCapacity
from gpu_worker.service.executions import Executions

logger = logging.getLogger("headgate.agent")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Seconds."""

    heartbeat_s: float = 2.0
    lease_s: float = 10.0
    """How long the gate takes this worker for alive after a beat."""
    margin_s: float = 3.0
    """Work is aborted this long before the lease ends: more than clocks are apart."""
    watch_s: float = 0.25
    """How late that may be noticed."""
    join_s: float = 60.0
    """How long the first registration is tried for."""
    join_pause_s: float = 0.5
    join_pause_max_s: float = 8.0
    drain_s: float = 25.0
    """How long what runs may take to finish, once told to stop…"""
    abort_s: float = 5.0
    """… then to end, once aborted, and be settled; and how long leaving may take."""


class NoSeat(Exception):
    """All seats of the pool are taken."""


@dataclass(eq=False)
class Agent:
    """`worker`: as it registers; `random`: for jitter, so that a fleet does not beat in step."""

    worker: Worker
    registry: WorkerRegistry
    executions: Executions
    clock: Clock
    random: Random
    settings: AgentSettings = field(default_factory=AgentSettings)
    capacity: MeasuredCapacity = field(default_factory=MeasuredCapacity)
    _seated: Worker | None = None
    _draining: bool = False
    _heartbeat_at: float = 0.0
    _heartbeat_task: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def join(self) -> None:
        """Register, again and again while the table is away or no seat is free. Raises what the last try raised."""
        until = self.clock.now() + self.settings.join_s
        pause = self.settings.join_pause_s
        while True:
            try:
                return await self.register()
            except (StoreUnavailable, NoSeat) as error:
                wait = self._jittered(pause)
                if self.clock.now() + wait > until:
                    raise
                logger.warning("not registered yet: %s", error)
            await self.clock.sleep(wait)
            pause = min(2 * pause, self.settings.join_pause_max_s)

    async def register(self) -> None:
        """Take a seat. Raises NoSeat, StoreUnavailable."""
        now = self.clock.now()
        self._seated = await self.registry.register(self._as_now(self.worker, now))
        if self._seated is None:
            raise NoSeat(f"all seats of pool {self.worker.pool!r} are taken")
        self._renewed(now)

    async def serve(self, until: Awaitable[object]) -> None:
        """Beat until told to stop, and on while draining: what still runs holds leases."""
        told, heartbeating = asyncio.ensure_future(until), asyncio.ensure_future(self.run())
        await asyncio.wait({told, heartbeating}, return_when=asyncio.FIRST_COMPLETED)
        if heartbeating.done():
            logger.error("the beats ended: %s", type(heartbeating.exception()).__name__)
            await self._give_up()
        await self.drain()
        told.cancel()
        heartbeating.cancel()
        await asyncio.wait({told, heartbeating})

    async def run(self) -> None:
        """Beat, and watch over the lease, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._heartbeat_loop())
            tasks.create_task(self._watch())

    async def heartbeat(self) -> None:
        """One heartbeat, or a new registration where the seat is lost. What goes wrong is logged: the watch counts."""
        try:
            async with self._heartbeat_task:
                await self._heartbeat()
        except (StoreUnavailable, NoSeat) as error:
            logger.warning("beat failed: %s", error)
        except Exception as error:  # a fault of ours must not end the beats unnoticed; its text may hold anything
            logger.error("beat failed: %s", type(error).__name__)

    async def drain(self) -> None:
        """Take no more work, finish what runs, abort what does not finish in time, leave."""
        self._draining = True
        self.executions.accepting = False
        telling = asyncio.ensure_future(self.heartbeat())
        if not await self._within(self.settings.drain_s, self.executions.idle()):
            await self.executions.abort_all()
            if not await self._within(self.settings.abort_s, self.executions.idle()):
                logger.error("left unfinished: %s", ", ".join(sorted(self.executions.live())))
        if not await self._within(self.settings.abort_s, self._leave()):
            logger.warning("left without telling: the seat runs out by itself")
        telling.cancel()

    async def _heartbeat_loop(self) -> None:
        while True:
            await self.clock.sleep(self._jittered(self.settings.heartbeat_s))
            await self.heartbeat()

    async def _heartbeat(self) -> None:
        if self._seated is None:
            if not self._draining:
                await self.register()
            return
        told = self._as_now(self._seated, now := self.clock.now())
        stored = await self.registry.heartbeat(told)
        if stored is None:
            logger.warning("the seat is lost: everything here belongs to others now")
            self._seated = None
            await self._give_up()
            return
        self._seated = stored
        self._renewed(now)
        await self._obey(told, stored)

    def _renewed(self, now: float) -> None:
        self._heartbeat_at = now
        self.executions.accepting = not self._draining

    async def _obey(self, told: Worker, stored: Worker) -> None:
        """Abort what ran when the beat was sent and holds no lease. A lease is stored before its order is signed."""
        leased = {lease.execution for lease in stored.leases.values()}
        for name in (told.live & self.executions.live()) - leased:
            await self.executions.abort(name, lease_lost=True)

    async def _watch(self) -> None:
        """The gate may soon take this worker for dead: be done before it does."""
        while True:
            remaining = self._heartbeat_at + self.settings.lease_s - self.settings.margin_s - self.clock.now()
            if remaining <= 0:
                await self._give_up()
            await self.clock.sleep(max(remaining, self.settings.watch_s))

    async def _give_up(self) -> None:
        """Nothing here is certain to be ours any more."""
        self.executions.accepting = False
        await self.executions.abort_all(lease_lost=True)

    async def _leave(self) -> None:
        """No beat is under way then, nor comes after: it would bring back a seat that stays for its leases."""
        async with self._heartbeat_task:
            seated, self._seated = self._seated, None
            try:
                if seated is not None:
                    await self.registry.leave(seated)
            except StoreUnavailable as error:
                logger.warning("left without telling: %s", error)

    async def _within(self, seconds: float, work: Coroutine[Any, Any, None]) -> bool:
        """Whether it was done in time. By this agent's clock."""
        doing = asyncio.ensure_future(work)
        patience = asyncio.ensure_future(self.clock.sleep(seconds))
        await asyncio.wait({doing, patience}, return_when=asyncio.FIRST_COMPLETED)
        patience.cancel()
        if doing.done():
            doing.result()
            return True
        doing.cancel()
        return False

    def _as_now(self, worker: Worker, now: float) -> Worker:
        stats = self.executions.engine.stats()
        served = sum(tenant.service for tenant in stats.tenants.values())
        return replace(
            worker,
            alive_until=now + self.settings.lease_s,
            draining=self._draining or not self.executions.engine_serves(),
            live=self.executions.live(),
            kv_use=stats.kv_use,
            queue_length=stats.waiting,
            service_per_s=self.capacity.observe(now, served, saturated=stats.waiting > 0),
        )

    def _jittered(self, seconds: float) -> float:
        return seconds * (0.8 + 0.4 * self.random.random())
