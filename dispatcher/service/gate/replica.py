"""A process's copy of the shard's state that can also write the next entry of the log.

If another process wrote the position first, the append returns that entry. The replica folds it and decides again. So
every decision in the log was made on the exact state before its entry. A lock lets one method run at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from zlib import crc32

from dispatcher.model.commands import Command, End, Outcome, Over, Refused
from dispatcher.model.errors import EntryTooLarge, HeadgateError, NotAccepted, StoreUnavailable, WrongClock
from dispatcher.model.facts import Fact, ModelOrdered
from dispatcher.ports import Clock, InvocationStore, Log
from dispatcher.service.gate.deciding import Committed as Committed
from dispatcher.service.gate.deciding import Decider, More, no_more
from dispatcher.service.gate.faults import REASON_CHARS_MAX, DecisionFailed, Failure
from dispatcher.service.gate.follower import (
    POSITION_MAX_AGE_S,
    ClockGuard,
    Delivery,
    Moment,
    Offload,
    StateLost,
    at_once,
    deliveries_of,
    ignore_orders,
)
from dispatcher.service.kept_answers import ends_with_answer, keep_answers, keep_outcomes, kept_ends
from dispatcher.shard.settings import ShardSettings

logger = logging.getLogger("headgate.gate")

COMMANDS_MAX = 400
"""The most commands that are decided for one entry."""
ENTRY_FULL = 300_000
"""If an entry has more bytes than this, its commands are split over two entries."""
_LOSSES_BEFORE_READ = 2
"""A position is *lost* if another process wrote it first. After this many lost positions the end of the log is read,
because there is probably more than one new entry."""
_CONTESTED_AFTER_S = 0.02
"""If other processes write too and the last read is older than this, the end of the log is read before a decision."""
KEEP_OUTCOMES_S = 1.0
"""The outcomes of an entry wait at most so long for the stored answers of its calls that ended before they ran."""
_GIVING_WAY_S = 0.02
_GIVING_WAY_LOSSES = 3
"""A process that does not lead pauses for up to _GIVING_WAY_S after each of its first _GIVING_WAY_LOSSES losses. So a
process that has lost more often gets its turn."""
_REPEAT_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The pauses before an append without an answer is repeated."""


class Deposed(Exception):
    """Another process leads in a later epoch. The commands that were being committed are not in the log."""


class Replica(Decider):
    """A copy that can write.

    `answers`: the store for the answers of durable calls; None for a replica that stores none.
    """

    def __init__(
        self,
        log: Log,
        settings: ShardSettings,
        clock: Clock,
        name: str,
        *,
        answers: InvocationStore | None = None,
        guard: ClockGuard | None = None,
        offload: Offload = at_once,
    ) -> None:
        super().__init__(log, settings, clock, name, guard, offload)
        self._answers = answers
        self._is_contested = False
        """True if another process has written an entry since this process's last commit began."""
        self._appends = 0
        """The number of appends that were begun."""
        self.on_ordered: Callable[[Sequence[str]], None] = ignore_orders
        """Called with the workers that an entry of this process orders to load a model, when it is written."""

    async def commit(self, commands: Sequence[Command], *, epoch: int | None = None, more: More = no_more) -> Committed:
        """Decide the commands, write the facts, and return the outcomes in order when the facts are in the log.

        `epoch` is the epoch of the leader that writes; None for a process that does not lead. `more` is called after
        each lost position with the number of commands that still fit, and returns further commands. Their outcomes
        follow the others.

        If the decision has no facts, the end of the log is read before the answer, and the commands are decided again.
        A leader may refuse without this read, because nearly all entries are its own.

        A command that raises an error is Refused with the code "internal_error" (faults.py).

        Raises Deposed if the log has a later epoch; NotAccepted if the log cannot be read, and none of the commands was
        written; StoreUnavailable if it is unknown whether they were written; LogCorrupt, LogGap.
        """
        before = self._appends
        try:
            return await self._commit_parts(commands, epoch, more)
        except StoreUnavailable as error:
            if self._appends != before:
                raise
            raise NotAccepted(error.message) from error

    async def _commit_parts(self, commands: Sequence[Command], epoch: int | None, more: More) -> Committed:
        async with self._lock:
            outcomes: list[Outcome] = []
            deliveries: list[Delivery] = []
            for start in range(0, len(commands), COMMANDS_MAX):
                part = await self._commit_all(list(commands[start : start + COMMANDS_MAX]), epoch, more)
                outcomes += part.outcomes
                deliveries += part.deliveries
            return Committed(outcomes, deliveries)

    async def take_over(self, address: str, epoch: int) -> bool:
        """Write an entry that makes `address` the leader, in epoch + 1.

        Return False, and write nothing, if the log's epoch is not `epoch` any more. Raises StoreUnavailable, also if
        the entry cannot be encoded: an error in the code must not end a process that can try again.
        """
        async with self._lock:
            await self._catch_up()
            while self.shard.epoch == epoch:
                await self._make_usable()
                at = self.guard.entry_time(self.shard.at)
                self.shard.begin(at)  # it decides nothing, so no error can prevent a takeover
                try:
                    written = await self._write((), at, address, epoch + 1)
                except DecisionFailed as error:
                    raise StoreUnavailable("The entry of a takeover could not be encoded.") from error
                if written is not None:
                    self.guard.stay_calm()
                    return True
            return False

    # Deciding and writing

    async def _commit(self, commands: list[Command], epoch: int | None, more: More = no_more) -> Committed:
        is_fresh = self._needs_reload() or self._is_probably_late()
        self._is_contested = False
        if is_fresh:
            await self._catch_up()
        losses, kept, now = 0, False, 0.0
        found: Sequence[Command] = ()
        while True:
            if epoch is not None and self.shard.epoch != epoch:
                raise Deposed()
            if not self.is_loaded:
                position = self.shard.position
                await self._make_usable()
                if self.shard.position != position:  # the answers were stored for an earlier state
                    kept, found = False, ()
            now = now if kept else self.guard.entry_time(self.shard.at)
            decided, facts = self._decide(found, commands, now)
            outcomes = decided[len(found) :]
            if not facts:
                self._roll_back()
                if is_fresh or (epoch is not None and all(isinstance(outcome, Refused) for outcome in outcomes)):
                    return Committed(outcomes, [])
                await self._catch_up()
                is_fresh = True
                continue
            if not kept and self._answers and self._ends_durable(commands, outcomes):
                found, commands = await self._keep(self._answers, commands, outcomes, now)
                kept = True
                continue
            try:
                ends = self.shard.durable_ends()
                deliveries = await self._write(facts, now, self.shard.leader, self.shard.epoch, commands)
                if deliveries is not None:
                    await self._keep_outcomes([over for over, attempt in ends if not attempt], now)
                    return Committed(outcomes, deliveries)
            except EntryTooLarge:
                return await self._commit_split(commands, epoch)
            losses, kept, is_fresh, found = losses + 1, False, False, ()
            commands = [*commands, *more(COMMANDS_MAX - len(commands))]
            if epoch is None and losses <= _GIVING_WAY_LOSSES:
                await self._clock.sleep(_GIVING_WAY_S * self._spread(losses))
            if losses % _LOSSES_BEFORE_READ == 0:
                await self._catch_up()
                is_fresh = True

    def _ends_durable(self, commands: list[Command], outcomes: list[Outcome]) -> bool:
        """Return whether the decision ends durable calls that ran, returns attempts as lost, or repeats an end."""
        if self.shard.lost_attempts() or any(attempt for _, attempt in self.shard.durable_ends()):
            return True
        return any(map(ends_with_answer, commands, outcomes))

    async def _keep(
        self, answers: InvocationStore, commands: list[Command], outcomes: list[Outcome], now: float
    ) -> tuple[list[End], list[Command]]:
        """Store the answers, and undo the decision.

        Return the Ends of answers that were stored before, which must be decided first, and the commands.
        """
        try:
            ran = [over for over, attempt in self.shard.durable_ends() if attempt]
            found = await kept_ends(answers, ran, self.shard.lost_attempts(), commands, now)
            return found, await keep_answers(answers, commands, outcomes, now)
        except HeadgateError:
            raise
        except Exception as error:
            raise DecisionFailed(commands, Failure(error)) from error
        finally:
            self._roll_back()

    async def _keep_outcomes(self, ends: list[Over], now: float) -> None:
        """Store answers for durable calls that ended before they ran. If that fails, a later reader makes them.

        No error may end the process here, because the entry is written and its outcomes wait.
        """
        if ends and self._answers is not None:
            try:
                async with asyncio.timeout(KEEP_OUTCOMES_S):
                    await keep_outcomes(self._answers, ends, now)
            except (StoreUnavailable, TimeoutError):
                return
            except Exception as error:
                logger.error("outcomes not stored: %s: %r", type(error).__name__, str(error)[:REASON_CHARS_MAX])

    async def _commit_split(self, commands: list[Command], epoch: int | None) -> Committed:
        if len(commands) == 1:
            message = "This command does not fit into an entry of the log."
            return Committed([Refused(getattr(commands[0], "id", ""), "too_large", message, 0.0)], [])
        half = len(commands) // 2
        first = await self._commit_sound(commands[:half], epoch)
        second = await self._commit_sound(commands[half:], epoch)  # the first half is written, whatever fails here
        return Committed(first.outcomes + second.outcomes, first.deliveries + second.deliveries)

    async def _write(
        self, facts: Sequence[Fact], now: float, leader: str, epoch: int, commands: Sequence[Command] = ()
    ) -> list[Delivery] | None:
        """Write the decision as the entry at the shard's position. Return its news.

        If another process wrote that position, undo the decision, fold the other entry, and return None. An error
        undoes the decision too. Raises DecisionFailed if the entry cannot be encoded.
        """
        self.entries_written += 1
        try:
            entry, data = self._encode(facts, now, leader, epoch)
        except Exception as error:
            raise DecisionFailed(commands, self._undo(error)) from error
        try:
            if len(data) > ENTRY_FULL:
                raise EntryTooLarge(f"The entry at position {entry.position} has {len(data)} bytes.")
            stands = await self._append(entry.position, data)
        except BaseException as error:
            self._roll_back()
            if isinstance(error, HeadgateError) or not isinstance(error, Exception):
                raise
            self._lose_state(error)  # it is unknown whether the entry was written
            raise StoreUnavailable("The log could not be written.") from error
        if stands != data:
            self._roll_back()
            with suppress(StateLost):
                self._fold(stands)
            return None
        news = self._confirm(entry)
        self._count_unsaved(entry, data)
        if self.shard.state.slots.can_swap:
            ordered = [fact.worker for fact in facts if type(fact) is ModelOrdered and fact.model]
            if ordered:
                self.on_ordered(ordered)
        return deliveries_of(entry.position, news)

    async def _append(self, position: int, data: bytes) -> bytes:
        """Repeat the append until the position is occupied. Return the bytes at the position.

        Raises WrongClock if the store refuses it at once for its time: then nothing was written, and a later append of
        these bytes would keep the wrong time.
        """
        named, began, tries = self._named, Moment(self._clock), 0
        self._appends += 1
        while True:
            try:
                stands = await self._log.append(position, data)
                break
            except StoreUnavailable as error:
                if isinstance(error, WrongClock) and not tries:
                    raise
                await self._clock.sleep(self._pause_s(tries))
                tries += 1
        if named is None or named.age_s() > POSITION_MAX_AGE_S:
            self._named = None
            raise StoreUnavailable("The table did not answer for so long that it is unknown what was written.")
        if stands == data:
            self._named = began
        return stands

    def _pause_s(self, tries: int) -> float:
        """Return a pause in seconds. It differs between processes, but needs no random source."""
        return _REPEAT_S[min(tries, len(_REPEAT_S) - 1)] * (0.5 + self._spread(tries))

    def _spread(self, tries: int) -> float:
        return crc32(f"{self.name}:{self.entries_written}:{tries}".encode()) / 2**32

    def _is_probably_late(self) -> bool:
        return self._is_contested and self._named is not None and self._named.age_s() > _CONTESTED_AFTER_S

    def _fold(self, data: bytes) -> None:
        self._is_contested = True
        super()._fold(data)
