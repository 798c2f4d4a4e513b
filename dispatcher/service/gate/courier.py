"""Sends offers and ends (the news) to the process that holds the call, after their entry is written (rule 3).

A connected process gets its news over the connection, any other process through its mailbox. If no process holds a
durable call, its offer is launched: on a connected executor if there is one, otherwise by the Launcher.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from dispatcher.model.commands import Offer
from dispatcher.model.errors import StoreUnavailable
from dispatcher.ports import Clock, Launcher, MailboxStore
from dispatcher.service.codec.frames import Launch, News, encode_news
from dispatcher.service.gate.follower import Delivery
from dispatcher.service.gate.sessions import Session

TRIES = 5
RETRY_S = 0.2
UNDER_WAY_MAX = 1000
"""The most mailbox writes and launches at a time. Further news are dropped. Then the attempt is not begun in time, and
the next dispatch of the call sends news again."""


class Courier:
    def __init__(self, mailboxes: MailboxStore, launcher: Launcher, clock: Clock) -> None:
        self._mailboxes, self._launcher, self._clock = mailboxes, launcher, clock
        self.sessions: dict[str, Session] = {}
        """The newest session of each connected process."""
        self.executors: list[Session] = []
        self._under_way: set[asyncio.Task[None]] = set()

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Send the news of an entry that this process wrote."""
        letters: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        for delivery in deliveries:
            if not delivery.process:
                if isinstance(delivery.news, Offer):
                    self.launch(delivery.news.id, delivery.news.attempt)
            elif not self.push(delivery):
                letters[delivery.process, delivery.position].append(encode_news(delivery.news))
        for (process, position), news in letters.items():
            self._spawn(self._put(process, position, news))

    def push(self, delivery: Delivery) -> bool:
        """Send news over the process's connection. Return False if it has no connection."""
        session = self.sessions.get(delivery.process)
        if session is None:
            return False
        session.post(News(delivery.news))
        return True

    async def finish(self) -> None:
        """Wait until all mailbox writes and launches have ended."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def launch(self, call_id: str, attempt: int) -> None:
        """Start an executor for a call that no process holds."""
        if self.executors:
            executor = self.executors.pop(0)
            self.executors.append(executor)
            executor.post(Launch(call_id, attempt))
        else:
            self._spawn(self._start(call_id, attempt))

    async def _put(self, process: str, position: int, news: list[bytes]) -> None:
        await self._repeat(lambda: self._mailboxes.put(process, position, news))

    async def _start(self, call_id: str, attempt: int) -> None:
        await self._repeat(lambda: self._launcher.launch(call_id, attempt))

    async def _repeat(self, write: Callable[[], Awaitable[None]]) -> None:
        """Try a write up to TRIES times. If all fail, the news are lost until the next dispatch of the call."""
        for _ in range(TRIES):
            try:
                await write()
                break
            except StoreUnavailable:
                await self._clock.sleep(RETRY_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._under_way) >= UNDER_WAY_MAX:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
