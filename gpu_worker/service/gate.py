"""The part of a GateLink (dispatcher/ports.py) that a worker uses."""

from __future__ import annotations

from typing import Protocol

from dispatcher.model.commands import Command, Outcome


class Gate(Protocol):
    async def do(self, command: Command) -> Outcome:
        """Send the command, and return its outcome when the log contains it. Raises StoreUnavailable if neither the
        leader nor the log answers."""
        ...
