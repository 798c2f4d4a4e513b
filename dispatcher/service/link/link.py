"""Sends a process's commands and questions to one shard and receives its news (ports.GateLink).

Commands go to the leader that the last entry of the log names. Each command is kept until its outcome arrives. If the
connection breaks or a receipt is overdue, the command is repeated to the next leader. Without a leader, the process
appends to the log itself (route.py).

The leader answers questions about the shard's state. Without a leader, this process's own replica answers them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count

from dispatcher.model.commands import Accept, Command, Offer, Outcome, Over, parse_call_id
from dispatcher.model.errors import ConnectionLost, LogError, StoreUnavailable
from dispatcher.model.facts import WorkerSet
from dispatcher.model.formats import NEWEST, Reader
from dispatcher.model.usage import UsageRow
from dispatcher.ports import InvocationStore, Launcher, MailboxStore
from dispatcher.service.frames import Ask, Hello, Launch, Message, Receipt
from dispatcher.service.frames import News as NewsMessage
from dispatcher.service.frames import Reply as Answer
from dispatcher.service.gate.courier import Courier
from dispatcher.service.gate.questions import read_fleet, read_usage, usage
from dispatcher.service.gate.replica import Replica
from dispatcher.service.link.channel import Channel
from dispatcher.service.link.finder import Fleet
from dispatcher.service.link.pending import STEP_S, Pending, Reply, Waiters, later
from dispatcher.service.link.route import Route
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard

_ASK_S = 1.0
ASKS_MAX = 3
"""A question is sent on at most so many connections: to a leader that dies, to a process that redirects, and to the
next leader."""
READ_S = 5.0
"""The longest time to read the log's end, and before it a snapshot, if this process has no state yet."""
_READ_TAIL_S = 0.8
"""The longest time to read the log's end if this process has the state, or if the log does not answer the search for a
leader either."""
_LAUNCHES_MAX = 1000


class Link:
    """The link of one process. `process`: its name, which is new at every start; at most 12 characters.

    Create and use it in one event loop.
    """

    def __init__(
        self,
        process: str,
        fleet: Fleet,
        settings: ShardSettings,
        *,
        mailboxes: MailboxStore,
        launcher: Launcher,
        answers: InvocationStore,
    ) -> None:
        self._process, self._clock = process, fleet.clock
        self._others = Courier(mailboxes, launcher, fleet.clock)
        self._replica = Replica(fleet.log, settings, fleet.clock, process, answers=answers)
        self._pending = Pending(fleet.clock)
        self._waiters = Waiters(process)
        self._questions = Questions()
        self._asking = 0
        self._launches: asyncio.Queue[tuple[str, int]] = asyncio.Queue(_LAUNCHES_MAX)
        self._role = "client"
        self._task: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._closed = False
        self.report_asked = asyncio.Event()
        """Set when the leader asks for a report of this process's worker. The task that waits for it clears it."""
        self._route = Route(
            fleet,
            self._replica,
            mailboxes,
            self._others,
            self._pending,
            self._waiters,
            hello=self._hello,
            received=self._on_message,
            is_needed=self._is_needed,
        )

    @property
    def lost(self) -> asyncio.Event:
        """Set when a connection to the leader ends. The task that waits for it clears it."""
        return self._route.lost

    # ports.GateLink

    @property
    def process(self) -> str:
        return self._process

    @property
    def floor(self) -> int:
        return self._waiters.floor

    def new_id(self, _tenant: str = "", /) -> str:
        return self._waiters.new_id()

    def send(self, command: Command, take: Callable[[Outcome | StoreUnavailable], None]) -> None:
        give = later(take)

        def reply(outcome: Outcome | StoreUnavailable) -> None:
            self._note_offer(outcome)
            give(outcome)

        self._send(command, reply)

    async def do(self, command: Command) -> Outcome:
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        number = self._send(command, partial(settle, outcome))
        try:
            found = await outcome
        finally:
            self._pending.drop(number)
        self._note_offer(found)
        return found

    def hold(self, call_id: str, take: Callable[[Offer | Over], None]) -> None:
        self._waiters.hold(call_id, later(take))

    def forget(self, call_id: str) -> None:
        self._waiters.forget(call_id)

    async def launched(self) -> tuple[str, int]:
        if self._role != "executor":
            self._role = "executor"
            if self._route.channel is not None:
                self._route.channel.post(self._hello())
        self._start()
        return await self._launches.get()

    async def readers(self) -> Sequence[Reader] | None:
        answered = await self._ask("readers")
        if answered is None:
            return [] if self._route.alone is not None else None
        return [Reader(*each[:3]) for each in json.loads(answered)]

    async def fleet(self) -> Sequence[WorkerSet]:
        answered = await self._ask("fleet")
        if answered is not None:
            return read_fleet(answered)
        return (await self._read_shard()).fleet()

    async def usage(self, tenant: str | None, first_hour: int, last_hour: int) -> Sequence[tuple[int, UsageRow]]:
        answered = await self._ask("usage", (tenant or "", str(first_hour), str(last_hour)))
        if answered is not None:
            rows = read_usage(answered)
        else:
            rows = usage(await self._read_shard(), tenant, first_hour, last_hour)
        return [(0, row) for row in rows]

    async def rest(self) -> None:
        while len(self._pending) and not self._pending.watch.is_silent:
            await self._pending.until_empty(STEP_S)
            await asyncio.sleep(0)  # what reacts to the outcome may send the next command
        await self._others.finish()

    async def close(self) -> None:
        """End the connection. Commands without an outcome fail."""
        self._closed = True
        tasks = [task for task in (self._task, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pending in self._pending:
            self._pending.resolve(pending.number, StoreUnavailable("This process ends."))

    # Commands

    def _note_offer(self, outcome: Outcome | StoreUnavailable) -> None:
        if isinstance(outcome, Offer):
            self._waiters.on_seen(outcome)

    def _send(self, command: Command, reply: Reply) -> int:
        """Send the command, an Accept with this process's present floor. Return its number. `reply`: see `Pending`."""
        if isinstance(command, Accept):
            is_own = parse_call_id(command.id)[0] == self._process
            command = Accept(command.id, self.floor if is_own else 0, *command[2:])
        message = self._pending.add(command, reply)
        try:
            self._start()
        except StoreUnavailable as error:
            self._pending.resolve(message.number, error)
        else:
            self._watch_log()
            self._route.send(message)
        return message.number

    def _start(self) -> None:
        """Start the task of the route, or wake it up."""
        if self._closed:
            raise StoreUnavailable("This process ends.")
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._route.run())
        self._route.wake_up()

    def _watch_log(self) -> None:
        """Watch whether the log answers, while commands have no outcome (`LogWatch`)."""
        if self._watching is None or self._watching.done():
            watch = self._pending.watch
            self._watching = asyncio.create_task(watch.run(self._route.blames_log, self._pending.fail_overdue))

    def _is_needed(self) -> bool:
        return bool(len(self._pending) or self._waiters.unfinished or self._role == "executor" or self._asking)

    # Messages of the leader

    def _hello(self) -> Hello:
        return Hello(NEWEST, self._process, self._role, "")

    def _on_message(self, message: Message) -> None:
        match message:
            case NewsMessage(news):
                self._waiters.put(news)
            case Launch(call_id, attempt):
                self._launch(call_id, attempt)
            case Receipt():
                self.report_asked.set()
            case Answer(number, answered):
                self._questions.answer(number, answered)

    def _launch(self, call_id: str, attempt: int) -> None:
        """Queue a launched call. If the queue is full, drop it: its offer expires, and the gate launches it again."""
        if not self._launches.full():
            self._launches.put_nowait((call_id, attempt))

    # Questions

    async def _ask(self, topic: str, arguments: tuple[str, ...] = ()) -> str | None:
        """Return the leader's answer, or None if there is no leader or no answer within _ASK_S."""
        self._asking += 1
        self._start()
        try:
            self._route.close_stale()
            with suppress(TimeoutError):
                async with asyncio.timeout(_ASK_S):
                    return await self._ask_leader(topic, arguments)
            return None
        finally:
            self._asking -= 1

    async def _ask_leader(self, topic: str, arguments: tuple[str, ...]) -> str | None:
        """Ask the leader, and the next leader if the connection ends. Return None if this process decides alone.

        A leader that does not know the question (of another version) ends the connection too.
        """
        for _ in range(ASKS_MAX):
            await self._route.until_found()
            if self._route.channel is None:
                break
            with suppress(ConnectionLost):
                return await self._questions.ask(self._route.channel, topic, arguments)
        return None

    async def _read_shard(self) -> Shard:
        """Return this process's copy of the shard after a read of the log's end.

        Raises StoreUnavailable after READ_S or _READ_TAIL_S, and if the log cannot be used. Without this bound, the
        read would wait for an append of this process as long as the table is unavailable.
        """
        is_short = self._replica.is_loaded or self._route.blames_log()
        try:
            async with asyncio.timeout(_READ_TAIL_S if is_short else READ_S):
                await self._replica.catch_up()
        except TimeoutError:
            raise StoreUnavailable("The table does not answer.") from None
        except LogError as error:
            raise StoreUnavailable(str(error)) from None
        return self._replica.shard


def settle(waits: asyncio.Future[Outcome], outcome: Outcome | StoreUnavailable) -> None:
    """Set the result or the error of a future, unless its waiter has gone."""
    if waits.done():
        return
    if isinstance(outcome, StoreUnavailable):
        waits.set_exception(outcome)
    else:
        waits.set_result(outcome)


class Questions:
    """The questions to the leader that have no answer yet."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: dict[int, asyncio.Future[str]] = {}

    async def ask(self, channel: Channel, topic: str, arguments: tuple[str, ...]) -> str:
        """Return the leader's answer. Raises ConnectionLost if the connection ends before."""
        number = next(self._numbers)
        question: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._open[number] = question
        channel.post(Ask(number, topic, arguments))
        ended = asyncio.ensure_future(channel.ended.wait())
        try:
            await asyncio.wait((question, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            del self._open[number]
        if not question.done():
            raise ConnectionLost()
        return question.result()

    def answer(self, number: int, answered: str) -> None:
        question = self._open.get(number)
        if question is not None and not question.done():
            question.set_result(answered)
