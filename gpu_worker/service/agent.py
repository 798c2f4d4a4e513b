"""The agent: keeps the worker registered by heartbeats, and aborts work that no longer belongs to the worker.

    join ──▶ heartbeat, every heartbeat_s ──▶ … ──▶ SIGTERM: drain, with heartbeats ──▶ finish executions ──▶ leave

A heartbeat names the live executions and renews all their leases at once; its answer has the leases as stored.

- The lease of an execution is gone: it belongs to another attempt. Abort it and do not settle it.
- The worker's seat is gone: the gate took the worker for dead. Abort everything and register again.
- No heartbeat has succeeded for lease_s less margin_s, a margin above any clock skew: abort everything, before the gate
  may give the work to another worker. A separate watch does this, because a heartbeat may hang.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.old_fleet import Worker
from dispatcher.old_ports import Clock, WorkerRegistry
from gpu_worker.policies.capacity import MeasuredCapacity
from gpu_worker.service.executions import Executions

logger = logging.getLogger("headgate.agent")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Seconds."""

    heartbeat_s: float = 2.0
    lease_s: float = 10.0
    """How long the gate takes this worker for alive after a heartbeat."""
    margin_s: float = 3.0
    """Work is aborted this long before the lease ends: more than the clocks differ."""
    watch_s: float = 0.25
    """How late the watch may notice that."""
    join_s: float = 60.0
    """How long the first registration is tried."""
    join_pause_s: float = 0.5
    join_pause_max_s: float = 8.0
    drain_s: float = 25.0
    """How long running executions may take to finish during a drain."""
    abort_s: float = 5.0
    """How long aborted executions may then take to end and be settled, and how long leaving may take."""


class NoSeat(Exception):
    """All seats of the pool are taken."""


@dataclass(eq=False)
class Agent:
    """`worker`: as it registers; `random`: for jitter, so that the heartbeats of a fleet spread out."""

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
    _heartbeat_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def join(self) -> None:
        """Register; try again while DynamoDB is unavailable or no seat is free. Raises the error of the last try."""
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
        """Send heartbeats until `until` is done, then drain. Heartbeats go on while draining: running executions hold
        leases."""
        stop, heartbeats = asyncio.ensure_future(until), asyncio.ensure_future(self.run())
        await asyncio.wait({stop, heartbeats}, return_when=asyncio.FIRST_COMPLETED)
        if heartbeats.done():
            logger.error("the heartbeats ended: %s", type(heartbeats.exception()).__name__)
            await self._abort_all()
        await self.drain()
        stop.cancel()
        heartbeats.cancel()
        await asyncio.wait({stop, heartbeats})

    async def run(self) -> None:
        """Send heartbeats, and watch the lease, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._heartbeat_loop())
            tasks.create_task(self._watch())

    async def heartbeat(self) -> None:
        """Send one heartbeat, or register again if the seat is lost. Errors are only logged: the watch counts."""
        try:
            async with self._heartbeat_lock:
                await self._heartbeat()
        except (StoreUnavailable, NoSeat) as error:
            logger.warning("heartbeat failed: %s", error)
        except Exception as error:  # a bug must not end the heartbeats unnoticed; its message may hold a prompt
            logger.error("heartbeat failed: %s", type(error).__name__)

    async def drain(self) -> None:
        """Accept no more work, finish the executions, abort those that do not finish in time, leave."""
        self._draining = True
        self.executions.accepting = False
        heartbeat = asyncio.ensure_future(self.heartbeat())
        if not await self._within(self.settings.drain_s, self.executions.idle()):
            await self.executions.abort_all()
            if not await self._within(self.settings.abort_s, self.executions.idle()):
                logger.error("unfinished executions: %s", ", ".join(sorted(self.executions.live())))
        if not await self._within(self.settings.abort_s, self._leave()):
            logger.warning("could not leave in time: the seat expires by itself")
        heartbeat.cancel()

    async def _heartbeat_loop(self) -> None:
        while True:
            await self.clock.sleep(self._jittered(self.settings.heartbeat_s))
            await self.heartbeat()

    async def _heartbeat(self) -> None:
        if self._seated is None:
            if not self._draining:
                await self.register()
            return
        sent = self._as_now(self._seated, now := self.clock.now())
        stored = await self.registry.heartbeat(sent)
        if stored is None:
            logger.warning("the seat is lost: this worker's executions belong to others now")
            self._seated = None
            await self._abort_all()
            return
        self._seated = stored
        self._renewed(now)
        await self._abort_unleased(sent, stored)

    def _renewed(self, now: float) -> None:
        self._heartbeat_at = now
        self.executions.accepting = not self._draining

    async def _abort_unleased(self, sent: Worker, stored: Worker) -> None:
        """Abort executions that ran when the heartbeat was sent and hold no lease. A lease is stored before its order
        is signed."""
        leased = {lease.execution for lease in stored.leases.values()}
        for name in (sent.live & self.executions.live()) - leased:
            await self.executions.abort(name, lease_lost=True)

    async def _watch(self) -> None:
        """Abort everything before the gate may take this worker for dead."""
        while True:
            remaining = self._heartbeat_at + self.settings.lease_s - self.settings.margin_s - self.clock.now()
            if remaining <= 0:
                await self._abort_all()
            await self.clock.sleep(max(remaining, self.settings.watch_s))

    async def _abort_all(self) -> None:
        """Abort everything: this worker may hold no lease any more."""
        self.executions.accepting = False
        await self.executions.abort_all(lease_lost=True)

    async def _leave(self) -> None:
        """Give up the seat. No heartbeat runs meanwhile or comes later: it would bring the seat back."""
        async with self._heartbeat_lock:
            seated, self._seated = self._seated, None
            try:
                if seated is not None:
                    await self.registry.leave(seated)
            except StoreUnavailable as error:
                logger.warning("could not leave: %s", error)

    async def _within(self, seconds: float, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` and return True; cancel it after so many seconds of this agent's clock and return False."""
        task = asyncio.ensure_future(work)
        limit = asyncio.ensure_future(self.clock.sleep(seconds))
        await asyncio.wait({task, limit}, return_when=asyncio.FIRST_COMPLETED)
        limit.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
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
