"""The part of a GateLink (dispatcher/ports.py) that a worker uses."""

from __future__ import annotations

from typing import Protocol

from dispatcher.model.commands import Command, Outcome


class Gate(Protocol):
    async def do(self, command: Command) -> Outcome:
        """Return the outcome once it is in the log. Raises StoreUnavailable if neither leader nor log answers."""
        ...
