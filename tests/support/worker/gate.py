"""A gate for a worker under test: it holds attempts, acknowledges their reports once, and can be away or behind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from dispatcher.model.commands import Attempts, Command, Done, End, Leave, Outcome, Over, Report, Return, Tick, Unknown
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.facts import Fact
from dispatcher.model.worker_protocol import execution_name
from dispatcher.shard.alone import LoneGate
from dispatcher.shard.shard import Shard


@dataclass
class ScriptedGate:
    """The part of a shard that a worker sees."""

    away: bool = False
    """Every command fails, after `hangs_s` seconds."""
    hangs_s: float = 0.0
    error: type[Exception] = StoreUnavailable
    loses: tuple[type[Command], ...] = ()
    """Commands of these kinds fail."""
    loses_reply: bool = False
    """A command is applied, and its sender gets no answer."""
    answers_s: float = 0.0
    """How long an answer takes."""
    position: int = 0
    held: dict[str, None] = field(default_factory=dict)
    """The attempts that the log holds for the worker, oldest first."""
    over: dict[str, Outcome] = field(default_factory=dict)
    tries: int = 0
    """All commands, also those that failed."""
    ended: list[End] = field(default_factory=list)
    """Ends that were applied."""
    returned: list[Return] = field(default_factory=list)
    heartbeats: list[Report] = field(default_factory=list)
    left: bool = False
    load: str = ""
    """The model that the worker should load."""

    def offer(self, call_id: str, attempt: int = 1) -> None:
        """Let the log hold an attempt for the worker."""
        self.position += 1
        self.held[execution_name(call_id, attempt)] = None

    async def do(self, command: Command) -> Outcome:
        self.tries += 1
        await asyncio.sleep(self.answers_s)
        if self.away:
            await asyncio.sleep(self.hangs_s)
            raise self.error()
        if isinstance(command, self.loses):
            raise StoreUnavailable()
        outcome = self._decide(command)
        if self.loses_reply:
            raise StoreUnavailable()
        return outcome

    def _decide(self, command: Command) -> Outcome:
        if isinstance(command, Report):
            self.heartbeats.append(command)
            self.left = False
            return Attempts(command.worker, self.position, tuple(self.held), self.load)
        if isinstance(command, Leave):
            self.left = True
            self.held.clear()
            return Done()
        if isinstance(command, End | Return):
            return self._end(command)
        raise AssertionError(f"a worker does not send {type(command).__name__}")

    def _end(self, command: End | Return) -> Outcome:
        name = execution_name(command.id, command.attempt)
        if name not in self.held:
            return self.over.get(name, Unknown(command.id))
        del self.held[name]
        self.position += 1
        if isinstance(command, Return):
            self.returned.append(command)
            return self.over.setdefault(name, Done())
        self.ended.append(command)
        return self.over.setdefault(name, Over(command.id, command.attempt, command.outcome))


@dataclass
class DecidingGate(ScriptedGate):
    """Decides as the production does, alone."""

    alone: LoneGate = field(default_factory=LoneGate)
    facts: list[Fact] = field(default_factory=list)

    def offer(self, call_id: str, attempt: int = 1) -> None:
        """The gate offers what it accepts."""

    def _decide(self, command: Command) -> Outcome:
        decided = self.alone.decide(command, Tick(), now=asyncio.get_running_loop().time())
        self.facts += decided.facts
        if decided.facts and isinstance(command, End):
            self.ended.append(command)
        if decided.facts and isinstance(command, Return):
            self.returned.append(command)
        return decided.outcome

    @property
    def shard(self) -> Shard:
        return self.alone.shard

    def slots(self, worker: str) -> int:
        """Return the slots that the gate may use."""
        return self.shard.state.workers[worker].slots_open

    def state(self, worker: str) -> str:
        return self.shard.state.workers[worker].config.state
