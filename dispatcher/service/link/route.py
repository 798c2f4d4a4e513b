"""Chooses where a process's commands go: over a connection to the leader, or into entries that the process appends.

A process that reaches no leader for ALONE_AFTER_S decides alone, and looks for a leader once a second. If the same
leader cannot be reached again later, the process decides alone at once.

A process that is `Alone` appends entries as a leader does, and polls its mailbox. Its entries repeat the leader and the
epoch of the entry before. News for other processes go to their mailboxes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from dispatcher.model.commands import Accept, Offer, Outcome, Over, Present, Status
from dispatcher.model.errors import BadFrame, ConnectionLost, LogError, StoreUnavailable
from dispatcher.model.facts import Entry
from dispatcher.model.formats import OLDEST
from dispatcher.ports import Clock, Connection, MailboxStore
from dispatcher.service.frames import Do, Hello, Message, NotLeader, Result, decode_news
from dispatcher.service.gate.courier import Courier
from dispatcher.service.gate.follower import Delivery
from dispatcher.service.gate.group_commit import GroupCommit, no_reply, unwritten
from dispatcher.service.gate.replica import Replica
from dispatcher.service.link.channel import Channel, LinkPatience
from dispatcher.service.link.finder import Finder, Fleet
from dispatcher.service.link.pending import SUSPECT_S, VACANT_S, Pending, Waiters

_MAILBOX_POLL_S = 0.15
"""The time between two polls of the mailbox, while calls wait. A poll is left out if this process has just read the
log, which has the same news."""
_SELDOM_S = 2.0
"""The mailbox is polled at least this often. Then the process also submits Present, in case it is silent in the log."""


class Alone:
    """Decides while this process reaches no leader. `others` delivers news to other processes."""

    def __init__(
        self,
        replica: Replica,
        clock: Clock,
        mailboxes: MailboxStore,
        others: Courier,
        pending: Pending,
        waiters: Waiters,
    ) -> None:
        self._replica, self._clock, self._mailboxes, self._others = replica, clock, mailboxes, others
        self._pending, self._waiters = pending, waiters
        self._commits = GroupCommit(replica, clock, self._deliver, self._on_store_failure)
        self._read_to = -1
        replica.on_entry = self._on_entry

    def do(self, command: Do) -> None:
        self._pending.sent(command.number)
        if isinstance(command.command, Accept) and self._commits.is_stalled:
            self._pending.resolve(command.number, unwritten(command.command))
            return
        self._commits.add(command.command, partial(self._pending.resolve, command.number))

    async def run(self) -> None:
        """Decide and poll until `stop`. If the log fails, the error becomes the outcome of the commands."""
        for command in self._pending:
            self.do(command)
        polls = asyncio.create_task(self._poll())
        try:
            await self._commits.run()
        except LogError as error:
            self._on_store_failure(StoreUnavailable(str(error)), self._commits)
        finally:
            polls.cancel()

    def stop(self) -> None:
        """Stop after the entry that is being written."""
        self._commits.stop()

    def _deliver(self, deliveries: list[Delivery]) -> None:
        mine = self._replica.name
        for delivery in deliveries:
            if delivery.process == mine:
                self._waiters.put(delivery.news)
        self._others.deliver([delivery for delivery in deliveries if delivery.process != mine])

    def _on_entry(self, entry: Entry, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.process == self._replica.name:
                self._waiters.put(delivery.news)

    def _on_store_failure(self, error: StoreUnavailable, commits: GroupCommit) -> None:
        for item in commits.take_all():
            item.reply(error)

    # Waiting calls

    async def _poll(self) -> None:
        polls = 0
        while True:
            await self._clock.sleep(_MAILBOX_POLL_S)
            self._commits.watch()
            if self._commits.is_stalled:
                self._commits.withdraw()
            if not self._waiters.unfinished:
                continue
            polls += 1
            is_seldom = polls % round(_SELDOM_S / _MAILBOX_POLL_S) == 0
            if is_seldom:
                self._commits.add(Present(self._replica.name), no_reply)
            if is_seldom or self._replica.age_s >= _MAILBOX_POLL_S:
                await self._read_mailbox()

    async def _read_mailbox(self) -> None:
        try:
            letters = await self._mailboxes.read(self._replica.name, self._read_to)
        except StoreUnavailable:
            return
        for position, letter in letters:
            self._read_to = max(self._read_to, position)
            with suppress(BadFrame):  # written by a process of another version
                self._waiters.put(decode_news(letter))


ALONE_AFTER_S = 1.0
SEARCH_S = 0.05
"""The pause between two searches while there may soon be a leader."""
_SEARCH_ALONE_S = 1.0
_NO_LEADER_KEPT_S = 2.0
"""If the log named no leader at its last read or append, this process does not search for one within this time."""


class Route:
    """Keeps a connection to the leader, or decides alone, while `is_needed` returns true.

    Outcomes go to `pending`. `received` gets the leader's other messages.
    """

    def __init__(
        self,
        fleet: Fleet,
        replica: Replica,
        mailboxes: MailboxStore,
        others: Courier,
        pending: Pending,
        waiters: Waiters,
        *,
        hello: Callable[[], Hello],
        received: Callable[[Message], None],
        is_needed: Callable[[], bool],
    ) -> None:
        self._clock, self._replica, self._mailboxes, self._others = fleet.clock, replica, mailboxes, others
        self._pending, self._waiters = pending, waiters
        self._hello, self._received, self._is_needed = hello, received, is_needed
        self._finder, self._patience = Finder(fleet), LinkPatience()
        self.channel: Channel | None = None
        self.alone: Alone | None = None
        self._searching_since = fleet.clock.monotonic()
        self._vacant_since: float | None = None
        """When the last leader stepped down, or a process that the log names as leader answered that it is none."""
        self._given_up = ("", -1)
        """Address and epoch of the last leader that could not be reached."""
        self._reads = OLDEST
        """The highest format that the last leader read."""
        self._asked: set[str] = set()
        """The calls for which this route has asked the status, and has no answer yet."""
        self._wakeup, self._found = asyncio.Event(), asyncio.Event()
        self.lost = asyncio.Event()
        """Set when a connection to the leader ends."""

    @property
    def is_found(self) -> bool:
        return (self.channel is not None and not self.channel.closed) or self.alone is not None

    def blames_log(self) -> bool:
        """Return whether the present state counts against the log (`LogWatch`)."""
        if self.channel is not None and self.channel.receipts:
            return True
        if self._finder.finds_no_log or self._pending.watch.is_suspected:
            return True
        if self.alone is not None:
            return self._replica.is_loaded
        vacant = self._vacant_since
        return vacant is not None and self._clock.monotonic() - vacant >= VACANT_S

    def _suspect_log(self) -> None:
        """Suspect the log if it did not answer while this process could reach it through a leader or by itself."""
        if self._pending.longest_s >= SUSPECT_S:
            self._pending.watch.is_suspected = True

    async def until_found(self) -> None:
        """Wait until there is a connection to the leader, or until this process decides alone."""
        while not self.is_found:
            self._found.clear()
            await self._found.wait()

    def wake_up(self) -> None:
        """Make `run` check again whether the shard is needed."""
        self._wakeup.set()

    def close_stale(self) -> bool:
        """Close the connection if no message arrived for channel.STALE_S, because this process may have been frozen.

        Return whether it was closed.
        """
        if self.channel is None or not self.channel.is_stale:
            return False
        self.channel.close()
        return True

    def send(self, pending: Do) -> None:
        """Send a command. Without a connection it stays pending, and is sent as soon as there is one."""
        if self.close_stale():
            return
        if self.channel is not None:
            self._post(self.channel, pending)
        elif self.alone is not None:
            self.alone.do(pending)

    async def run(self) -> None:
        """Connect to the leader or decide alone while it is needed, and search again after each loss."""
        while True:
            if not self._is_needed():
                self._wakeup.clear()
                await self._wakeup.wait()
                self._searching_since = self._clock.monotonic()
            connection, may_come = (None, False) if self._has_no_leader() else await self._look()
            if connection is not None and await self._led(connection):
                continue
            if (connection is not None or may_come) and not self._gives_up():
                await self._clock.sleep(SEARCH_S)
            else:
                self._given_up = self._finder.known[:2]
                await self._decide_alone()

    async def _look(self) -> tuple[Connection | None, bool]:
        """Return a connection to the leader or None, and whether there may soon be a leader."""
        try:
            return await self._finder.connect(), False
        except ConnectionLost:
            return None, True
        except LogError:
            return None, False

    def _has_no_leader(self) -> bool:
        """Return whether this process read or wrote the log within _NO_LEADER_KEPT_S, and the log named no leader."""
        return not self._replica.shard.leader and self._replica.age_s < _NO_LEADER_KEPT_S

    def _gives_up(self) -> bool:
        """Return whether to stop the search and decide alone."""
        searching_s = self._clock.monotonic() - self._searching_since
        return searching_s >= ALONE_AFTER_S or self._finder.known[:2] == self._given_up

    # With a leader

    async def _led(self, connection: Connection) -> bool:
        """Repeat the commands without an outcome, then exchange messages with the leader until the connection ends.

        Return False if no receipt arrived: the other process does not lead.
        """
        began_at, self.channel = (
            self._clock.monotonic(),
            Channel(connection, self._clock, self._patience, reads=self._reads),
        )
        channel = self.channel
        self._found.set()
        channel.post(self._hello())
        self._ask_status()
        for pending in self._pending:
            self._post(channel, pending)
        try:
            await channel.run(self._take)
        finally:
            self.channel = None
        self._reads = channel.reads if channel.receipts else OLDEST
        if channel.receipts:
            self._suspect_log()
            if self._vacant_since is not None and self._vacant_since < began_at:
                self._vacant_since = None
            self.lost.set()
            self._given_up = ("", -1)
            self._searching_since = self._clock.monotonic()
        return channel.receipts > 0

    def _post(self, channel: Channel, pending: Do) -> None:
        self._pending.sent(pending.number)
        channel.post(pending)

    def _take(self, message: Message) -> None:
        if isinstance(message, Result):
            self._vacant_since = None
            self._pending.resolve(message.number, message.outcome)
        elif isinstance(message, NotLeader):
            self._finder.redirect = message.address
            if not message.address and self._vacant_since is None:
                self._vacant_since = self._clock.monotonic()
            if self.channel is not None:
                self.channel.close()
        else:
            self._received(message)

    def _ask_status(self) -> None:
        """Ask for the status of the unfinished calls, because their news may have been lost without a connection.

        The outcome of a pending Accept reaches its call. The outcome of any other pending command does not.
        """
        accepts = (pending.command.id for pending in self._pending if isinstance(pending.command, Accept))
        expected = self._asked.union(accepts)
        for call_id in self._waiters.unfinished:
            if call_id not in expected:
                self._asked.add(call_id)
                self._pending.add(Status(call_id), partial(self._take_status, call_id))

    def _take_status(self, call_id: str, outcome: Outcome | StoreUnavailable) -> None:
        """Treat the answer to a Status as news."""
        self._asked.discard(call_id)
        if isinstance(outcome, Offer | Over):
            self._waiters.put(outcome)

    # Without a leader

    async def _decide_alone(self) -> None:
        """Decide alone until a leader is reached."""
        self._ask_status()
        self.alone = Alone(self._replica, self._clock, self._mailboxes, self._others, self._pending, self._waiters)
        self._found.set()
        work = asyncio.create_task(self.alone.run())
        connection = None
        try:
            while connection is None and self._is_needed() and not work.done():
                await asyncio.wait((work,), timeout=_SEARCH_ALONE_S)
                if not self._has_no_leader():
                    connection, _ = await self._look()
            if work.done():
                await self._clock.sleep(SEARCH_S)
            await self._leave_alone(work)
        finally:
            work.cancel()
            self.alone = None
        if connection is not None:
            await self._led(connection)

    async def _leave_alone(self, work: asyncio.Task[None]) -> None:
        """Stop deciding alone, after the entry that is being written."""
        self._suspect_log()
        alone, self.alone = self.alone, None
        if alone is not None:
            alone.stop()
        await asyncio.wait((work,))
