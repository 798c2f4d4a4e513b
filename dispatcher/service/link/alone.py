"""Decides in a process that reaches no leader. It appends entries as a leader does, and polls its mailbox.

Its entries repeat the leader and the epoch of the entry before. News for other processes go to their mailboxes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from dispatcher.model.commands import Accept, Offer, Outcome, Over, Present
from dispatcher.model.errors import BadFrame, LogError, StoreUnavailable
from dispatcher.model.facts import Entry
from dispatcher.ports import Clock, MailboxStore
from dispatcher.service.codec.frames import Do, decode_news
from dispatcher.service.gate.courier import Courier
from dispatcher.service.gate.follower import Delivery
from dispatcher.service.gate.group_commit import GroupCommit, no_reply, unwritten
from dispatcher.service.gate.replica import Replica
from dispatcher.service.link.pending import Pending
from dispatcher.service.link.waiters import Waiters

MAILBOX_POLL_S = 0.15
"""The time between two polls of the mailbox, while calls wait. A poll is left out if this process has just read the
log, which has the same news."""
SELDOM_S = 2.0
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
            await self._clock.sleep(MAILBOX_POLL_S)
            self._commits.watch()
            if self._commits.is_stalled:
                self._commits.withdraw()
            if not self._waiters.unfinished:
                continue
            polls += 1
            is_seldom = polls % round(SELDOM_S / MAILBOX_POLL_S) == 0
            if is_seldom:
                self._commits.add(Present(self._replica.name), no_reply)
            if is_seldom or self._replica.age_s >= MAILBOX_POLL_S:
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


def news_of_status(waiters: Waiters, outcome: Outcome | StoreUnavailable) -> None:
    """Treat the answer to a Status as news."""
    if isinstance(outcome, Offer | Over):
        waiters.put(outcome)
