"""Collects the messages that a process sends on one connection. Those of one turn of the event loop go out together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dispatcher.model.errors import ConnectionLost
from dispatcher.service.frames import encode_frames


class Outgoing:
    """The encoded messages that are not sent yet. `send` gets each frame; `lost` is called if it raises
    ConnectionLost."""

    def __init__(self, send: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        self._send, self._lost = send, lost
        self._unsent: list[bytes] = []

    def __len__(self) -> int:
        return len(self._unsent)

    def add(self, message: bytes) -> None:
        """Send the message after the callbacks that are due now, in a frame with the messages that they add."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self.flush)
        self._unsent.append(message)

    def flush(self) -> None:
        """Send all messages now, in as few frames as fit."""
        unsent, self._unsent = self._unsent, []
        try:
            for frame in encode_frames(unsent):
                self._send(frame)
        except ConnectionLost:
            self._lost()
