"""The commands of a process that have no outcome yet, in the order in which they were sent.

A command is sent again after the loss of a connection, and each copy may be decided. A refusal leaves nothing in the
log. So after the refusal of one copy, another copy may still be accepted. A refusal is the command's outcome only if
the command was sent once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from dispatcher.model.commands import Command, Outcome, Refused
from dispatcher.model.errors import StoreUnavailable
from dispatcher.ports import Clock


class PendingCommand(NamedTuple):
    number: int
    created_at: float
    command: Command
    outcome: asyncio.Future[Outcome]


class Pending:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._commands: dict[int, PendingCommand] = {}
        self._copies: dict[int, int] = {}
        """The number of times that each command was sent."""
        self._count = 0

    def __iter__(self) -> Iterator[PendingCommand]:
        return iter(list(self._commands.values()))

    def __len__(self) -> int:
        return len(self._commands)

    def add(self, command: Command) -> PendingCommand:
        self._count += 1
        outcome = asyncio.get_running_loop().create_future()
        pending = PendingCommand(self._count, self._clock.now(), command, outcome)
        self._commands[pending.number] = pending
        return pending

    def sent(self, number: int) -> None:
        """Count a copy of the command, which is about to be sent."""
        self._copies[number] = self._copies.get(number, 0) + 1

    def resolve(self, number: int, outcome: Outcome | StoreUnavailable) -> None:
        """Set the command's outcome. Ignore a second outcome, from a repetition of the command."""
        copies, pending = self._copies.pop(number, 0), self._commands.pop(number, None)
        if isinstance(outcome, Refused) and copies > 1:
            outcome = StoreUnavailable("The gate changed its leader. Send the request again.")
        if pending is None or pending.outcome.done():
            return
        if isinstance(outcome, StoreUnavailable):
            pending.outcome.set_exception(outcome)
        else:
            pending.outcome.set_result(outcome)

    def drop(self, number: int) -> None:
        """Forget the command, because its caller does not wait any more."""
        self._copies.pop(number, None)
        self._commands.pop(number, None)
