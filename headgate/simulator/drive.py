"""Feeds a workload to an engine in virtual time, to the end of its last request.

A stage of an interaction is not sent before the stage before it was answered: an agent has nothing to ask until then.
Where a stage is refused its interaction is cut: later stages are never sent, and count as rejected (`unsent`).
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Protocol

from headgate.simulator.measures.collector import Collector
from headgate.simulator.requests import SimRequest
from headgate.workloads.traces.files import Arrival


class Engine(Protocol):
    """What is fed: simulated engines, with a gate before them or not."""

    @property
    def now_s(self) -> float: ...

    def submit(self, request: SimRequest, at_s: float) -> bool: ...

    def advance(self, until_s: float) -> list[SimRequest]: ...


class Front(Protocol):
    """What stands before the engine and may refuse."""

    def refuses(self, request: SimRequest, now_s: float, engine: Engine) -> str | None:
        """The reason, or None: it is let through."""
        ...

    def ended(self, request: SimRequest, now_s: float) -> None:
        """A request that was let through was served to its end, or refused by the engine."""
        ...


def drive(
    arrivals: Iterable[Arrival],
    engine: Engine,
    collector: Collector,
    *,
    front: Front | None = None,
    weights: Mapping[str, float] | None = None,
) -> None:
    """`arrivals` in order of time. Every one of them has ended, and the collector knows, when this returns."""
    _Driver(engine, collector, front, weights or {}).play(iter(arrivals))


class _Driver:
    def __init__(self, engine: Engine, collector: Collector, front: Front | None, weights: Mapping[str, float]) -> None:
        self._engine = engine
        self._collector = collector
        self._front = front
        self._weights = weights
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Arrival]] = []
        self._open: dict[tuple[str, str], deque[Arrival]] = {}
        """Interactions with a stage under way, and the stages that wait for it."""
        self._cut: set[tuple[str, str]] = set()

    def play(self, arrivals: Iterator[Arrival]) -> None:
        coming = next(arrivals, None)
        while True:
            coming_s = math.inf if coming is None else coming.arrival_s
            due_s = self._due[0][0] if self._due else math.inf
            until_s = min(coming_s, due_s)
            if finished := self._engine.advance(until_s):
                for request in finished:
                    self._served(request)
            elif coming is not None and coming_s <= due_s:
                self._arrives(coming)
                coming = next(arrivals, None)
            elif self._due:
                self._send(heappop(self._due)[2], due_s)
            else:
                return

    def _arrives(self, arrival: Arrival) -> None:
        if arrival.interaction is None:
            self._send(arrival, arrival.arrival_s)
            return
        key = (arrival.tenant, arrival.interaction)
        if key in self._cut:
            self._unsent(arrival)
        elif key in self._open:
            self._open[key].append(arrival)
        else:
            self._open[key] = deque()
            self._send(arrival, arrival.arrival_s)

    def _send(self, arrival: Arrival, at_s: float) -> None:
        weight = self._weights.get(arrival.tenant, 1.0)
        request = SimRequest(str(next(self._numbers)), arrival, at_s, weight)
        request.rejected = None if self._front is None else self._front.refuses(request, at_s, self._engine)
        if request.rejected is not None:
            self._rejected(request)
        elif not self._engine.submit(request, at_s):
            self._rejected(request)
            if self._front is not None:
                self._front.ended(request, at_s)

    def _served(self, request: SimRequest) -> None:
        if request.rejected is not None:  # by what stands between, after it was accepted
            self._rejected(request)
        else:
            self._collector.served(request)
            self._go_on(request)
        if self._front is not None:
            self._front.ended(request, self._engine.now_s)

    def _go_on(self, request: SimRequest) -> None:
        if request.arrival.interaction is None:
            return
        key = (request.tenant, request.arrival.interaction)
        if self._open[key]:
            stage = self._open[key].popleft()
            heappush(self._due, (max(stage.arrival_s, request.finish_s), next(self._numbers), stage))
        else:
            del self._open[key]

    def _rejected(self, request: SimRequest) -> None:
        self._collector.rejected(request)
        if request.arrival.interaction is not None:
            key = (request.tenant, request.arrival.interaction)
            self._cut.add(key)
            for arrival in self._open.pop(key, ()):
                self._unsent(arrival)

    def _unsent(self, arrival: Arrival) -> None:
        self._collector.rejected(SimRequest("", arrival, arrival.arrival_s, rejected="unsent"))
