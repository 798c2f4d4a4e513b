"""The context of all operations: the ports, the pools, the settings, the limits, and the durable calls of a process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from dispatcher.model.batches import FileStore
from dispatcher.model.tracing import NO_TRACING, Tracing
from dispatcher.operations.calls.followed import FollowedCall
from dispatcher.operations.directory import Directory
from dispatcher.operations.limits import GateSettings, Limits, LimitSettings
from dispatcher.operations.pools import Pools
from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from dispatcher.ports import Clock, GateLink, Ids, Launcher, Store, WorkerClient

logger = logging.getLogger("headgate.gate")

LASTING_S = 0.1
"""`finish` waits so long for the tasks of `spawn_lasting`."""


@dataclass(slots=True)
class Context:
    """The context of one process that serves callers, or executes calls that no caller waits for."""

    pools: Pools
    store: Store
    workers: WorkerClient
    launcher: Launcher
    clock: Clock
    ids: Ids
    settings: GateSettings = field(default_factory=GateSettings)
    limit_settings: LimitSettings = field(default_factory=LimitSettings)
    files: FileStore | None = None
    """The bytes of the batch API's files; None: the service has no batch API."""
    batch_queue: str = "default"
    """Where the table lists the open batches. All processes of a stack have the same one, whatever its pools are."""
    cors_origins: tuple[str, ...] = ()
    """The origins of the web pages that may call the HTTP face from a browser; "*": all."""
    service: ServiceFunction = WEIGHTED_TOKENS
    tracing: Tracing = NO_TRACING
    limits: Limits = field(init=False)
    directory: Directory = field(init=False)
    durable_calls: dict[str, FollowedCall] = field(default_factory=dict)
    """The durable calls that this process follows, by id."""
    calls: set[FollowedCall] = field(default_factory=set)
    """All calls that this process follows."""
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    lasting: set[asyncio.Task[Any]] = field(default_factory=set)
    """The tasks that may last as long as an outage."""
    _key_locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def __post_init__(self) -> None:
        self.limits = Limits(self.limit_settings)
        self.directory = Directory(self.store, self.clock, self.limit_settings)

    def link(self, pool: str) -> GateLink:
        """Return the link to the shard of a call's pool."""
        return self.pools.named(pool).link

    def key_lock(self, tenant: str, key: str) -> asyncio.Lock:
        """Return the lock of an idempotency key. Hold it to write the key's item and begin to follow the call."""
        return self._key_locks.setdefault((tenant, key), asyncio.Lock())

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that runs beside the request. `finish` waits for it."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._on_task_end)
        return task

    def spawn_lasting(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that may wait for the end of an outage. `finish` does not wait for it any longer than LASTING_S:
        if the process freezes or ends, the gate finds out that it is gone, and does the rest (rule 6)."""
        task = asyncio.ensure_future(work)
        self.lasting.add(task)
        task.add_done_callback(self._on_task_end)
        return task

    async def finish(self) -> None:
        """Wait until all calls and spawned tasks have ended and all links are idle. Lambda may freeze the process after
        this."""
        while self.tasks or self.calls:
            ends = [each.ended.wait() for each in self.calls]
            await asyncio.gather(*self.tasks, *ends, return_exceptions=True)
            await asyncio.sleep(0)  # since Python 3.12 gather does not yield for ended tasks: their callbacks must run
        if self.lasting:
            await asyncio.wait(self.lasting, timeout=LASTING_S)
        for pool in self.pools:
            await pool.link.rest()

    def _on_task_end(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        self.lasting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("background work failed: %s", type(error).__name__)
