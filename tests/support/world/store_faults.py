"""Faults of the memory store (MemoryStore.faults), and its answers without an event loop.

Slow and FailsOnce have one fault each, StoreFaults those that a test sets. A storm's process has StormFaults: failures,
lost replies, pauses, and its own death at a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from dispatcher.model.errors import StoreUnavailable

T = TypeVar("T")
Latency = Callable[[Random], float]
"""Draws the seconds that a request takes."""


def run_at_once(call: Coroutine[Any, Any, T]) -> T:
    """Return what a call of a memory store without faults returns: it never waits."""
    try:
        call.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("the call waits")


@dataclass
class Slow:
    """Each request takes `delay_s` before it is applied. `operation` names the only one that does."""

    delay_s: float
    operation: str = ""

    async def before(self, operation: str) -> None:
        await asyncio.sleep(self.delay_s if self.operation in ("", operation) else 0)

    async def after(self, operation: str) -> None: ...


class FailsOnce:
    """The table is out of reach for the first request of the kind named."""

    def __init__(self, operation: str, *, applied: bool) -> None:
        self.operation = operation
        self.applied = applied

    async def before(self, operation: str) -> None:
        if not self.applied:
            self._fail(operation)

    async def after(self, operation: str) -> None:
        if self.applied:
            self._fail(operation)

    def _fail(self, operation: str) -> None:
        if operation == self.operation:
            self.operation = ""
            raise StoreUnavailable()


FAIL_AFTER_MAX_S = 1.0
PAUSE_MAX_S = 4.0
FREEZE_S = (8.0, 22.0)


class StoreFaults:
    """The faults of one host's requests. `lost`: the operations that lose their next reply."""

    def __init__(self, random: Random, latency_s: Latency) -> None:
        self._random, self._latency_s = random, latency_s
        self.lost: list[str] = []
        self.only: frozenset[str] = frozenset()
        """The operations that the faults below concern; empty: all."""
        self.away = False
        self.fails = 0.0
        """The part of the requests that are refused."""
        self.stalled: asyncio.Event | None = None
        self.is_deaf = False
        """True: the requests are applied, and their replies are lost."""

    async def before(self, operation: str) -> None:
        await asyncio.sleep(self._latency_s(self._random) / 2)
        if self.only and operation not in self.only:
            return
        if self.stalled is not None:
            await self.stalled.wait()
        if self.away or (self.fails and self._random.random() < self.fails):
            raise StoreUnavailable()

    async def after(self, operation: str) -> None:
        await asyncio.sleep(self._latency_s(self._random) / 2)
        if operation in self.lost:
            self.lost.remove(operation)
            raise StoreUnavailable("The reply was lost.")
        if self.is_deaf and (not self.only or operation in self.only):
            raise StoreUnavailable("The reply was lost.")


class Outage:
    """The store as all processes find it. `gone`: the part of requests that fail now (1: it answers nothing)."""

    def __init__(self) -> None:
        self.gone = 0.0
        self.cut_off: set[str] = set()
        """Hosts that do not reach the store."""
        self.is_over = False
        """The trouble is over: nothing fails any more."""
        self.paused_until = 0.0
        """When the last pause of a request ends. It may be after the trouble."""


class StormFaults:
    """memory_store.StoreFaults of one host. `die` kills the host at a request; `freeze` pauses it."""

    def __init__(
        self,
        host: str,
        outage: Outage,
        random: Random,
        die: Callable[[], None],
        *,
        fails: float,
        pauses: float,
        crashes: float,
        freeze: Callable[[float], None],
        freezes: float,
    ) -> None:
        self._host, self._outage, self._random, self._die = host, outage, random, die
        self._fails, self._pauses, self._crashes = fails, pauses, crashes
        self._freeze, self._freezes = freeze, freezes
        self.crash_at = 0
        """Die at this step, counting one before and one after each request; 0: at none."""
        self.steps = 0

    async def before(self, operation: str) -> None:
        await self._step()
        if operation == "append" and self._freezes and not self._outage.is_over:
            await self._stop_before_append()

    async def after(self, operation: str) -> None:
        await self._step()

    async def _step(self) -> None:
        self.steps += 1
        if self.steps == self.crash_at:
            await self._crash()
        if self._outage.is_over:
            return
        random = self._random
        if self._crashes and random.random() < self._crashes:
            await self._crash()
        if self._pauses and random.random() < self._pauses:
            await self._pause(random.random() ** 3 * PAUSE_MAX_S)
        if self._host in self._outage.cut_off or random.random() < max(self._fails / 2, self._outage.gone):
            await asyncio.sleep(random.random() ** 2 * FAIL_AFTER_MAX_S)
            raise StoreUnavailable("The storm took this request.")

    async def _pause(self, seconds: float) -> None:
        ends_at = asyncio.get_running_loop().time() + seconds
        self._outage.paused_until = max(self._outage.paused_until, ends_at)
        await asyncio.sleep(seconds)

    async def _stop_before_append(self) -> None:
        """Stop the process: its entry arrives when the position may have been written and have expired (rule 1)."""
        if self._random.random() < self._freezes:
            shortest, longest = FREEZE_S
            self._freeze(shortest + self._random.random() * (longest - shortest))
            await asyncio.sleep(0)

    async def _crash(self) -> None:
        self._die()
        await asyncio.sleep(0)
