"""The commands of a process that have no outcome yet, in the order in which they were sent.

A command is sent again after the loss of a connection, and each copy may be decided. A refusal leaves nothing in the
log. So after the refusal of one copy, another copy may still be accepted. A refusal is the command's outcome only if
the command was sent once.

A command of a caller fails if the log cannot be used (log_watch.py). The error is NotAccepted if the log certainly does
not contain the command: it was never sent, or its only copy was refused for this reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from dispatcher.model.commands import Accept, Command, Outcome, Refused, Status
from dispatcher.model.errors import STORE_UNAVAILABLE, NotAccepted, StoreUnavailable
from dispatcher.ports import Clock
from dispatcher.service.codec.frames import Do
from dispatcher.service.link.log_watch import LOG_PATIENCE_S, LogWatch


class Pending:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._commands: dict[int, Do] = {}
        self.outcomes: dict[int, asyncio.Future[Outcome]] = {}
        """The outcome of each command, by its number."""
        self._copies: dict[int, int] = {}
        """The number of times that each command was sent."""
        self._began_s: dict[int, float] = {}
        """The count of the watch when each command was added."""
        self.watch = LogWatch(clock)
        self._count = 0

    def __iter__(self) -> Iterator[Do]:
        return iter(list(self._commands.values()))

    def __len__(self) -> int:
        return len(self._commands)

    def add(self, command: Command) -> tuple[Do, asyncio.Future[Outcome]]:
        """Return the message to send, and its outcome."""
        self._count = number = self._count + 1
        message = self._commands[number] = Do(number, self._clock.now(), command)
        outcome = self.outcomes[number] = asyncio.get_running_loop().create_future()
        self._began_s[number] = self.watch.counted_s
        return message, outcome

    @property
    def longest_s(self) -> float:
        """Return the most seconds that count against the log for one of these commands; 0 without any."""
        return self.watch.since(next(iter(self._began_s.values()))) if self._began_s else 0.0

    def fail_overdue(self) -> bool:
        """Fail the commands of callers for which LOG_PATIENCE_S have counted. Return whether commands are left."""
        for number, began_s in list(self._began_s.items()):
            if self.watch.since(began_s) < LOG_PATIENCE_S:
                break
            if isinstance(self._commands[number].command, Accept | Status):
                message = "The gate's log does not answer. Send the request again."
                was_sent = self._copies.get(number, 0) > 0
                self.resolve(number, StoreUnavailable(message) if was_sent else NotAccepted(message))
        return len(self) > 0

    def sent(self, number: int) -> None:
        """Count a copy of the command, which is about to be sent."""
        self._copies[number] = self._copies.get(number, 0) + 1

    def resolve(self, number: int, outcome: Outcome | StoreUnavailable) -> None:
        """Set the command's outcome. Ignore a second outcome, from a repetition of the command."""
        copies, waits = self._copies.get(number, 0), self.outcomes.get(number)
        self.drop(number)
        if isinstance(outcome, Refused) and outcome.code == STORE_UNAVAILABLE:
            outcome = NotAccepted(outcome.message)
        elif not isinstance(outcome, Refused | StoreUnavailable):
            self.watch.answered()
        if isinstance(outcome, Refused | NotAccepted) and copies > 1:
            outcome = StoreUnavailable("The gate changed its leader. Send the request again.")
        if waits is None or waits.done():
            return
        if isinstance(outcome, StoreUnavailable):
            waits.set_exception(outcome)
        else:
            waits.set_result(outcome)

    def drop(self, number: int) -> None:
        """Forget the command, because its caller does not wait any more."""
        for each in (self._commands, self.outcomes, self._copies, self._began_s):
            each.pop(number, None)
