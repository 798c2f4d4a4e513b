"""Waking those who wait on an open connection.

A drain in the same process wakes its waiter directly. A drain elsewhere only changes the table, so while anybody waits
here, one poller reads all their invocations in one request every `poll_s`; that poll is also the heartbeat of "a waiter
that notices": it calls `on_poll`, which drains.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dispatcher.invocation import Invocation, State
from dispatcher.ports import Clock, Store

logger = logging.getLogger("headgate.gate")

Key = tuple[str, str]
Poll = Callable[[str], Awaitable[object]]

ANY_CHANGE = frozenset(State) - {State.QUEUED}
WAITING_PER_POLL = 50
TERMINAL = frozenset(state for state in State if state.is_terminal)


@dataclass(eq=False, slots=True)
class _Waiter:
    pool: str
    until: frozenset[State]
    future: asyncio.Future[Invocation]


class Wakeups:
    def __init__(self, store: Store, clock: Clock, poll_s: float) -> None:
        self._store = store
        self._clock = clock
        self._poll_s = poll_s
        self._waiters: dict[Key, list[_Waiter]] = {}
        self._poller: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return sum(len(waiters) for waiters in self._waiters.values())

    async def wait(
        self, invocation: Invocation, until: frozenset[State], timeout_s: float, on_poll: Poll
    ) -> Invocation | None:
        """Until the invocation is in one of the states `until`, or None after `timeout_s` seconds."""
        key = (invocation.tenant, invocation.id)
        waiter = _Waiter(invocation.pool, until, asyncio.get_running_loop().create_future())
        self._waiters.setdefault(key, []).append(waiter)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.ensure_future(self._poll(on_poll))
        try:
            return await asyncio.wait_for(waiter.future, max(0.0, timeout_s))
        except TimeoutError:
            return None
        finally:
            self._forget(key, waiter)

    def notify(self, invocation: Invocation) -> None:
        """Wake whoever waits for this in this process."""
        for waiter in self._waiters.get((invocation.tenant, invocation.id), ()):
            if invocation.state in waiter.until and not waiter.future.done():
                waiter.future.set_result(invocation)

    async def _poll(self, on_poll: Poll) -> None:
        while self._waiters:
            # A poll reads all that wait: the more they are the rarer it is, so that it costs the table the same.
            await self._clock.sleep(self._poll_s * (1 + self.waiting / WAITING_PER_POLL))
            try:
                for invocation in await self._store.get_many(list(self._waiters)):
                    self.notify(invocation)
                for pool in {waiter.pool for waiters in self._waiters.values() for waiter in waiters}:
                    await on_poll(pool)
            except Exception as error:  # whatever it is, those who wait must not stop being looked after
                logger.warning("a look at those who wait failed: %s", type(error).__name__)

    def _forget(self, key: Key, waiter: _Waiter) -> None:
        waiters = self._waiters[key]
        waiters.remove(waiter)
        if not waiters:
            del self._waiters[key]
