"""A collector that keeps the requests."""

from __future__ import annotations

from dispatcher.policies.service import WEIGHTED_TOKENS
from headgate.simulator.measures.collector import Collector
from headgate.simulator.requests import SimRequest


class EndedRequests(Collector):
    """`done`, `refused`: in the order in which they ended."""

    def __init__(self) -> None:
        super().__init__(WEIGHTED_TOKENS, 0.0)
        self.done: list[SimRequest] = []
        self.refused: list[SimRequest] = []

    def on_served(self, request: SimRequest) -> None:
        self.done.append(request)

    def on_rejected(self, request: SimRequest) -> None:
        self.refused.append(request)
