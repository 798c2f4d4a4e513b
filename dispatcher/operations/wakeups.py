"""Waking those who wait on an open connection.

A drain in the same process wakes its waiter directly. A drain elsewhere only changes the table, so while anybody waits
here, one poller looks at the pool every `poll_s`: one request, however many wait, and its leases name all that was
dispatched. Only now and then does it read the invocations themselves, for what ended without ever being dispatched.

The poll is also "a waiter that notices": where it finds a slot free twice in a row, whoever should have drained did not
(it crashed, or had nobody to tell), and `on_poll` drains. Not at once: a settlement drains by itself, and a dispatch
made here for a caller who waits elsewhere leaves its slot idle until that process looks.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dispatcher.model.invocation import Invocation, State
from dispatcher.ports import Clock, Store

logger = logging.getLogger("headgate.gate")

Key = tuple[str, str]
Poll = Callable[[str], Awaitable[object]]

ANY_CHANGE = frozenset(State) - {State.QUEUED}
READ_ALL_EVERY = 4
"""Polls between two reads of all invocations that are waited for: most news is in the pool's leases."""
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
        idle: set[str] = set()
        for number in itertools.count(1):
            if not self._waiters:
                return
            await self._clock.sleep(self._poll_s)
            try:
                idle = await self._check_pools(idle, on_poll)
                if number % READ_ALL_EVERY == 0:
                    await self._read(list(self._waiters))
            except Exception as error:  # whatever it is, those who wait must not stop being looked after
                logger.warning("a look at those who wait failed: %s", type(error).__name__)

    async def _check_pools(self, idle_before: set[str], on_poll: Poll) -> set[str]:
        """Wake who was dispatched; drain where a slot was free the last time too. Returns where one is free now."""
        idle: set[str] = set()
        for pool in {waiter.pool for waiters in self._waiters.values() for waiter in waiters}:
            workers = (await self._store.snapshot(pool, queue="")).workers
            leased = {(lease.tenant, lease.invocation) for worker in workers for lease in worker.leases.values()}
            await self._read([key for key in leased if self._waits_for_dispatch(key)])
            if any(worker.takes_work(self._clock.now()) and worker.free_slots() for worker in workers):
                idle.add(pool)
                if pool in idle_before:
                    await on_poll(pool)
        return idle

    async def _read(self, keys: list[Key]) -> None:
        for invocation in await self._store.get_many(keys) if keys else ():
            self.notify(invocation)

    def _waits_for_dispatch(self, key: Key) -> bool:
        return any(State.RUNNING in waiter.until for waiter in self._waiters.get(key, ()))

    def _forget(self, key: Key, waiter: _Waiter) -> None:
        waiters = self._waiters[key]
        waiters.remove(waiter)
        if not waiters:
            del self._waiters[key]
