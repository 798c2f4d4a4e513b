"""The leader's side of a connection. It sends messages in frames, and disconnects a client that does not read them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from dispatcher.model.errors import ConnectionLost
from dispatcher.model.formats import OLDEST
from dispatcher.ports import Clock, Connection
from dispatcher.service.codec.frames import Hello, Message, encode_frames, encode_message

UNSENT_MAX = 100_000
"""The most messages that may wait for one client. With more, the client is disconnected."""


class Session:
    """A client that has sent its greeting. `heard_at`: the time of its last frame, by the monotonic clock."""

    def __init__(self, connection: Connection, clock: Clock, hello: Hello) -> None:
        self._connection, self._clock = connection, clock
        self.process, self.role = hello.process, hello.role
        self.reads = max(hello.reads, OLDEST)
        """The highest format that the client reads."""
        self.heard_at = clock.monotonic()
        self.frames = 0
        """The number of frames that were received."""
        self.closed = False
        self._unsent: list[bytes] = []
        self._wakeup = asyncio.Event()
        self._closing = False

    def post(self, message: Message) -> None:
        """Queue the message to be sent."""
        if self.closed or self._closing:
            return
        if len(self._unsent) >= UNSENT_MAX:
            self.close()
            return
        self._unsent.append(encode_message(message))
        self._wakeup.set()

    def heard(self) -> None:
        self.heard_at = self._clock.monotonic()

    def close(self) -> None:
        self.closed = True
        self._connection.close()
        self._wakeup.set()

    def close_soon(self) -> None:
        """Close the connection after all messages that were posted so far are sent."""
        self._closing = True
        self._wakeup.set()

    async def write(self) -> None:
        """Send the posted messages until the session is closed."""
        with suppress(ConnectionLost):
            while not self.closed:
                if not self._unsent:
                    if self._closing:
                        break
                    self._wakeup.clear()
                    await self._wakeup.wait()
                    continue
                unsent, self._unsent = self._unsent, []
                for frame in encode_frames(unsent):
                    await self._connection.send(frame)
        self.close()
