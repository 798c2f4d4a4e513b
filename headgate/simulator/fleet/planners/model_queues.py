"""Waiting requests by model, the one that is due first before the others."""

from __future__ import annotations

from heapq import heappop, heappush

from headgate.simulator.requests import SimRequest


class ModelQueues:
    def __init__(self) -> None:
        self._of: dict[str, list[tuple[float, int, SimRequest]]] = {}

    def add(self, request: SimRequest) -> None:
        heappush(self._of.setdefault(request.model, []), (request.due_s, request.number, request))

    def waiting(self, model: str) -> int:
        return len(self._of.get(model, ()))

    def take(self, model: str) -> SimRequest:
        """Remove and return the model's first request. Raises KeyError or IndexError if none waits."""
        return heappop(self._of[model])[2]
