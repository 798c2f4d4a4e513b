"""The context of all operations: the ports, the gate's settings, and the caches of a process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from dispatcher.model.old_fleet import Worker
from dispatcher.model.old_invocation import Invocation
from dispatcher.old_operations.directory import Directory
from dispatcher.old_operations.wakeups import Wakeups
from dispatcher.old_ports import Clock, Ids, Launcher, Store, WorkerClient
from dispatcher.policies.clocks import LEAD_MAX
from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction

logger = logging.getLogger("headgate.gate")


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Bounds and times of the gate. Times are in seconds."""

    deadline_s: float = 300.0
    """Longest time from arrival to the last token. A submission may have a shorter one."""
    default_max_tokens: int = 256
    """Used for a request without max_tokens, also in its estimate."""
    lead_max: float = LEAD_MAX
    lease_grace_s: float = 10.0
    """How long a lease is valid before a heartbeat of its worker first names it."""
    lease_margin_s: float = 3.0
    """Added to a worker's announced lifetime before its leases are reclaimed, for the difference between clocks."""
    wait_poll_s: float = 0.25
    """Interval at which a process checks whether another one dispatched the requests of its callers."""
    queues_per_snapshot: int = 100
    """Most waiting queues that one drain considers, in the index's order."""
    drain_max: int = 256
    """Most dispatches in one run of the drain. The next run does the rest."""


@dataclass(slots=True)
class Context:
    """One gate process. All state in it that outlives a request is a hint or a cache."""

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
    """The last known workers by id. An id belongs to one process, so its address never changes."""
    suspects: dict[str, float] = field(default_factory=dict)
    """Workers that failed recently, and the time until which no new request goes to them (Unix seconds)."""
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    virtual_times: dict[str, float] = field(default_factory=dict)
    """V by pool, raised by dispatches of this process and not written yet (pools.py)."""
    backlogs: set[str] = field(default_factory=set)
    """Pools in which this process queued a request since its last snapshot of them (pools.py)."""
    draining: set[str] = field(default_factory=set)
    """Pools that this process is draining now."""
    drain_again: set[str] = field(default_factory=set)
    """Pools that changed during the drain, so that it must run once more."""

    def __post_init__(self) -> None:
        self.wakeups = Wakeups(self.store, self.clock, self.settings.wait_poll_s)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start work beside the request; `finish` waits for it. It may fail: the sweep then repairs it."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def finish(self) -> None:
        """Wait until all spawned work is done: a Lambda sandbox freezes when its handler returns."""
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
        """Return the worker of a dispatched invocation, or None if that worker has left."""
        if invocation.slot is None:
            return None
        if invocation.slot.worker not in self.addresses:
            self.remember(await self.store.workers(invocation.pool))
        return self.addresses.get(invocation.slot.worker)

    def suspect(self, worker: Worker, now: float) -> None:
        self.suspects[worker.id] = now + self.settings.lease_grace_s

    def may_use(self, worker: Worker, now: float) -> bool:
        return worker.takes_work(now) and self.suspects.get(worker.id, 0.0) <= now
