"""Wake-ups for callers that wait on an open connection.

A drain in the same process wakes its waiter directly. A drain in another process only changes the table. So while a
caller waits here, one poller reads the pool every `poll_s`: one request for any number of waiters, because the leases
name everything that was dispatched. Every READ_ALL_EVERY polls it also reads the invocations themselves, to find those
that ended without a dispatch.

The poll also repairs a missed drain. If a slot is free in two polls in a row, a process failed to drain (it crashed,
for example), and `on_poll` drains. One poll is not enough: a settlement drains by itself, and a slot that this process
dispatched for a caller of another process stays idle until that process polls.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dispatcher.model.old_invocation import Invocation, State
from dispatcher.old_ports import Clock, Store

logger = logging.getLogger("headgate.gate")

Key = tuple[str, str]
Poll = Callable[[str], Awaitable[object]]

ANY_CHANGE = frozenset(State) - {State.QUEUED}
READ_ALL_EVERY = 4
"""Polls between two reads of all waiting invocations. The pool's leases show most changes before that."""
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
        """Return the invocation when it is in one of the states `until`, or None after `timeout_s` seconds."""
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
        """Wake the waiters for this invocation in this process."""
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
            except Exception as error:  # whatever it is: the polls for the waiters must go on
                logger.warning("a poll for waiting callers failed: %s", type(error).__name__)

    async def _check_pools(self, idle_before: set[str], on_poll: Poll) -> set[str]:
        """Wake the waiters of dispatched invocations, and drain pools with a free slot now and in the poll before.

        Return the pools with a free slot now.
        """
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
