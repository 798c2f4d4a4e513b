"""What a process waits for: the outcomes of its commands (`Pending`), and the news of its calls (`Waiters`).

A command is sent again after the loss of a connection, and each copy may be decided. A refusal leaves nothing in the
log. So after the refusal of one copy, another copy may still be accepted. A refusal is the command's outcome only if
the command was sent once.

A command of a caller fails if the log cannot be used. The error is NotAccepted if the log certainly does not contain
the command: it was never sent, or its only copy was refused for this reason.

`LogWatch` finds out when the log cannot be used, as opposed to a change of the leader, so that callers learn of it in
time. A command without an outcome has one of two reasons. The leader is changing: then another one takes over within
half a second, and decides the command. Or the log cannot be written: then no process can decide. The time of a command
counts against the log only in these states:

    connected    the leader sends receipts, so it lives, and yet no command gets an outcome
    alone        this process has the state and decides itself, so only the log is missing
    searching    the log does not answer the search for a leader; or the last connection has ended after SUSPECT_S
                 without outcomes; or a leader has stepped down, and none has followed within VACANT_S

Each outcome shows that the log answers, and the count begins anew. A command of a caller fails once LOG_PATIENCE_S
have counted against the log. The time is counted in steps, and a late step counts as two: a pause of this process is
no silence of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from dispatcher.model.commands import Accept, Command, Offer, Outcome, Over, Refused, Status, call_id, parse_call_id
from dispatcher.model.errors import STORE_UNAVAILABLE, NotAccepted, StoreUnavailable
from dispatcher.ports import Clock
from dispatcher.service.frames import Do

LOG_PATIENCE_S = 1.6
"""Longer than a leader that the log does not answer leads on (group_commit.STALLED_S) and its successor takes over."""
SUSPECT_S = 0.7
VACANT_S = 0.25
READ_LATE_S = 0.25
"""A read of the log's end that takes longer counts as unanswered."""
STEP_S = 0.1


class LogWatch:
    """Counts the time of one process against the log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.counted_s = 0.0
        """The seconds that have counted against the log since the process began."""
        self.is_suspected = False
        """True from the end of a connection without outcomes to the next outcome."""
        self._answered_s = 0.0
        """The value of `counted_s` at the last outcome."""

    def answered(self) -> None:
        """Note that a command got an outcome, so the log answers."""
        self._answered_s, self.is_suspected = self.counted_s, False

    @property
    def is_silent(self) -> bool:
        """Return whether commands have had no outcome for SUSPECT_S, and this counts against the log."""
        return self.counted_s - self._answered_s >= SUSPECT_S

    def since(self, began_s: float) -> float:
        """Return the seconds that count against the log for a command that began when `counted_s` was `began_s`."""
        return self.counted_s - max(began_s, self._answered_s)

    async def run(self, blames_log: Callable[[], bool], has_commands: Callable[[], bool]) -> None:
        """Count until `has_commands`, which is called after each step, returns false."""
        at_s = self._clock.monotonic()
        while has_commands():
            await self._clock.sleep(STEP_S)
            step_s, at_s = self._clock.monotonic() - at_s, self._clock.monotonic()
            if blames_log():
                self.counted_s += min(step_s, 2 * STEP_S)


COMMAND_S = 55.0
"""A command without an outcome fails after this time. The leader refuses commands that are older than a minute."""

Reply = Callable[[Outcome | StoreUnavailable], object]
"""Gets the outcome of a command, once. It never raises, so what reacts to the outcome runs later (`later`)."""
T = TypeVar("T")


def later(take: Callable[[T], None]) -> Callable[[T], object]:
    """Return what calls `take` in a later step of the event loop. So an error of `take` ends nothing else."""
    loop = asyncio.get_running_loop()
    return lambda item: loop.call_soon(take, item)


class _Sent:
    """A command without an outcome. `counted_s`: the count of the watch when it was added."""

    __slots__ = ("added_s", "copies", "counted_s", "message", "reply")

    def __init__(self, message: Do, reply: Reply, added_s: float, counted_s: float) -> None:
        self.message, self.reply = message, reply
        self.added_s, self.counted_s = added_s, counted_s
        self.copies = 0
        """The number of times that it was sent."""


class Pending:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._commands: dict[int, _Sent] = {}
        self.watch = LogWatch(clock)
        self._count = 0
        self._emptied = asyncio.Event()

    def __iter__(self) -> Iterator[Do]:
        return iter([each.message for each in self._commands.values()])

    def __len__(self) -> int:
        return len(self._commands)

    def add(self, command: Command, reply: Reply) -> Do:
        """Return the message to send. `reply` gets the outcome."""
        self._count = number = self._count + 1
        message = Do(number, self._clock.now(), command)
        self._commands[number] = _Sent(message, reply, self._clock.monotonic(), self.watch.counted_s)
        return message

    @property
    def longest_s(self) -> float:
        """Return the most seconds that count against the log for one of these commands; 0 without any."""
        oldest = next(iter(self._commands.values()), None)
        return 0.0 if oldest is None else self.watch.since(oldest.counted_s)

    def fail_overdue(self) -> bool:
        """Fail the commands without an outcome for COMMAND_S, and those of callers for which LOG_PATIENCE_S have
        counted. Return whether commands are left."""
        now_s = self._clock.monotonic()
        for number, each in list(self._commands.items()):
            if now_s - each.added_s >= COMMAND_S:
                self.resolve(number, StoreUnavailable("Neither a leader nor the table answers."))
            elif self.watch.since(each.counted_s) < LOG_PATIENCE_S:
                break
            elif isinstance(each.message.command, Accept | Status):
                message = "The gate's log does not answer. Send the request again."
                self.resolve(number, StoreUnavailable(message) if each.copies else NotAccepted(message))
        return len(self) > 0

    def sent(self, number: int) -> None:
        """Count a copy of the command, which is about to be sent."""
        if (found := self._commands.get(number)) is not None:
            found.copies += 1

    def resolve(self, number: int, outcome: Outcome | StoreUnavailable) -> None:
        """Give the command its outcome. Ignore a second outcome, from a repetition of the command."""
        found = self.drop(number)
        if isinstance(outcome, Refused) and outcome.code == STORE_UNAVAILABLE:
            outcome = NotAccepted(outcome.message)
        elif not isinstance(outcome, Refused | StoreUnavailable):
            self.watch.answered()
        if found is None:
            return
        if isinstance(outcome, Refused | NotAccepted) and found.copies > 1:
            outcome = StoreUnavailable("The gate changed its leader. Send the request again.")
        found.reply(outcome)

    def drop(self, number: int) -> _Sent | None:
        """Forget the command, because its caller does not wait any more."""
        found = self._commands.pop(number, None)
        if not self._commands:
            self._emptied.set()
        return found

    async def until_empty(self, timeout_s: float) -> None:
        """Wait until no command is without an outcome, at most so long."""
        self._emptied.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s if self._commands else 0):
                await self._emptied.wait()


News = Callable[[Offer | Over], object]
"""Gets what happens to a call, in order. As with a Reply, what reacts to it runs later."""


class _HeldCall:
    """`highest`: the highest attempt that was offered."""

    __slots__ = ("highest", "is_over", "take")

    def __init__(self, take: News) -> None:
        self.take = take
        self.highest = 0
        self.is_over = False


class Waiters:
    """The calls of one process, by id, and the sequence numbers of its own ids."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._calls: dict[str, _HeldCall] = {}
        self._open: dict[int, None] = {}
        """The sequence numbers of this process's calls that are not forgotten yet, lowest first."""
        self._next = 1

    @property
    def unfinished(self) -> list[str]:
        """The calls that are not over, as far as this process knows."""
        return [name for name, call in self._calls.items() if not call.is_over]

    @property
    def floor(self) -> int:
        """This process's lowest sequence number that is not forgotten."""
        return next(iter(self._open), self._next)

    def new_id(self) -> str:
        number, self._next = self._next, self._next + 1
        self._open[number] = None
        return call_id(self._process, number)

    def hold(self, name: str, take: News) -> None:
        """Give `take` each news of the call from now on."""
        self._calls[name] = _HeldCall(take)

    def on_seen(self, offer: Offer) -> None:
        """Record an offer that is the outcome of a command: the same offer is no news any more."""
        call = self._calls.get(offer.id)
        if call is not None:
            call.highest = max(call.highest, offer.attempt)

    def put(self, news: Offer | Over) -> None:
        """Pass the news on. Ignore an offer with an attempt not above the highest one seen: it is stale (rule 4)."""
        call = self._calls.get(news.id)
        if call is None or call.is_over:
            return
        if isinstance(news, Over):
            call.is_over = True
        elif news.attempt <= call.highest:
            return
        else:
            call.highest = news.attempt
        call.take(news)

    def forget(self, name: str) -> None:
        self._calls.pop(name, None)
        process, number = parse_call_id(name)
        if process == self._process:
            self._open.pop(number, None)
