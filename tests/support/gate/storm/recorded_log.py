"""The log with its whole history, and the reference: a shard that folds each entry at the moment it is written."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from dispatcher.model.errors import LogCorrupt
from dispatcher.model.facts import Accepted, Dispatched, Dropped, Ended, Entry, Fact, ProcessLost, Returned, WorkerLost
from dispatcher.shard.codec import decode_entry
from dispatcher.shard.fold import fold
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.state.state import State
from dispatcher.shard.steps import News
from dispatcher.stores.memory import LogData

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
