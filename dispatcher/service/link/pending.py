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
from collections import deque
from collections.abc import Callable, Iterator

from dispatcher.model.commands import Accept, Command, Offer, Outcome, Over, Refused, Status, call_id, parse_call_id
from dispatcher.model.errors import STORE_UNAVAILABLE, NotAccepted, StoreUnavailable
from dispatcher.ports import Clock
from dispatcher.service.frames import Do
from dispatcher.service.wakeup import Wakeup

LOG_PATIENCE_S = 1.6
"""Longer than a leader that the log does not answer leads on (group_commit.STALLED_S) and its successor takes over."""
SUSPECT_S = 0.7
VACANT_S = 0.25
READ_LATE_S = 0.25
"""A read of the log's end that takes longer counts as unanswered."""
STEP_S = 0.1
COMMAND_S = 55.0
"""A command without an outcome fails after this time. The leader refuses commands that are older than a minute."""


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


class _Pending:
    """A command without an outcome."""

    __slots__ = ("added_at", "began_s", "copies", "message", "outcome")

    def __init__(self, message: Do, outcome: asyncio.Future[Outcome], began_s: float, added_at: float) -> None:
        self.message, self.outcome = message, outcome
        self.copies = 0
        """The number of times that the command was sent."""
        self.began_s = began_s
        """The count of the watch when the command was added."""
        self.added_at = added_at
        """The time by the monotonic clock."""


class Pending:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._commands: dict[int, _Pending] = {}
        self.watch = LogWatch(clock)
        self._count = 0

    def __iter__(self) -> Iterator[Do]:
        return iter([each.message for each in self._commands.values()])

    def __len__(self) -> int:
        return len(self._commands)

    @property
    def outcomes(self) -> list[asyncio.Future[Outcome]]:
        return [each.outcome for each in self._commands.values()]

    def add(self, command: Command) -> tuple[Do, asyncio.Future[Outcome]]:
        """Return the message to send, and its outcome."""
        self._count = number = self._count + 1
        message = Do(number, self._clock.now(), command)
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._commands[number] = _Pending(message, outcome, self.watch.counted_s, self._clock.monotonic())
        return message, outcome

    @property
    def longest_s(self) -> float:
        """Return the most seconds that count against the log for one of these commands; 0 without any."""
        return self.watch.since(next(iter(self._commands.values())).began_s) if self._commands else 0.0

    def fail_overdue(self) -> bool:
        """Fail the commands of callers for which LOG_PATIENCE_S have counted, and all after COMMAND_S. Return whether
        commands are left."""
        oldest = self._clock.monotonic() - COMMAND_S
        for number, each in list(self._commands.items()):
            if each.added_at <= oldest:
                self.resolve(number, StoreUnavailable("Neither a leader nor the table answers."))
            elif self.watch.since(each.began_s) < LOG_PATIENCE_S:
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
        """Set the command's outcome. Ignore a second outcome, from a repetition of the command."""
        found = self._commands.pop(number, None)
        if isinstance(outcome, Refused) and outcome.code == STORE_UNAVAILABLE:
            outcome = NotAccepted(outcome.message)
        elif not isinstance(outcome, Refused | StoreUnavailable):
            self.watch.answered()
        if found is None or found.outcome.done():
            return
        if found.copies > 1 and isinstance(outcome, Refused | NotAccepted):
            outcome = StoreUnavailable("The gate changed its leader. Send the request again.")
        if isinstance(outcome, StoreUnavailable):
            found.outcome.set_exception(outcome)
        else:
            found.outcome.set_result(outcome)

    def drop(self, number: int) -> None:
        """Forget the command, because its caller does not wait any more."""
        self._commands.pop(number, None)


class _WaitingCall:
    __slots__ = ("highest", "is_over", "news", "wakeups")

    def __init__(self) -> None:
        self.news: deque[Offer | Over] = deque()
        self.highest = 0
        """The highest attempt that was offered."""
        self.is_over = False
        self.wakeups: list[Wakeup] = []


class Waiters:
    """The calls of one process, by id, and the sequence numbers of its own ids."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._calls: dict[str, _WaitingCall] = {}
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

    def expect(self, name: str) -> None:
        """Keep news of the call from now on."""
        if name not in self._calls:
            self._calls[name] = _WaitingCall()

    def on_seen(self, offer: Offer) -> None:
        """Record an offer that arrived as the outcome of a command, so that `wait` does not return it again."""
        call = self._calls.get(offer.id)
        if call is not None:
            call.highest = max(call.highest, offer.attempt)
            call.news = deque(news for news in call.news if isinstance(news, Over) or news.attempt > offer.attempt)

    def put(self, news: Offer | Over) -> None:
        """Keep the news. Ignore an offer with an attempt not above the highest one seen: it is stale (rule 4)."""
        call = self._calls.get(news.id)
        if call is None or call.is_over:
            return
        if isinstance(news, Over):
            call.is_over = True
        elif news.attempt <= call.highest:
            return
        else:
            call.highest = news.attempt
        call.news.append(news)
        for wakeup in call.wakeups:
            wakeup.set()

    async def wait(self, name: str, timeout_s: float) -> Offer | Over | None:
        """Return the next news of the call, or None after `timeout_s` seconds. An end is returned again each time."""
        self.expect(name)
        call = self._calls[name]
        if not call.news and not await self._wait_for_news(call, timeout_s):
            return None
        return call.news[0] if isinstance(call.news[0], Over) else call.news.popleft()

    @staticmethod
    async def _wait_for_news(call: _WaitingCall, timeout_s: float) -> bool:
        """Return whether there are news within the time. Another task may have taken those that came first."""
        wakeup = Wakeup()
        call.wakeups.append(wakeup)
        try:
            while await wakeup.wait(timeout_s):
                if call.news:
                    return True
            return False
        finally:
            call.wakeups.remove(wakeup)

    def forget(self, name: str) -> None:
        self._calls.pop(name, None)
        process, number = parse_call_id(name)
        if process == self._process:
            self._open.pop(number, None)
