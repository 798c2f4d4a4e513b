"""A cluster in virtual time under one gate: slots that serve, tenants that send, and what each got. No clock, no IO.

Arrivals come from the random source that is handed in; service is exact. The gate gets estimates and, at the end of
each execution, the truth. Units: seconds; service in slot-seconds, so ten slots are a capacity of 10 a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random

from dispatcher.policies import percentiles
from dispatcher.policies.orders.interface import Dispatched, Gate


@dataclass(frozen=True)
class Source:
    """Poisson arrivals of one tenant: `rate_per_s` of them from `start_s` to `end_s`, `batch` at a time.

    `gap_s`: what is added between any two batches, for bursts that let a bucket fill.
    """

    tenant: str
    rate_per_s: float
    cost_s: float = 1.0
    start_s: float = 0.0
    end_s: float = float("inf")
    estimate_s: float | None = None
    batch: int = 1
    gap_s: float = 0.0

    def arrivals(self, random: Random) -> Iterator[float]:
        at = self.start_s
        while (at := at + self.gap_s + random.expovariate(self.rate_per_s / self.batch)) < self.end_s:
            yield at


@dataclass
class Executed:
    """One tenant's executions in order of dispatch: when, for how long, and the wait before."""

    starts_s: list[float] = field(default_factory=list)
    costs_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    def service(self, from_s: float, to_s: float) -> float:
        """Slot-seconds given within the window."""
        parts = zip(self.starts_s, self.costs_s, strict=True)
        return sum(max(0.0, min(to_s, start + cost) - max(from_s, start)) for start, cost in parts)

    def waits(self, from_s: float, to_s: float) -> list[float]:
        """Sorted, of those dispatched within the window."""
        first, last = bisect_left(self.starts_s, from_s), bisect_left(self.starts_s, to_s)
        return sorted(self.waits_s[first:last])


class Cluster:
    def __init__(self, gate: Gate, random: Random, start_s: float = 0.0) -> None:
        self.gate = gate
        self.random = random
        self.now = start_s
        self.executed: dict[str, Executed] = {}
        self._events: list[tuple[float, int, str, object]] = []
        self._sequence = count()
        self._sent: dict[str, tuple[float, float]] = {}

    def add(self, source: Source) -> None:
        self.executed.setdefault(source.tenant, Executed())
        self._schedule_arrival(source, source.arrivals(self.random))

    def run_until(self, end_s: float) -> None:
        while self._events and self._events[0][0] <= end_s:
            self.now, _, kind, what = heappop(self._events)
            if kind == "arrival":
                self._arrive(*what)  # type: ignore[misc]
            else:
                self._started(self.gate.settle(str(what), self._sent.pop(str(what))[1], self.now))
        self.now = end_s

    def set_slots(self, slots: int) -> None:
        for dispatched in self.gate.set_slots(slots, self.now):
            self._started(dispatched)

    def shares(self, from_s: float, to_s: float) -> dict[str, float]:
        """Service a second within the window, by tenant."""
        return {name: executed.service(from_s, to_s) / (to_s - from_s) for name, executed in self.executed.items()}

    def _schedule(self, at: float, kind: str, what: object) -> None:
        heappush(self._events, (at, next(self._sequence), kind, what))

    def _schedule_arrival(self, source: Source, arrivals: Iterator[float]) -> None:
        at = next(arrivals, None)
        if at is not None:
            self._schedule(at, "arrival", (source, arrivals))

    def _arrive(self, source: Source, arrivals: Iterator[float]) -> None:
        for _ in range(source.batch):
            invocation_id = f"{source.tenant}-{next(self._sequence)}"
            self._sent[invocation_id] = (self.now, source.cost_s)
            estimate = source.cost_s if source.estimate_s is None else source.estimate_s
            decision = self.gate.arrive(source.tenant, invocation_id, estimate, self.now)
            if isinstance(decision, Dispatched):
                self._started(decision)
        self._schedule_arrival(source, arrivals)

    def _started(self, dispatched: Dispatched | None) -> None:
        if dispatched is None:
            return
        arrived_at, cost_s = self._sent[dispatched.invocation_id]
        executed = self.executed[dispatched.tenant]
        executed.starts_s.append(self.now)
        executed.costs_s.append(cost_s)
        executed.waits_s.append(self.now - arrived_at)
        self._schedule(self.now + cost_s, "end", dispatched.invocation_id)


def percentile(values: list[float], fraction: float) -> float:
    found = percentiles.percentile(values, fraction)
    assert found is not None
    return found
