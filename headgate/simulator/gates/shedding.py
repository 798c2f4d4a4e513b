"""Load shedding before a paged engine: what the worker does with arrivals while a tier is at risk, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_worker.policies.slo.monitor import SloMonitor
from gpu_worker.policies.slo.shedding import Shedder, ShedSettings
from headgate.simulator.drive import Engine
from headgate.simulator.engines.interface import Observer
from headgate.simulator.requests import SimRequest


class SloFront(Observer):
    """Both the driver's `Front` and the engine's observer. Who is refused is told `shed` and does not come back."""

    def __init__(self, settings: ShedSettings) -> None:
        self.monitor = SloMonitor()
        self.shedder = Shedder(self.monitor, settings)

    def refuses(self, request: SimRequest, now_s: float, engine: Engine) -> str | None:
        self.shedder.observe(now_s)
        if self.shedder.sheds(request.tier):
            return "shed"
        self.monitor.arrived(request.request_id, request.tier, now_s)
        return None

    def prefilled(self, requests: Sequence[SimRequest], now_s: float) -> None:
        for request in requests:
            self.monitor.first_token(request.request_id, now_s)

    def finished(self, request: SimRequest, now_s: float) -> None:
        self.monitor.ended(request.request_id, now_s, request.arrival.output_tokens)

    def ended(self, request: SimRequest, now_s: float) -> None:
        """Served requests are closed already."""
        self.monitor.abandoned(request.request_id, now_s)
