"""The ended calls of a log as the rows of a trace: when each began, its tokens, and its waits. Pure.

A row is complete when its call ends, and long calls end after later ones. Up to the `horizon` no call that began
earlier is open, so rows that are taken up to there are in the order in which they began. A call without an answer has
no length, and is counted instead. Calls that were accepted before the first entry that was read are neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

from dispatcher.model.call import CallTerms
from dispatcher.model.facts import Accepted, Dispatched, Dropped, Ended, Entry, Returned, TenantSet


class RecordedCall(NamedTuple):
    """A call with its answer. Times are in seconds, `begun_at` is a Unix time."""

    begun_at: float
    tenant: str
    """The identity of its tenant."""
    app: str
    model: str
    tier: str
    interaction: str
    input_tokens: int
    output_tokens: int
    first_token_s: float | None
    """The time from the beginning to the first token; None if it is not known."""
    latency_s: float
    """The time from the beginning to the end."""


@dataclass(slots=True)
class _OpenCall:
    begun_at: float
    terms: CallTerms
    dispatched_at: float | None = None


@dataclass(slots=True)
class Recording:
    """Call `note` with the entries in the order of their positions, and `take` for the rows.

    `worker`: empty: a call begins when the gate accepts it, and waits for its slot. The name of a worker: only its
    attempts are recorded, and each begins when the worker gets it, as in the log of an engine.
    """

    worker: str = ""
    unanswered: int = 0
    """Calls that ended without an answer."""
    others: set[str] = field(default_factory=set)
    """The names of the other workers that had attempts, if there is a worker."""
    interrupted: int = 0
    """Calls that ended unseen, because the log was cut before."""
    _terms: dict[str, CallTerms] = field(default_factory=dict)
    """The terms of the accepted calls, if there is a worker."""
    _open: dict[str, _OpenCall] = field(default_factory=dict)
    """The calls that have not ended, in the order in which they began."""
    _tiers: dict[str, str] = field(default_factory=dict)
    _complete: list[tuple[float, int, RecordedCall]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)
    _position: int = -1

    def note(self, entry: Entry) -> None:
        """Take the facts of an entry. Ignore an entry that was noted before: a reader may read the log again."""
        if entry.position <= self._position:
            return
        self._position = entry.position
        for fact in entry.facts:
            match fact:
                case TenantSet():
                    self._tiers[fact.tenant] = fact.config.tier
                case Accepted() if self.worker:
                    self._terms[fact.id] = fact.terms
                case Accepted():
                    self._open[fact.id] = _OpenCall(entry.at, fact.terms)
                case Dispatched():
                    self._dispatch(fact, entry.at)
                case Returned() if self.worker:
                    self._open.pop(fact.id, None)
                case Ended():
                    self._end(fact, entry.at)
                case Dropped():
                    self._terms.pop(fact.id, None)
                    self.unanswered += self._open.pop(fact.id, None) is not None

    def restart(self) -> None:
        """Forget the open calls. A snapshot replaced the entries that follow, and perhaps their ends."""
        self.interrupted += len(self._open)
        self._open.clear()
        self._terms.clear()

    @property
    def horizon(self) -> float:
        """Return when the first open call began; infinity without one. Later rows begin after it."""
        first = next(iter(self._open.values()), None)
        return inf if first is None else first.begun_at

    def take(self, until: float) -> list[RecordedCall]:
        """Return the complete rows of calls that began by `until` (Unix seconds), in order, and forget them."""
        taken = []
        while self._complete and self._complete[0][0] <= until:
            taken.append(heappop(self._complete)[2])
        return taken

    def _dispatch(self, fact: Dispatched, at: float) -> None:
        if not self.worker:
            if (call := self._open.get(fact.id)) is not None:
                call.dispatched_at = at
        elif fact.worker != self.worker:
            self.others.add(fact.worker)
        elif (terms := self._terms.get(fact.id)) is not None:
            self._open[fact.id] = _OpenCall(at, terms, at)

    def _end(self, fact: Ended, at: float) -> None:
        self._terms.pop(fact.id, None)
        call = self._open.pop(fact.id, None)
        if call is None:
            return
        if fact.outcome != "done":
            self.unanswered += 1
            return
        waited_s = (call.dispatched_at or at) - call.begun_at
        terms = call.terms
        row = RecordedCall(
            call.begun_at,
            *(terms.tenant, terms.app, terms.model, self._tiers.get(terms.tenant, ""), terms.interaction),
            *(fact.input_tokens, fact.output_tokens),
            waited_s + fact.first_token_s if fact.first_token_s > 0 else None,
            at - call.begun_at,
        )
        heappush(self._complete, (row.begun_at, next(self._numbers), row))
