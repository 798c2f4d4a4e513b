"""The agent: tells the gate that this worker lives, what it can take and what it runs, and obeys what it learns.

    register ──▶ beat, every beat_s ──▶ … ──▶ SIGTERM: draining ──▶ finish what runs ──▶ leave

A beat renews all leases of the worker at once, for what it names as live; its answer carries the leases as they are
stored. An execution whose lease is gone belongs to another attempt: its work is aborted, and settled by nobody here. A
seat that is gone means that the gate took this worker for dead: everything is aborted and it registers anew. And where
no beat has come through for lease_s less a margin above any clock skew, it aborts everything by itself, before the gate
may give its work to someone else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field, replace
from random import Random

from dispatcher.errors import StoreUnavailable
from dispatcher.ports import Clock, Worker, WorkerRegistry
from gpu_worker.executions import Executions

logger = logging.getLogger("headgate.agent")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Seconds."""

    beat_s: float = 2.0
    lease_s: float = 10.0
    """How long the gate takes this worker for alive after a beat."""
    margin_s: float = 3.0
    """Work is aborted this long before the lease ends: more than clocks are apart."""
    drain_s: float = 25.0
    capacity_window_s: float = 30.0


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
    _seated: Worker | None = None
    _granted: set[str] = field(default_factory=set)
    _beaten_at: float = 0.0
    _served: deque[tuple[float, float, bool]] = field(default_factory=deque)

    async def register(self) -> None:
        """Take a seat. Raises NoSeat, StoreUnavailable."""
        now = self.clock.now()
        self._seated = await self.registry.register(self._as_now(self.worker, now))
        if self._seated is None:
            raise NoSeat(f"all seats of pool {self.worker.pool!r} are taken")
        self._beaten_at = now
        self._granted.clear()
        self.executions.accepting = True

    async def run(self) -> None:
        """Beat until cancelled. What goes wrong is logged and met with an abort where it has to be."""
        while True:
            await self.clock.sleep(self.settings.beat_s * (0.8 + 0.4 * self.random.random()))
            await self.beat()

    async def beat(self) -> None:
        now = self.clock.now()
        try:
            if self._seated is None:
                await self.register()
                return
            stored = await self.registry.beat(self._as_now(self._seated, now))
        except (StoreUnavailable, NoSeat) as error:
            logger.warning("beat failed: %s", type(error).__name__)
            await self._doubt(now)
            return
        if stored is None:
            logger.warning("the seat is lost: everything here belongs to others now")
            self._seated = None
            await self.executions.abort_all(lease_lost=True)
            return
        self._seated, self._beaten_at = stored, now
        self.executions.accepting = not stored.draining
        await self._obey(stored)

    async def drain(self) -> None:
        """Take no more work, finish what runs, abort what does not finish in time, leave."""
        self.executions.accepting = False
        if self._seated is not None:
            self._seated = replace(self._seated, draining=True)
            await self.beat()
        finishing = asyncio.ensure_future(self.executions.idle())
        patience = asyncio.ensure_future(self.clock.sleep(self.settings.drain_s))
        await asyncio.wait({finishing, patience}, return_when=asyncio.FIRST_COMPLETED)
        patience.cancel()
        await self.executions.abort_all()
        await finishing
        if self._seated is not None:
            await self.registry.leave(self._seated)

    def _as_now(self, worker: Worker, now: float) -> Worker:
        stats = self.executions.engine.stats()
        served = sum(tenant.service for tenant in stats.tenants.values())
        return replace(
            worker,
            alive_until=now + self.settings.lease_s,
            live=self.executions.live(),
            kv_use=stats.kv_use,
            queue_length=stats.waiting,
            service_per_s=self._capacity(now, served, busy=stats.waiting > 0),
        )

    def _capacity(self, now: float, served: float, *, busy: bool) -> float:
        """Service a second over the stretches at whose both ends requests were waiting: what it does when it is full.

        The best of the window counts: a stretch may have been idle in between.
        """
        self._served.append((now, served, busy))
        while now - self._served[0][0] > self.settings.capacity_window_s:
            self._served.popleft()
        rates = [
            (after - before) / (end - start)
            for (start, before, was), (end, after, is_busy) in zip(self._served, list(self._served)[1:], strict=False)
            if was and is_busy and end > start
        ]
        known = self._seated.service_per_s if self._seated is not None else 0.0
        return max(rates) if rates else known

    async def _obey(self, stored: Worker) -> None:
        """Abort what no longer holds the lease that it was seen to hold."""
        leased = {lease.execution for lease in stored.leases.values()}
        live = self.executions.live()
        for name in (self._granted & live) - leased:
            logger.warning("lease lost: %s", name)
            await self.executions.abort(name, lease_lost=True)
        self._granted = leased & live

    async def _doubt(self, now: float) -> None:
        """The gate may soon take this worker for dead: be done before it does."""
        if now - self._beaten_at > self.settings.lease_s - self.settings.margin_s:
            self.executions.accepting = False
            await self.executions.abort_all(lease_lost=True)
