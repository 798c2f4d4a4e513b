"""Collects the messages that a process sends on one connection. Those of one turn of the event loop go out together."""

from __future__ import annotations

import asyncio

from dispatcher.model.errors import ConnectionLost
from dispatcher.service.frames import encode_frames

WAIT_S = 0.01
"""Far below the patience of a client that waits for a receipt (link/channel.py), and above the time of most entries."""


class Outgoing:
    """One end of a connection, as far as it sends. A subclass sends frames and closes the connection.

    It is a base class and not a part, because a part would call its owner: a reference cycle for each connection, which
    a leader does not collect for long (service/garbage.py).
    """

    def __init__(self) -> None:
        self._unsent: list[bytes] = []
        self._is_due = False
        """True if the messages go out in this turn of the event loop."""
        self._is_timed = False
        """True while a timer runs, which sends what waits at its end. Messages that go out earlier leave it alone: to
        set a timer costs as much as a message."""

    def close(self) -> None:
        raise NotImplementedError

    def _send(self, frame: bytes) -> None:
        """Raises ConnectionLost."""
        raise NotImplementedError

    def _add(self, message: bytes, *, can_wait: bool = False) -> None:
        """Send an encoded message after the callbacks that are due now, in a frame with the messages that they add.

        `can_wait`: or up to WAIT_S later, with the next message that cannot wait.
        """
        self._unsent.append(message)
        self._flush_soon(can_wait=can_wait)

    def _flush_soon(self, *, can_wait: bool) -> None:
        """Call `_flush` after the callbacks that are due now, or up to WAIT_S later if the messages can wait."""
        if self._is_due:
            return
        if not can_wait:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._flush)
        elif not self._is_timed:
            self._is_timed = True
            asyncio.get_running_loop().call_later(WAIT_S, self._flush_waiting)

    def _flush_waiting(self) -> None:
        self._is_timed = False
        self._flush()

    def _flush(self) -> None:
        """Send all messages now, in as few frames as fit."""
        unsent, self._unsent, self._is_due = self._unsent, [], False
        try:
            for frame in encode_frames(unsent):
                self._send(frame)
        except ConnectionLost:
            self.close()
