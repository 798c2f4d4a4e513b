"""Sends offers and ends (the news) to the process that holds the call, after their entry is written (rule 3).

A connected process gets its news over the connection (its `Session`), any other process through its mailbox. If no
process holds a durable call, its offer is launched: on a connected executor if there is one, otherwise by the Launcher.

`Launches` starts executors for calls that no process holds while they are suspended (shard/state/records.py,
NO_PROCESS). The shard suspends these calls after one of their attempts was not begun. While they are suspended, an
executor is started for one of them every AGAIN_S, the first one at once. This takes no slot. When the executor holds
its call, all these calls get offers again. So an outage of the executors costs only the slots of the offers that were
open when it began. Each start is for another call, because the executor of one call may fail each time. A leader calls
`Launches.sweep`. In a pool without a gate process, the sweep of each minute does the same
(dispatcher/processes/pool_sweep.py).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from math import inf
from typing import Any

from dispatcher.model.commands import Offer, Over
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.formats import NEWEST, OLDEST
from dispatcher.policies.orders.queues import Call
from dispatcher.ports import Clock, Connection, Launcher, MailboxStore
from dispatcher.service.frames import Hello, Launch, Message, News, Receipt, encode_message, encode_news
from dispatcher.service.gate.follower import Delivery
from dispatcher.service.gate.replica import Replica
from dispatcher.service.outgoing import Outgoing
from dispatcher.shard.state.records import NO_PROCESS
from dispatcher.shard.state.state import State

UNSENT_MAX = 100_000
"""The most messages that may wait for one client. With more, the client is disconnected."""


class Session(Outgoing):
    """A client that has sent its greeting. `heard_at`: the time of its last frame, by the monotonic clock."""

    def __init__(self, connection: Connection, clock: Clock, hello: Hello) -> None:
        super().__init__()
        self._connection, self._clock = connection, clock
        self.process, self.role = hello.process, hello.role
        self.reads = max(hello.reads, OLDEST)
        """The highest format that the client reads."""
        self.heard_at = clock.monotonic()
        self._received = self._acknowledged = 0
        """The number of frames that were received, and that in the last receipt."""
        self._asks = False
        self.closed = False

    def post(self, message: Message) -> None:
        """Send the message soon, with others. The ends of calls wait a moment for company: a system call for each of
        them would cost as much as the rest of a command."""
        if self.closed:
            return
        if len(self._unsent) >= UNSENT_MAX:
            self.close()
            return
        self._add(encode_message(message), can_wait=isinstance(message, News) and isinstance(message.news, Over))

    def acknowledge(self) -> None:
        """Count a frame that was received. Its receipt goes out with the next messages, within outgoing.WAIT_S."""
        self._received += 1
        if not self.closed:
            self._flush_soon(can_wait=True)

    def ask_report(self) -> None:
        """Ask for a report of the client's worker now. A client of an older format reports at its own times."""
        if self.reads >= NEWEST and not self.closed:
            self._asks = True
            self._flush_soon(can_wait=False)

    def heard(self) -> None:
        self.heard_at = self._clock.monotonic()

    def close(self) -> None:
        self.closed = True
        self._connection.close()

    def _flush(self) -> None:
        if self._acknowledged != self._received or self._asks:
            receipt, reads = Receipt(self._received, self._asks), NEWEST if self._asks else OLDEST
            self._acknowledged, self._asks = self._received, False
            self._unsent.append(encode_message(receipt, reads))
        super()._flush()

    def _send(self, frame: bytes) -> None:
        self._connection.send(frame)

    def close_soon(self) -> None:
        """Send the messages that were posted so far, and close the connection."""
        if not self.closed:
            self._flush()
            self.close()


_TRIES = 5
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
        """Try a write up to _TRIES times. If all fail, the news are lost until the next dispatch of the call."""
        for _ in range(_TRIES):
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


AGAIN_S = 2.0
"""The time between two starts."""


def suspended_calls(state: State) -> list[Call]:
    """Return the waiting calls that no process holds, while they are suspended."""
    unheld = state.processes.get(NO_PROCESS)
    if unheld is None or not unheld.silent:
        return []
    return [call for call in unheld.calls.values() if not call.worker]


class Launches:
    """Starts the executors. Call `sweep` regularly."""

    def __init__(self, replica: Replica, clock: Clock, courier: Courier) -> None:
        self._replica, self._clock, self._courier = replica, clock, courier
        self._started_at = -inf
        self._starts = 0

    def sweep(self) -> None:
        """Start an executor if calls without a holder are suspended and the last start was AGAIN_S ago."""
        now = self._clock.monotonic()
        if now - self._started_at < AGAIN_S:
            return
        waiting = suspended_calls(self._replica.shard.state)
        if waiting:
            call = waiting[self._starts % len(waiting)]
            self._started_at = now
            self._starts += 1
            self._courier.launch(call.id, call.attempt)
