"""Collects the messages that a process sends on one connection. Those of one turn of the event loop go out together."""

from __future__ import annotations

import asyncio

from dispatcher.model.errors import ConnectionLost
from dispatcher.service.frames import encode_frames


class Outgoing:
    """One end of a connection, as far as it sends. A subclass sends frames and closes the connection.

    It is a base class and not a part, because a part would call its owner: a reference cycle for each connection, which
    a leader does not collect for long (service/garbage.py).
    """

    def __init__(self) -> None:
        self._unsent: list[bytes] = []

    def close(self) -> None:
        raise NotImplementedError

    def _send(self, frame: bytes) -> None:
        """Raises ConnectionLost."""
        raise NotImplementedError

    def _add(self, message: bytes) -> None:
        """Send an encoded message after the callbacks that are due now, in a frame with the messages that they add."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(message)

    def _flush(self) -> None:
        """Send all messages now, in as few frames as fit."""
        unsent, self._unsent = self._unsent, []
        try:
            for frame in encode_frames(unsent):
                self._send(frame)
        except ConnectionLost:
            self.close()
