"""Group commit: all commands that arrive during an append are written together, as the next entry."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from dispatcher.model.commands import Accept, Command, Done, Offer, Outcome, Refused, Tick
from dispatcher.model.errors import STORE_UNAVAILABLE, StoreUnavailable
from dispatcher.ports import Clock
from dispatcher.service.gate.follower import Delivery
from dispatcher.service.gate.replica import COMMANDS_MAX, Committed, Replica
from dispatcher.wakeup import Wakeup

logger = logging.getLogger("headgate.gate")

PATIENT_S = 0.15
"""A command that is not urgent waits at most so long for an entry that is written for other commands anyway."""
_TICK_S = 0.05
"""The shortest time between two ticks."""
RETRY_S = 0.05
_MOMENT_S = 0.001
_ENDLESS_S = 3600.0
"""A longer delay needs no timer."""
STALLED_S = 1.0
"""If an entry is not written within this time, the log counts as unavailable. It is longer than any entry takes of a
log that answers, and shorter than the time within which callers learn of an outage (link/pending.py)."""
WATCH_MAX_S = 0.5
"""One step of `watch` counts at most so many seconds: a pause of this process is no silence of the log."""

Reply = Callable[[Outcome | StoreUnavailable], None]


def no_reply(_outcome: Outcome | StoreUnavailable) -> None:
    """Drop the outcome: no caller waits for it."""


_NO_OFFER = ("", Done())
_TICK: tuple[Command, ...] = (Tick(),)


def unwritten(command: Accept) -> Refused:
    """Return the refusal of a call while the log cannot be written. The call is not in the log (HTTP 503)."""
    message = "The gate cannot write its log at the moment. The request was not accepted. Send it again."
    return Refused(command.id, STORE_UNAVAILABLE, message, 1.0)


class Item(NamedTuple):
    command: Command
    reply: Reply
    arrived_at: float
    """The time of the command's arrival, by the monotonic clock."""


def _offer_of(item: Item, outcome: Outcome) -> tuple[str, Outcome]:
    """Return (process, offer) if an Accept of the process got an offer. The process then needs no news of the offer."""
    process = item.command.process if isinstance(item.command, Accept) else ""
    return (process, outcome) if process and isinstance(outcome, Offer) else _NO_OFFER


class GroupCommit:
    """Writes the waiting commands into entries.

    `deliver` gets the news of each entry. `epoch` is the epoch of the leader that writes. It is None for a process that
    decides alone: that process adds a due Tick to an entry of its own commands, but writes no entry for a Tick alone.

    If the log cannot be read, `failed` gets the error and this GroupCommit. The commit is repeated, unless it raises.
    """

    def __init__(
        self,
        replica: Replica,
        clock: Clock,
        deliver: Callable[[list[Delivery]], None],
        failed: Callable[[StoreUnavailable, GroupCommit], None],
        epoch: int | None = None,
    ) -> None:
        self._replica, self._clock, self._deliver, self._failed, self._epoch = replica, clock, deliver, failed, epoch
        self._urgent: deque[Item] = deque()
        self._patient: deque[Item] = deque()
        self._writing: list[Item] = []
        self._wakeup = Wakeup()
        self._ticked_at = clock.monotonic()
        self._stopping = False
        self._began_at: float | None = None
        """When the entry was begun that is not written yet."""
        self._written = self._watched = 0
        self._watched_at = clock.monotonic()
        self._stalled_s = 0.0
        self.committed_at = clock.monotonic()
        """The time of the log's last answer, by the monotonic clock."""

    def add(self, command: Command, reply: Reply, *, urgent: bool = True) -> None:
        (self._urgent if urgent else self._patient).append(Item(command, reply, self._clock.monotonic()))
        self._wakeup.set()

    @property
    def waiting(self) -> int:
        """The number of commands that are not in an entry yet."""
        return len(self._urgent) + len(self._patient)

    @property
    def backlog_s(self) -> float:
        """Return the age in seconds of the oldest command that is being written; if there is none, of the oldest urgent
        one; 0 without any."""
        oldest = self._writing or self._urgent
        return self._clock.monotonic() - oldest[0].arrived_at if oldest else 0.0

    @property
    def writing_s(self) -> float:
        """Return the seconds for which the present entry has been written, with all repetitions; 0 without one."""
        return 0.0 if self._began_at is None else self._clock.monotonic() - self._began_at

    @property
    def is_stalled(self) -> bool:
        """Return whether the log has not taken the present entry for STALLED_S, as far as `watch` has counted."""
        return self._stalled_s >= STALLED_S

    def watch(self) -> None:
        """Count how long the present entry waits for the log. While it is stalled, refuse nothing by itself."""
        now = self._clock.monotonic()
        step_s, self._watched_at = min(now - self._watched_at, WATCH_MAX_S), now
        is_same = self._began_at is not None and self._watched == self._written
        self._stalled_s = self._stalled_s + step_s if is_same else 0.0
        self._watched = self._written

    def withdraw(self) -> None:
        """Refuse the calls that are in no entry yet, so that none of them runs after its caller has got an error.

        The commands of the present entry stay: it may be in the log already.
        """
        calls = [item for item in self._urgent if isinstance(item.command, Accept)]
        self._urgent = deque(item for item in self._urgent if not isinstance(item.command, Accept))
        for item in calls:
            if isinstance(item.command, Accept):
                item.reply(unwritten(item.command))

    def take_all(self) -> list[Item]:
        """Remove and return all commands without an outcome."""
        items = [*self._writing, *self._urgent, *self._patient]
        self._writing = []
        self._urgent.clear()
        self._patient.clear()
        self._began_at = None
        return items

    def stop(self) -> None:
        """End `run` after the entry that is being written."""
        self._stopping = True
        self._wakeup.set()

    async def run(self) -> None:
        """Write entries until `stop`. Raises Deposed, LogCorrupt, LogGap and what `failed` raises."""
        while not self._stopping:
            await self._wait()
            if not self._stopping:
                await self._commit()

    async def _commit(self) -> None:
        self._take()
        ticks = _TICK if self._tick_is_due() else ()
        if not self._writing and not ticks:
            return
        if self._began_at is None:
            self._began_at = self._clock.monotonic()
        try:
            commands = [item.command for item in self._writing]
            committed = await self._replica.commit([*ticks, *commands], epoch=self._epoch, more=self._more)
        except StoreUnavailable as error:
            self._failed(error, self)
            await self._clock.sleep(RETRY_S)
            return
        self._finish(committed, ticked=bool(ticks))

    def _finish(self, committed: Committed, *, ticked: bool) -> None:
        items, self._writing = self._writing, []
        self.committed_at = self._clock.monotonic()
        self._began_at, self._written = None, self._written + 1
        if ticked:
            self._ticked_at = self.committed_at
        outcomes = committed.outcomes[1:] if ticked else committed.outcomes
        for item, outcome in zip(items, outcomes, strict=True):
            try:
                item.reply(outcome)
            except Exception as error:  # one outcome that cannot be sent must not keep the others from their callers
                logger.error("outcome not sent: %s of %s", type(error).__name__, type(item.command).__name__)
        offered = {_offer_of(item, outcome) for item, outcome in zip(items, outcomes, strict=True)}
        self._deliver([each for each in committed.deliveries if each[::2] not in offered])

    def _more(self, _room: int) -> list[Command]:
        """Return the commands that have arrived meanwhile. They join the entry, which has lost its position."""
        before = len(self._writing)
        self._take()
        return [item.command for item in self._writing[before:]]

    def _take(self) -> None:
        """Move the oldest commands to the next entry. It may already contain the commands of a failed commit.

        Commands that are not urgent come first once they have waited PATIENT_S. Otherwise full entries could delay
        heartbeats without a bound.
        """
        due = self._clock.monotonic() - PATIENT_S
        while self._patient and self._patient[0].arrived_at <= due and len(self._writing) < COMMANDS_MAX:
            self._writing.append(self._patient.popleft())
        for items in (self._urgent, self._patient):
            while items and len(self._writing) < COMMANDS_MAX:
                self._writing.append(items.popleft())

    # Waiting

    async def _wait(self) -> None:
        while not self._stopping and (delay := self._delay_s()) > 0:
            await self._wakeup.wait(delay if delay < _ENDLESS_S else None)

    def _delay_s(self) -> float:
        """Return the seconds until an entry is due if no further command arrives."""
        if self._writing or self._urgent:
            return 0.0
        delay = inf if self._epoch is None else self._tick_in_s()
        if self._patient:
            delay = min(delay, self._patient[0].arrived_at + PATIENT_S - self._clock.monotonic())
        return max(delay, _MOMENT_S) if delay > 0 else 0.0

    def _tick_is_due(self) -> bool:
        return self._tick_in_s() <= 0

    def _tick_in_s(self) -> float:
        due = self._replica.shard.next_tick() - self._clock.now()
        if due == inf:
            return inf
        calm = 1.0 if self._replica.guard.is_calm else 0.0
        return max(due, calm, self._ticked_at + _TICK_S - self._clock.monotonic())
