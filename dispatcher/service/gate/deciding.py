"""A copy of the shard's state that decides commands. An error in a decision ends the command at fault, and no other.

A decision that raises is undone, and the commands at fault are refused (faults.py). Before its entry is written, the
entry's bytes are decoded and compared with the facts, which were folded when they were decided (shard/codec.py). So the
log has no entry that cannot be decoded and folded.

If a decision cannot be undone exactly, because a fact was folded in part or an inverse raised, then the state is loaded
again from the snapshot and the entries after it before it is used again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dispatcher.model.commands import Command, Outcome
from dispatcher.model.facts import Dispatched, Entry, Fact
from dispatcher.ports import Clock, Log
from dispatcher.service.gate.faults import RELOAD_COST, DecisionFailed, Failure, Faults, owner_of
from dispatcher.service.gate.follower import ClockGuard, Delivery, Follower, Offload
from dispatcher.shard.codec import encode_entry
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.steps import News


class Committed(NamedTuple):
    outcomes: list[Outcome]
    deliveries: list[Delivery]


More = Callable[[int], Sequence[Command]]


def no_more(_room: int) -> Sequence[Command]:
    """Return no further commands for a commit that is under way."""
    return ()


class Decider(Follower):
    """`name`: the name of this process, new at every start. A subclass writes entries (`_commit`)."""

    def __init__(
        self, log: Log, settings: ShardSettings, clock: Clock, name: str, guard: ClockGuard | None, offload: Offload
    ) -> None:
        super().__init__(log, settings, clock, offload)
        self.name = name
        self.guard = guard or ClockGuard(clock)
        self.faults = Faults(clock, name)
        self.entries_written = 0
        """The number of entries that this replica tried to write. It is a part of `Entry.writer`."""

    async def _commit(self, commands: list[Command], epoch: int | None, more: More = no_more) -> Committed:
        """Decide the commands and write their entry. Raises DecisionFailed, with nothing written."""
        raise NotImplementedError

    async def _commit_all(self, commands: list[Command], epoch: int | None, more: More = no_more) -> Committed:
        """Commit the commands. Those of suspects come after the others, in an entry of their own."""
        if not self.faults.has_suspects or not (apart := self.faults.suspected(self.shard.state, commands)):
            return await self._commit_sound(commands, epoch, more)
        own = set(apart)
        others = [command for place, command in enumerate(commands) if place not in own]
        first = await self._commit_sound(others, epoch, more) if others else Committed([], [])
        self.faults.decided(len(others))
        suspected = [commands[place] for place in apart]
        if self.faults.may_try():
            last = await self._commit_sound(suspected, epoch)
        else:
            last = Committed([self.faults.refuse_untried(self.shard.state, each) for each in suspected], [])
        outcomes = first.outcomes
        for place, outcome in zip(apart, last.outcomes, strict=True):
            outcomes.insert(place, outcome)
        return Committed(outcomes, [*first.deliveries, *last.deliveries])

    async def _commit_sound(self, commands: list[Command], epoch: int | None, more: More = no_more) -> Committed:
        """Commit the commands that raise no error, and refuse the others."""
        try:
            return await self._commit(commands, epoch, more)
        except DecisionFailed as error:
            failed = error
        await self._make_usable()
        commands = list(failed.commands)
        found = await self.faults.search(lambda: self.shard.state, failed, self._attempt)
        if not found.refused and not found.ends:
            return await self._commit_halves(commands, failed, epoch)
        good = [command for place, command in enumerate(commands) if place not in found.refused]
        done = Committed([], [])
        if good or found.ends:
            done = await self._commit_sound([*found.ends, *good], epoch)
        outcomes = done.outcomes[len(found.ends) :]
        for place, refused in sorted(found.refused.items()):
            outcomes.insert(place, refused)
        return Committed(outcomes, done.deliveries)

    async def _commit_halves(self, commands: list[Command], failed: DecisionFailed, epoch: int | None) -> Committed:
        """Commit commands that failed though no part of them does, in two entries. Refuse a single command."""
        if len(commands) == 1:
            owner = owner_of(self.shard.state, commands[0])
            return Committed([self.faults.refuse(owner, commands[0], failed.failure.error)], [])
        half = len(commands) // 2
        first = await self._commit_sound(commands[:half], epoch)
        second = await self._commit_sound(commands[half:], epoch)
        return Committed(first.outcomes + second.outcomes, first.deliveries + second.deliveries)

    # Tentative decisions

    def _decide(
        self, found: Sequence[Command], commands: Sequence[Command], now: float
    ) -> tuple[list[Outcome], tuple[Fact, ...]]:
        """Return the outcomes of `found` and then `commands`, and the facts. Raises DecisionFailed."""
        try:
            return self.shard.decide([*found, *commands], now)
        except Exception as error:
            raise DecisionFailed(commands, self._undo(error)) from error

    def _encode(self, facts: Sequence[Fact], now: float, leader: str, epoch: int) -> tuple[Entry, bytes]:
        """Return the entry at the shard's position, and its bytes, which were decoded for a check. Raises any error
        that an encoder or decoder raises."""
        writer = f"{self.name}:{self.entries_written}"
        entry = Entry(self.shard.position, now, writer, leader, epoch, tuple(facts))
        return entry, encode_entry(entry, self.shard.state.format, checked=True)

    async def _attempt(self, commands: Sequence[Command]) -> Failure | None:
        """Decide the commands, encode the entry, and undo it all. Return the failure, or None."""
        now = self.guard.entry_time(self.shard.at)
        failure = None
        try:
            _, facts = self.shard.decide(commands, now)
            self._encode(facts, now, self.shard.leader, self.shard.epoch)
        except Exception as error:
            failure = self._undo(error)
        else:
            self._roll_back()
        await self._make_usable()
        return failure

    def _undo(self, error: Exception) -> Failure:
        """Undo the decision that raised the error. Return why it failed."""
        decision = self.shard.decision
        if decision is None:
            return Failure(error)
        dispatched = (fact for fact in decision.facts if isinstance(fact, Dispatched))
        call_id = decision.dispatching or next((fact.id for fact in dispatched if not _is_sound(fact)), "")
        if decision.is_folding:
            self._lose_state(error)
        else:
            self._roll_back()
        return Failure(error, call_id)

    def _roll_back(self) -> None:
        """Undo the decision. If that raises, the state is loaded again before it is used."""
        try:
            self.shard.rollback()
        except Exception as error:
            self._lose_state(error)

    def _confirm(self, entry: Entry) -> list[News]:
        """Keep the decision: its entry is in the log. Return its news, also if the state has to be loaded again."""
        decision = self.shard.decision
        news = decision.news if decision is not None else []
        try:
            self.shard.confirm(entry)
        except Exception as error:
            self._lose_state(error)
        return news

    async def _make_usable(self) -> None:
        """Load the state again if a decision could not be undone. Raises StoreUnavailable."""
        if not self.is_loaded:
            self.faults.wasted(RELOAD_COST)
            await self._catch_up()


def _is_sound(fact: Fact) -> bool:
    """Return whether the fact can be encoded."""
    try:
        encode_entry(Entry(0, 0.0, "", "", 0, (fact,)), checked=True)
    except Exception:
        return False
    return True
