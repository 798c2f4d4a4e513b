"""A process's way to the shard: ports.GateLink.

Commands go to the leader that the last entry of the log names. They are kept until their outcome, and repeated to the
next leader if the connection breaks or receipts stay out. A process that reaches no leader for ALONE_AFTER_S decides
alone, by the same append, and looks for a leader once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from dispatcher.model.commands import Accept, Command, Offer, Outcome, Over, Status, parse_call_id
from dispatcher.model.errors import ConnectionLost, LogError, StoreUnavailable
from dispatcher.model.facts import WorkerSet
from dispatcher.model.usage import UsageRow
from dispatcher.ports import Connection, InvocationStore, Launcher, MailboxStore
from dispatcher.service.codec.frames import (
    VERSION,
    Ask,
    Do,
    Hello,
    Launch,
    Message,
    News,
    NotLeader,
    Reply,
    Result,
)
from dispatcher.service.courier import Courier
from dispatcher.service.link.alone import Alone, news_of_status
from dispatcher.service.link.channel import Channel
from dispatcher.service.link.finder import Finder, Fleet
from dispatcher.service.link.pending import Pending, PendingCommand
from dispatcher.service.link.waiters import Waiters
from dispatcher.service.questions import read_fleet, read_usage, usage
from dispatcher.service.replica import Replica
from dispatcher.shard.settings import ShardSettings

ALONE_AFTER_S = 1.0
SEARCH_S = 0.05
"""Pause between two looks for a leader while there may be one soon."""
SEARCH_ALONE_S = 1.0
COMMAND_S = 55.0
"""After this time a command without an outcome fails. The leader refuses those that are older than a minute."""
ASK_S = 1.0
FLEET_KEPT_S = 1.0
LAUNCHES_MAX = 1000


class Link:
    """`process`: the name of this incarnation, at most 12 characters. Made and used within one event loop."""

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
        self._process, self._fleet, self._clock = process, fleet, fleet.clock
        self._mailboxes = mailboxes
        self._others = Courier(mailboxes, launcher, fleet.clock)
        self._replica = Replica(fleet.log, settings, fleet.clock, process, answers=answers)
        self._pending = Pending(fleet.clock)
        self._waiters = Waiters(process)
        self._finder = Finder(fleet)
        self._channel: Channel | None = None
        self._alone: Alone | None = None
        self._questions: dict[int, asyncio.Future[str]] = {}
        self._launches: asyncio.Queue[tuple[str, int]] = asyncio.Queue(LAUNCHES_MAX)
        self._role = "client"
        self._searching_since = 0.0
        self._given_up = ("", -1)
        """Address and epoch of a leader that was not reached."""
        self._fleet_read: tuple[float, Sequence[WorkerSet]] = (0.0, ())
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    # ports.GateLink

    @property
    def process(self) -> str:
        return self._process

    @property
    def floor(self) -> int:
        return self._waiters.floor

    def new_id(self) -> str:
        return self._waiters.new_id()

    async def do(self, command: Command) -> Outcome:
        if isinstance(command, Accept):
            command = self._expected(command)
        pending = self._pending.add(command)
        self._start()
        self._send(pending)
        try:
            async with asyncio.timeout(COMMAND_S):
                outcome = await pending.outcome
        except TimeoutError:
            raise StoreUnavailable("Neither a leader nor the table answers.") from None
        finally:
            self._pending.drop(pending.number)
        if isinstance(outcome, Offer):
            self._waiters.seen(outcome)
        return outcome

    async def news(self, call_id: str, timeout_s: float) -> Offer | Over | None:
        self._start()
        return await self._waiters.wait(call_id, timeout_s)

    def forget(self, call_id: str) -> None:
        self._waiters.forget(call_id)

    async def launched(self) -> tuple[str, int]:
        if self._role != "executor":
            self._role = "executor"
            if self._channel is not None:
                self._channel.post(self._hello())
        self._start()
        return await self._launches.get()

    async def fleet(self) -> Sequence[WorkerSet]:
        read_at, workers = self._fleet_read
        if not read_at or self._clock.monotonic() - read_at > FLEET_KEPT_S:
            answered = await self._ask("fleet", ())
            workers = await self._own_fleet() if answered is None else read_fleet(answered)
            self._fleet_read = self._clock.monotonic(), workers
        return workers

    async def usage(self, tenant: str | None, first_hour: int, last_hour: int) -> Sequence[UsageRow]:
        answered = await self._ask("usage", (tenant or "", str(first_hour), str(last_hour)))
        if answered is not None:
            return read_usage(answered)
        await self._replica.catch_up()
        return usage(self._replica.shard, tenant, first_hour, last_hour)

    async def rest(self) -> None:
        while len(self._pending):
            await asyncio.wait([pending.outcome for pending in self._pending])
            await asyncio.sleep(0)
        await self._others.finish()

    async def close(self) -> None:
        """End the connection. Commands without an outcome fail."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for pending in self._pending:
            self._pending.resolve(pending.number, StoreUnavailable("This process ends."))

    # Commands

    def _expected(self, command: Accept) -> Accept:
        """Keep the call's news from now on, and name what this process may still repeat."""
        self._waiters.expect(command.id)
        is_own = parse_call_id(command.id)[0] == self._process
        return command._replace(floor=self.floor if is_own else 0)

    def _send(self, pending: PendingCommand) -> None:
        if self._channel is not None and self._channel.is_stale:
            self._channel.close()
        elif self._channel is not None:
            self._channel.post(Do(*pending[:3]))
        elif self._alone is not None:
            self._alone.do(pending)

    def _start(self) -> None:
        """Begin the work behind this link, or wake it up."""
        if self._closed:
            raise StoreUnavailable("This process ends.")
        if self._task is None or self._task.done():
            self._searching_since = self._clock.monotonic()
            self._task = asyncio.create_task(self._run())
        self._wakeup.set()

    @property
    def _is_needed(self) -> bool:
        return bool(len(self._pending) or self._waiters.unfinished or self._role == "executor" or self._questions)

    # The way to the shard

    async def _run(self) -> None:
        while True:
            if not self._is_needed:
                self._wakeup.clear()
                await self._wakeup.wait()
                self._searching_since = self._clock.monotonic()
            try:
                connection = await self._finder.connect()
                if connection is not None:
                    await self._led(Channel(connection, self._clock))
                    continue
                has_leader = False
            except ConnectionLost:
                has_leader = True
            except LogError:
                has_leader = False
            if has_leader and not self._gives_up():
                await self._clock.sleep(SEARCH_S)
            else:
                self._given_up = self._finder.known[:2]
                await self._decide_alone()

    def _gives_up(self) -> bool:
        """Has no leader been reached for long enough? One that was given up before is not waited for again."""
        searching_s = self._clock.monotonic() - self._searching_since
        return searching_s >= ALONE_AFTER_S or self._finder.known[:2] == self._given_up

    async def _led(self, channel: Channel) -> None:
        """Exchange messages with the leader until it is lost."""
        self._channel = channel
        self._given_up = ("", -1)
        channel.post(self._hello())
        for pending in self._pending:
            channel.post(Do(*pending[:3]))
        self._ask_status(channel)
        try:
            await channel.run(self._received)
        finally:
            self._channel = None
            self._searching_since = self._clock.monotonic()

    async def _decide_alone(self) -> None:
        """Decide without a leader, until one is reached that a last look found."""
        self._alone = Alone(self._replica, self._clock, self._mailboxes, self._others, self._pending, self._waiters)
        work = asyncio.create_task(self._alone.run())
        try:
            while self._channel is None and self._is_needed and not work.done():
                await asyncio.wait((work,), timeout=SEARCH_ALONE_S)
                connection = await self._look()
                if connection is not None:
                    await self._leave_alone(work)
                    return await self._led(Channel(connection, self._clock))
            if work.done() and self._is_needed:
                await self._clock.sleep(SEARCH_ALONE_S)
            await self._leave_alone(work)
        finally:
            work.cancel()
            self._alone = None

    async def _leave_alone(self, work: asyncio.Task[None]) -> None:
        """Stop deciding alone, after the entry that is being written."""
        alone, self._alone = self._alone, None
        if alone is not None:
            alone.stop()
        await asyncio.wait((work,))

    async def _look(self) -> Connection | None:
        try:
            return await self._finder.connect()
        except (ConnectionLost, LogError):
            return None

    # Messages of the leader

    def _hello(self) -> Hello:
        return Hello(VERSION, self._process, self._role, "")

    def _received(self, message: Message) -> None:
        match message:
            case Result(number, outcome):
                self._pending.resolve(number, outcome)
            case News(news):
                self._waiters.put(news)
            case Launch(call_id, attempt):
                self._launch(call_id, attempt)
            case Reply(number, answered):
                self._reply(number, answered)
            case NotLeader(address, _):
                self._finder.redirect = address
                if self._channel is not None:
                    self._channel.close()

    def _reply(self, number: int, answered: str) -> None:
        question = self._questions.get(number)
        if question is not None and not question.done():
            question.set_result(answered)

    def _launch(self, call_id: str, attempt: int) -> None:
        """Note a call to execute. If too many are noted, its offer is not begun in time, and it is launched again."""
        if not self._launches.full():
            self._launches.put_nowait((call_id, attempt))

    def _ask_status(self, channel: Channel) -> None:
        """Ask what became of the calls while no leader was heard."""
        accepting = {getattr(pending.command, "id", "") for pending in self._pending}
        for call_id in self._waiters.unfinished:
            if call_id not in accepting:
                pending = self._pending.add(Status(call_id))
                pending.outcome.add_done_callback(partial(_take_status, self._waiters))
                channel.post(Do(*pending[:3]))

    # Questions

    async def _ask(self, topic: str, arguments: tuple[str, ...]) -> str | None:
        """Return the leader's answer, or None if there is no leader or no answer."""
        self._start()
        number = len(self._questions) + 1
        while number in self._questions:
            number += 1
        question: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._questions[number] = question
        try:
            async with asyncio.timeout(ASK_S):
                while self._channel is None:
                    if self._alone is not None:
                        return None
                    await self._clock.sleep(SEARCH_S)
                self._channel.post(Ask(number, topic, arguments))
                return await question
        except TimeoutError:
            return None
        finally:
            del self._questions[number]

    async def _own_fleet(self) -> Sequence[WorkerSet]:
        await self._replica.catch_up()
        return self._replica.shard.fleet()


def _take_status(waiters: Waiters, outcome: asyncio.Future[Outcome]) -> None:
    if not outcome.cancelled() and outcome.exception() is None:
        news_of_status(waiters, outcome.result())
