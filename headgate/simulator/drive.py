"""Feeds a workload to an engine in virtual time, until the last request has ended.

A later stage of an interaction is sent only after the stage before it was answered, as an agent would send it. When a
stage is refused, its interaction is cut: the later stages are never sent, and count as rejected (`unsent`).
"""

from __future__ import annotations

import gc
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Protocol

from headgate.simulator.measures.collector import Collector
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival


class EngineLike(Protocol):
    """A simulated engine, alone or behind a gate, shedding or throttling (gates/)."""

    @property
    def now_s(self) -> float: ...

    def submit(self, request: SimRequest, at_s: float) -> bool:
        """Accept the request, or return False and set `request.rejected`."""
        ...

    def advance(self, until_s: float) -> list[SimRequest]:
        """Run until requests end, at the latest until `until_s`. Returns the requests that ended, [] at `until_s`.

        An accepted request that was not served ends with `rejected` set.
        """
        ...


def drive(
    arrivals: Iterable[Arrival],
    engine: EngineLike,
    collector: Collector,
    *,
    weights: Mapping[str, float] | None = None,
) -> None:
    """Send `arrivals`, which are in order of time, and report every one to the collector once, when it has ended."""
    with _rare_garbage_collection():
        _Driver(engine, collector, weights or {}).play(iter(arrivals))


_NET_ALLOCATIONS = 200_000
"""Python's default is 700. What a cycle of garbage may take until then is about 40 MB."""


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Let Python look for cycles of garbage less often.

    The objects of a request form no cycle: they are freed as it ends. Many requests wait at a time, and each search
    visits all that came since the last one, which took a sixth of a long run.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _NET_ALLOCATIONS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Driver:
    def __init__(self, engine: EngineLike, collector: Collector, weights: Mapping[str, float]) -> None:
        self._engine = engine
        self._collector = collector
        self._weights = weights
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Arrival]] = []
        self._open: dict[tuple[str, str], deque[Arrival]] = {}
        """Interactions with a stage in progress, and the stages that wait for it."""
        self._cut: set[tuple[str, str]] = set()

    def play(self, arrivals: Iterator[Arrival]) -> None:
        upcoming = next(arrivals, None)
        while True:
            arrival_s = math.inf if upcoming is None else upcoming.arrival_s
            due_s = self._due[0][0] if self._due else math.inf
            if ended := self._engine.advance(min(arrival_s, due_s)):
                for request in ended:
                    self._note_end(request)
            elif upcoming is not None and arrival_s <= due_s:
                if upcoming.interaction is None:
                    self._send(upcoming, arrival_s)
                else:
                    self._stage_arrives(upcoming, upcoming.interaction)
                upcoming = next(arrivals, None)
            elif self._due:
                self._send(heappop(self._due)[2], due_s)
            else:
                return

    def _stage_arrives(self, arrival: Arrival, interaction: str) -> None:
        key = (arrival.tenant, interaction)
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
        if arrival.slo_ttft_ms is not None:
            request.due_s = at_s + arrival.slo_ttft_ms / 1000
        if not self._engine.submit(request, at_s):
            self._note_rejection(request)

    def _note_end(self, request: SimRequest) -> None:
        if request.rejected is not None:
            self._note_rejection(request)
        else:
            self._collector.on_served(request)
            if request.arrival.interaction is not None:
                self._release_next_stage(request)

    def _release_next_stage(self, request: SimRequest) -> None:
        key = (request.tenant, request.arrival.interaction or "")
        if self._open[key]:
            stage = self._open[key].popleft()
            heappush(self._due, (max(stage.arrival_s, request.finish_s), next(self._numbers), stage))
        else:
            del self._open[key]

    def _note_rejection(self, request: SimRequest) -> None:
        self._collector.on_rejected(request)
        if request.arrival.interaction is not None:
            key = (request.tenant, request.arrival.interaction)
            self._cut.add(key)
            for arrival in self._open.pop(key, ()):
                self._unsent(arrival)

    def _unsent(self, arrival: Arrival) -> None:
        self._collector.on_rejected(SimRequest("", arrival, arrival.arrival_s, rejected="unsent"))
