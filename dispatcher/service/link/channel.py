"""The client's side of a connection to a gate process. It sends messages in frames, and watches for receipts.

A leader sends a receipt for each frame within 10 ms, even while the log does not answer. If a receipt is missing for
longer than the process's patience, the leader is dead, paused or cut off (rule 7).

The patience follows the receipts that the process got: on a host with busy processors they come late without a fault.
With L the longest time that a receipt took in the last WINDOW_S seconds,

    patience = max(PATIENCE_S, TAIL_FACTOR x L), at most PATIENCE_MAX_S

So on a quiet host a silent leader is noticed after PATIENCE_S, and on a busy one a receipt that takes TAIL_FACTOR times
as long as any before is still no sign. A leader that is killed is noticed at once: its connection breaks. L is kept in
SLOTS parts of the window, so it takes O(1) a receipt. Times are in seconds, by the process's monotonic clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from dispatcher.model.errors import ConnectionLost
from dispatcher.model.formats import OLDEST
from dispatcher.ports import Clock, Connection
from dispatcher.service.frames import (
    Heartbeat,
    Message,
    ReadsFormat,
    Receipt,
    decode_frame,
    encode_message,
)
from dispatcher.service.outgoing import Outgoing

PATIENCE_S, PATIENCE_MAX_S = 0.25, 2.0
"""The maximum is below presence.SILENT_S: a leader that sends no receipts is replaced before its clients are silent."""
TAIL_FACTOR = 8.0
WINDOW_S, SLOTS = 300.0, 10


class LinkPatience:
    """The patience of one process. It outlives the process's connections."""

    def __init__(self) -> None:
        self._longest: deque[tuple[float, float]] = deque(maxlen=SLOTS)
        """When each part of the window began, and the longest time of a receipt in it."""

    def took(self, seconds: float, now: float) -> None:
        """Note the time that a receipt took, or that it took at least."""
        if not self._longest or now - self._longest[-1][0] >= WINDOW_S / SLOTS:
            self._longest.append((now, seconds))
        elif seconds > self._longest[-1][1]:
            self._longest[-1] = (self._longest[-1][0], seconds)

    def seconds(self, now: float) -> float:
        """Return the patience, between PATIENCE_S and PATIENCE_MAX_S."""
        longest = max((each for began, each in self._longest if now - began < WINDOW_S), default=0.0)
        return min(PATIENCE_MAX_S, max(PATIENCE_S, TAIL_FACTOR * longest))


_ALIVE_S = 1.0
_LATE_S = 0.05
"""If a task wakes up later than it should by this time, this process itself was paused or busy."""
_MOMENT_S = 0.001
_STALE_S = 3.0
"""A connection without a message for this time is not used again, because this process may have been frozen."""


async def _suspect_at_once() -> None:
    """Do nothing more while a receipt is overdue. This is the default of `suspect`."""


class Channel(Outgoing):
    """A connection to a gate process. `alive_s`: if no frame was sent for this time, an Alive asks for a receipt.

    `suspect` is awaited when a receipt is overdue. If the receipt arrives meanwhile, the channel goes on. `reads`: the
    format that the leader before this one read. It is used until the first receipt.
    """

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        patience: LinkPatience,
        alive_s: float = _ALIVE_S,
        suspect: Callable[[], Awaitable[None]] = _suspect_at_once,
        *,
        reads: int = OLDEST,
    ) -> None:
        super().__init__()
        self._connection, self._clock, self.alive_s = connection, clock, alive_s
        self._patience, self._suspect = patience, suspect
        self._without_receipt: deque[float] = deque()
        """The time at which each frame without a receipt was sent, by the monotonic clock."""
        self.receipts = 0
        """The number of frames with a receipt. Only a leader sends receipts."""
        self._heard_at = self._spoke_at = clock.monotonic()
        self._watched, self.ended = asyncio.Event(), asyncio.Event()
        self.closed = False
        self.reads = reads
        """The highest format that the leader reads (model/formats.py). It says so before its first receipt."""
        self._said = OLDEST
        self.is_out_of_patience = False
        """True if a receipt did not arrive in time."""

    @property
    def is_stale(self) -> bool:
        return self._clock.monotonic() - self._heard_at > _STALE_S

    def post(self, message: Message) -> None:
        """Queue the message to be sent. On a closed channel it is lost."""
        self._add(encode_message(message, self.reads))

    def close(self) -> None:
        self.closed = True
        self.ended.set()
        self._connection.close()

    async def run(self, received: Callable[[Message], None]) -> None:
        """Exchange messages until the connection breaks, a receipt is overdue, or `close`."""
        works = (self._read(received), self._keep_alive(), self._watch())
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            self.close()
            for task in tasks:
                task.cancel()

    async def _read(self, received: Callable[[Message], None]) -> None:
        with suppress(ConnectionLost):
            await self._connection.deliver(partial(self._take, received))

    def _take(self, received: Callable[[Message], None], frame: bytes) -> None:
        messages = decode_frame(frame)
        self._heard_at = self._clock.monotonic()
        for message in messages:
            if isinstance(message, Receipt):
                self._take_receipt(message.frames)
                if message.asks:
                    received(message)
            elif isinstance(message, ReadsFormat):
                self.reads = self._said = message.format
            else:
                received(message)

    def _send(self, frame: bytes) -> None:
        self._spoke_at = self._clock.monotonic()
        self._without_receipt.append(self._spoke_at)
        self._connection.send(frame)
        self._watched.set()

    async def _keep_alive(self) -> None:
        """Ask for a receipt whenever no frame was sent for `alive_s`, even while other receipts are missing."""
        while True:
            now_s = self._clock.monotonic()
            if self._spoke_at + self.alive_s <= now_s:
                self._spoke_at = now_s
                self.post(Heartbeat())
            await self._clock.sleep(max(self._spoke_at + self.alive_s - now_s, _MOMENT_S))

    async def _watch(self) -> None:
        """Return when a receipt is overdue, and does not arrive during `suspect` either."""
        while not self.is_out_of_patience:
            if self._without_receipt:
                if await self._no_receipt_in_time():
                    receipts = self.receipts
                    await self._suspect()
                    self.is_out_of_patience = self.receipts == receipts
            else:
                self._watched.clear()
                await self._watched.wait()

    async def _no_receipt_in_time(self) -> bool:
        """Wait until the oldest missing receipt has arrived or is overdue. Return whether it is overdue.

        If this process was paused, give it _LATE_S more to read the messages that arrived meanwhile.
        """
        patience_s = self._patience.seconds(self._clock.monotonic())
        due = self._without_receipt[0] + patience_s
        while self._without_receipt and self._without_receipt[0] + patience_s <= due:
            left_s = due - self._clock.monotonic()
            if left_s <= 0:
                return True
            await self._clock.sleep(max(left_s, _MOMENT_S))
            if self._clock.monotonic() - due > _LATE_S:
                due = self._clock.monotonic() + _LATE_S
        return False

    def _take_receipt(self, frames: int) -> None:
        self.reads = self._said
        now = self._clock.monotonic()
        while self._without_receipt and self.receipts < frames:
            self._patience.took(now - self._without_receipt.popleft(), now)
            self.receipts += 1
