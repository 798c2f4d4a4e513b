"""Refuses the commands that raise errors, so that all others are decided (I10).

A decision raises if a command, the fold of its facts or their encoding has a fault. It is undone, and the commands at
fault are found by bisection: parts of them are decided, encoded and undone again. Each of them is refused with the id
of a fault, which a log line has too. If the error comes from a call that waits, because a command freed a slot for it,
then that call is ended and not the command.

A search costs decisions. So its owner, the tenant of the command, is a *suspect* for SUSPECT_S: its commands are
decided after all others, in an entry of their own, and their faults cost the others nothing but the credit below.

    credit      the commands that may be decided in vain: at most CREDIT_MAX. It grows by EXTRA for each command that
                was decided for an entry, and by CREDIT_PER_S, and falls by one for each that was decided in vain
    below 1     the commands of suspects are refused without a decision, until there is credit again

So a stream of faults costs the others at most 1 + EXTRA times the processor time, and the first fault of each tenant
within SUSPECT_S one search. A search decides at most four times as many commands as it is given, and a few more.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from traceback import extract_tb
from typing import NamedTuple

from dispatcher.model.commands import Accept, Cancel, Command, Refused
from dispatcher.model.errors import INTERNAL_ERROR
from dispatcher.ports import Clock
from dispatcher.shard.state.state import State

logger = logging.getLogger("headgate.gate")

SUSPECT_S = 10.0
SUSPECTS_MAX = 1_000
EXTRA = 0.2
CREDIT_MAX = 40.0
CREDIT_PER_S = 20.0
_DEBT_MAX = 400.0
RELOAD_COST = 100.0
"""What the load of a snapshot costs, in commands. It is loaded if a decision cannot be undone."""
HALVED_MAX = 8
"""After so many faults in one search, parts are no longer halved: each of their commands is decided alone."""
RETRY_S = 1.0
REASON_CHARS_MAX = 200


class Failure(NamedTuple):
    """Why a decision was undone. `call_id`: the waiting call that could not be dispatched; empty if a command did."""

    error: Exception
    call_id: str = ""


class DecisionFailed(Exception):
    """The decision about these commands was undone, and nothing was written."""

    def __init__(self, commands: Sequence[Command], failure: Failure) -> None:
        super().__init__(str(failure.error))
        self.commands, self.failure = commands, failure


Attempt = Callable[[Sequence[Command]], Awaitable[Failure | None]]
"""Decides commands, encodes the entry, and undoes it. Returns the failure, or None."""


class Found(NamedTuple):
    """`refused`: the refusals by the places of their commands. `ends`: the commands that end waiting calls at fault."""

    refused: dict[int, Refused]
    ends: list[Cancel]


class Faults:
    """The faults of one replica. `name`: that of the replica; the ids of faults are made from it."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock, self._name = clock, name
        self._suspects: OrderedDict[str, tuple[float, str]] = OrderedDict()
        """Maps an owner to the time until which it is a suspect, by the monotonic clock, and to the id of its last
        fault."""
        self._credit, self._counted_at = CREDIT_MAX, clock.monotonic()
        self.refused = 0
        """The number of commands that were refused because of a fault, and of calls that were ended."""

    @property
    def has_suspects(self) -> bool:
        while self._suspects and next(iter(self._suspects.values()))[0] <= self._clock.monotonic():
            self._suspects.popitem(last=False)
        return bool(self._suspects)

    def suspected(self, state: State, commands: Sequence[Command]) -> list[int]:
        """Return the places of the commands of suspects."""
        return [place for place, each in enumerate(commands) if owner_of(state, each) in self._suspects]

    def may_try(self) -> bool:
        """Return whether there is credit to decide commands of suspects."""
        now = self._clock.monotonic()
        self._credit = min(CREDIT_MAX, self._credit + CREDIT_PER_S * max(0.0, now - self._counted_at))
        self._counted_at = now
        return self._credit >= 1

    def decided(self, commands: int) -> None:
        """Count commands that were decided for an entry."""
        self._credit = min(CREDIT_MAX, self._credit + EXTRA * max(1, commands))

    def wasted(self, cost: float) -> None:
        """Count commands that were decided in vain."""
        self._credit = max(-_DEBT_MAX, self._credit - max(1.0, cost))

    def refuse(self, owner: str, command: Command, error: Exception) -> Refused:
        """Refuse the command at fault, and suspect its owner."""
        self.refused += 1
        fault = blake2b(f"{self._name}:{self.refused}".encode(), digest_size=6).hexdigest()
        logger.error("command refused: fault=%s %s owner=%s error=%s", fault, *_describe(command, owner, error))
        self._suspects.pop(owner, None)
        self._suspects[owner] = (self._clock.monotonic() + SUSPECT_S, fault)
        if len(self._suspects) > SUSPECTS_MAX:
            self._suspects.popitem(last=False)
        return _refusal(command, fault)

    def refuse_untried(self, state: State, command: Command) -> Refused:
        """Refuse the command of a suspect without a decision, because faults have used up the credit."""
        self.refused += 1
        _, fault = self._suspects.get(owner_of(state, command), (0.0, "unknown"))
        return _refusal(command, fault)

    async def search(self, state: Callable[[], State], failed: DecisionFailed, attempt: Attempt) -> Found:
        """Find the commands at fault. Nothing is found if the commands can be decided now.

        `state` returns the state, because `attempt` may load another one.
        """
        self.wasted(len(failed.commands))
        search = _Search(self, state, failed.commands, attempt)
        await search.divide(range(len(failed.commands)), failed.failure)
        return Found(search.refused, search.ends)


class _Search:
    def __init__(
        self, faults: Faults, state: Callable[[], State], commands: Sequence[Command], attempt: Attempt
    ) -> None:
        self._faults, self._state, self._commands, self._attempt = faults, state, commands, attempt
        self.refused: dict[int, Refused] = {}
        self.ends: list[Cancel] = []

    async def divide(self, places: range, failure: Failure) -> None:
        """Refuse the commands at fault among those at `places`, which have failed together."""
        while self._ends_call(failure):
            found = await self._try(places)
            if found is None:
                return
            failure = found
        if len(places) == 1:
            command = self._commands[places[0]]
            self.refused[places[0]] = self._faults.refuse(owner_of(self._state(), command), command, failure.error)
            return
        step = max(1, len(places) // 2) if len(self.refused) < HALVED_MAX else 1
        for start in range(0, len(places), step):
            part = places[start : start + step]
            if (found := await self._try(part)) is not None:
                await self.divide(part, found)

    async def _try(self, places: range) -> Failure | None:
        commands = [*self.ends, *(self._commands[place] for place in places)]
        self._faults.wasted(len(commands))
        return await self._attempt(commands)

    def _ends_call(self, failure: Failure) -> bool:
        """If a call that waited before is at fault, and no command is about it, end the call. Return whether it is
        ended now."""
        call = self._state().calls.get(failure.call_id)
        known = {each.id for each in self.ends} | {str(getattr(each, "id", "")) for each in self._commands}
        if call is None or call.worker or call.id in known:
            return False
        command = Cancel(call.id, "failed")
        self._faults.refuse(call.tenant.name, command, failure.error)
        self.ends.append(command)
        return True


def owner_of(state: State, command: Command) -> str:
    """Return the tenant of an Accept. For another command return its kind, and the tenant of its call or its sender: a
    tenant's requests do not suffer from the reports of its worker."""
    if isinstance(command, Accept):
        return str(command.terms.tenant)
    call = state.calls.get(str(getattr(command, "id", "")))
    if call is not None:
        return f"{type(command).__name__} {call.tenant.name}"
    names = (str(getattr(command, field, "")) for field in ("tenant", "worker", "process", "name"))
    return f"{type(command).__name__} {next(filter(None, names), '')}"


def _refusal(command: Command, fault: str) -> Refused:
    message = (
        f"An error of the gate ended this request (fault {fault}). Nothing was charged. Send it again; if it fails "
        "again, give this id to the operator."
    )
    return Refused(str(getattr(command, "id", "")), INTERNAL_ERROR, message, RETRY_S)


def _describe(command: Command, owner: str, error: Exception) -> tuple[str, str, str]:
    """Return the kind of the command, its owner and the error with its place, without line breaks.

    A command's End may contain an answer, so the command itself is not logged.
    """
    frames = extract_tb((error.__cause__ or error).__traceback__)
    place = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    reason = f"{type(error).__name__}{place}: {str(error)[:REASON_CHARS_MAX]!r}"
    return type(command).__name__, repr(owner[:REASON_CHARS_MAX]), reason
