"""What every operation works with: the ports, and the gate's settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from dispatcher.model.fleet import Worker
from dispatcher.model.invocation import Invocation
from dispatcher.operations.directory import Directory
from dispatcher.operations.wakeups import Wakeups
from dispatcher.policies.clocks import LEAD_MAX
from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from dispatcher.ports import Clock, Ids, Launcher, Store, WorkerClient

logger = logging.getLogger("headgate.gate")


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Bounds and times of the gate. Times in seconds."""

    deadline_s: float = 300.0
    """From arrival to the last token; the caller may ask for less."""
    default_max_tokens: int = 256
    """What a request that names no max_tokens is given, and what it is charged at dispatch."""
    lead_max: float = LEAD_MAX
    lease_grace_s: float = 10.0
    """How long a lease lives before its worker's heartbeat first names it."""
    lease_margin_s: float = 3.0
    """Added to a worker's announced lifetime before its leases are taken away: clocks may be this far apart."""
    wait_poll_s: float = 0.25
    """How often waiting callers look whether another process dispatched them."""
    queues_per_snapshot: int = 100
    """How many waiting lines one drain considers; beyond that the index decides which."""
    drain_max: int = 256
    """Most dispatches in one run of the drain: what is left is the next run's."""


@dataclass(slots=True)
class Context:
    """One dispatcher process. Everything in it that outlives a request is a hint or a cache."""

    store: Store
    directory: Directory
    workers: WorkerClient
    launcher: Launcher
    clock: Clock
    ids: Ids
    settings: GateSettings = field(default_factory=GateSettings)
    service: ServiceFunction = WEIGHTED_TOKENS
    wakeups: Wakeups = field(init=False)
    addresses: dict[str, Worker] = field(default_factory=dict)
    """Workers by id as last seen: an id is one process's, so its address never changes."""
    suspects: dict[str, float] = field(default_factory=dict)
    """Workers that just failed this process, and until when they are passed over (Unix seconds)."""
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    virtual_times: dict[str, float] = field(default_factory=dict)
    """V by pool as dispatches here have raised it and the table has not heard yet…"""
    backlogs: set[str] = field(default_factory=set)
    """…and the pools in which somebody was queued here since they were last looked at: see pools.py."""
    draining: set[str] = field(default_factory=set)
    """Pools whose drain runs in this process right now…"""
    drain_again: set[str] = field(default_factory=set)
    """…and those that must go round once more because something changed meanwhile."""

    def __post_init__(self) -> None:
        self.wakeups = Wakeups(self.store, self.clock, self.settings.wait_poll_s)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run beside the request; `finish` waits for it. What is spawned may fail: the sweep makes it good."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def finish(self) -> None:
        """Until everything spawned is done: a Lambda handler freezes when it returns."""
        while self.tasks:
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await asyncio.sleep(0)  # since Python 3.12 gather does not yield for ended tasks: their callbacks must run

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("background work failed: %s", type(error).__name__)

    def remember(self, workers: Iterable[Worker]) -> None:
        self.addresses = {worker.id: worker for worker in workers} or self.addresses

    async def worker_of(self, invocation: Invocation) -> Worker | None:
        """Where a dispatched invocation is to be executed; None if that worker has left."""
        if invocation.slot is None:
            return None
        if invocation.slot.worker not in self.addresses:
            self.remember(await self.store.workers(invocation.pool))
        return self.addresses.get(invocation.slot.worker)

    def suspect(self, worker: Worker, now: float) -> None:
        self.suspects[worker.id] = now + self.settings.lease_grace_s

    def may_use(self, worker: Worker, now: float) -> bool:
        return worker.takes_work(now) and self.suspects.get(worker.id, 0.0) <= now
