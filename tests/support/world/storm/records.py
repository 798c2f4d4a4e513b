"""What happened in a storm.

Books        beside the log: executions in the engines, and what the callers got
RecordedLog  the log with its whole history, and the reference: a shard that folds each entry when it is written
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from dispatcher.model.errors import LogCorrupt
from dispatcher.model.facts import Accepted, Dispatched, Dropped, Ended, Entry, Fact, ProcessLost, Returned, WorkerLost
from dispatcher.shard.codec import decode_entry
from dispatcher.shard.fold import fold
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.state.state import State
from dispatcher.shard.steps import News
from tests.support.world.memory_store import LogData


class Execution:
    """One execution in an engine. `incarnation`: of the worker's process."""

    __slots__ = ("ended", "incarnation", "input_tokens", "name", "output_tokens", "reason", "worker")

    def __init__(self, name: str, worker: str, incarnation: int, input_tokens: int) -> None:
        self.name, self.worker, self.incarnation = name, worker, incarnation
        self.input_tokens, self.output_tokens = input_tokens, 0
        self.ended = False
        self.reason = ""

    def text(self) -> str:
        """Return what it generated so far."""
        return text_of(self.name, self.output_tokens)


def text_of(name: str, tokens: int) -> str:
    """Return the text of an execution: two executions differ in every token."""
    return "".join(token_of(name, number) for number in range(1, tokens + 1))


def token_of(name: str, number: int) -> str:
    return f"{name}:{number} "


class Answered(NamedTuple):
    """What one request got. `code`: "done", an error's code, "left" or "front died"."""

    caller: int
    front: str
    id: str
    key: str
    tenant: str
    code: str
    text: str
    input_tokens: int
    output_tokens: int
    """As the last event says; of an error the tokens that came."""
    streamed: bool
    """It read the events of the execution; else it waited for the answer of a durable call."""
    at: float
    began: float
    interaction: str


@dataclass
class Books:
    executions: dict[str, Execution] = field(default_factory=dict)
    """By the execution's name."""
    twice: list[str] = field(default_factory=list)
    """Executions that began again in one process. A worker's next process may begin what died with the last one."""
    streams: set[str] = field(default_factory=set)
    """Calls of which a caller gets each token at once."""
    refused: set[str] = field(default_factory=set)
    """Executions that an engine refused to begin."""
    answers: list[Answered] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    """The code with which the gate refused a call without a key, by id."""
    trace: list[str] = field(default_factory=list)
    """What happened, line by line: equal in each run of a seed."""

    def note(self, at: float, text: str) -> None:
        self.trace.append(f"{at - 1_000_000:9.4f}  {text}")


End = Ended | Dropped


class Reference(Shard):
    """A shard that calls `before_fact` with the state before each fact that it folds, and with the fact."""

    def __init__(self, settings: ShardSettings) -> None:
        super().__init__(settings)
        self.before_fact: Callable[[State, Fact], None] = lambda _state, _fact: None

    def fold(self, entry: Entry) -> list[News]:
        if entry.position != self.state.position:
            raise LogCorrupt(f"entry {entry.position} follows entry {self.state.position - 1}")
        self._at_before, self.state.at = self.state.at, max(self.state.at, entry.at)
        self.state.waits.ended.clear()
        news: list[News] = []
        for fact in entry.facts:
            self.before_fact(self.state, fact)
            news += fold(self.state, fact)
        self._advance(entry)
        return news


class RecordedLog(LogData):
    """`on_entry` is called with each entry after the reference folded it."""

    def __init__(self, shard: str, settings: ShardSettings) -> None:
        super().__init__(shard)
        self.reference = Reference(settings)
        self.history: list[bytes] = []
        self.zombies: list[tuple[int, bytes]] = []
        """Entries that were written at positions that were written before and had expired."""
        self.accepted: dict[str, list[Accepted]] = {}
        self.accepted_at: dict[str, float] = {}
        self.numbers: dict[str, float] = {}
        """The number of each call in the order of acceptance. A call of the present entry may not have one yet."""
        self.written_in: dict[str, float] = {}
        """When the first entry with each call was written, by the world's clock."""
        self.attempts: dict[tuple[str, int], Dispatched] = {}
        self.dispatched_in: dict[tuple[str, int], int] = {}
        """The position of the entry that dispatched each attempt."""
        self.returned: dict[tuple[str, int], Returned] = {}
        self.fenced: dict[tuple[str, int], Returned] = {}
        """The attempts that were returned by a worker, and not because its lease was over."""
        self.ends: dict[str, list[End]] = {}
        self.holders: dict[str, str] = {}
        """The process that held each call when its last attempt was dispatched."""
        self.models: dict[str, str] = {}
        """The model of each worker, by the last WorkerSet."""
        self.ordered: dict[str, str] = {}
        """The model that each worker should load."""
        self.wasted: Counter[str] = Counter()
        """Offers to dead processes, by process."""
        self.not_launched: Counter[str] = Counter()
        """Offers after the calm that no process began, of calls that no process holds."""
        self.epochs: set[int] = set()
        self.at = 0.0
        """The time of the entry before the one that `on_entry` gets."""
        self.corrupt = ""
        self.on_entry: Callable[[Entry], None] = _ignore

    def append(self, position: int, entry: bytes, now: float) -> bytes:
        if position in self.entries:
            return super().append(position, entry, now)
        if position < len(self.history):
            self.zombies.append((position, entry))
            return super().append(position, entry, now)
        if position > len(self.history):
            self.corrupt = self.corrupt or f"position {position} was written after {len(self.history) - 1}"
        self.history.append(entry)
        self._record(entry, asyncio.get_running_loop().time())
        return super().append(position, entry, now)

    def over(self, call_id: str) -> End | None:
        """Return how the call ended."""
        ends = self.ends.get(call_id)
        return ends[0] if ends else None

    def _record(self, data: bytes, now: float) -> None:
        if self.corrupt:
            return
        entry = decode_entry(data)
        try:
            self.reference.fold(entry)
        except LogCorrupt as error:
            self.corrupt = str(error)
            return
        for fact in entry.facts:
            if isinstance(fact, Accepted):
                self.accepted.setdefault(fact.id, []).append(fact)
                self.accepted_at.setdefault(fact.id, entry.at)
                self.written_in.setdefault(fact.id, now)
                self.numbers.setdefault(fact.id, len(self.numbers))
            elif isinstance(fact, Dispatched):
                self.attempts[fact.id, fact.attempt] = fact
                self.dispatched_in[fact.id, fact.attempt] = entry.position
                if (call := self.reference.state.calls.get(fact.id)) is not None:
                    self.holders[fact.id] = call.process
            elif isinstance(fact, Returned):
                self.returned[fact.id, fact.attempt] = fact
                if not any(isinstance(other, WorkerLost) for other in entry.facts):
                    self.fenced[fact.id, fact.attempt] = fact
            elif isinstance(fact, Ended | Dropped):
                self.ends.setdefault(fact.id, []).append(fact)
        for dropped in self._left(entry):
            self.ends[dropped.id] = [dropped]
        self.epochs.add(entry.epoch)
        self.on_entry(entry)
        self.at = entry.at

    def _left(self, entry: Entry) -> list[Dropped]:
        """Return the ends of the waiting calls that left together with their process."""
        if not any(isinstance(fact, ProcessLost) for fact in entry.facts):
            return []
        calls = self.reference.state.calls
        return [Dropped(each, "cancelled") for each in self.accepted if each not in calls and each not in self.ends]


def _ignore(_entry: Entry) -> None:
    """Nothing follows the log."""
