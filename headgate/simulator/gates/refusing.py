"""What refuses arrivals before a simulated engine: FairServe's throttling, and load shedding.

Throttling is for an engine without a gate (dispatcher/policies/throttling.py). Shedding is what a worker does with
arrivals while a tier is at risk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dispatcher.policies.throttling import Throttle, ThrottleLimits
from dispatcher.shard.settings import SATURATED
from gpu_worker.policies.slo.monitor import SloMonitor
from gpu_worker.policies.slo.shedding import Shedder, ShedSettings
from headgate.simulator.drive import EngineLike
from headgate.simulator.engines.interface import Observer
from headgate.simulator.requests import SimRequest


class ThrottledEngine:
    """drive.EngineLike. A request's tenant is FairServe's user. A request is in the middle of an interaction when it is
    not the first stage, because a later stage is sent only after the one before it was answered.

    `saturation`: the share of the KV pool in use now, 0 to 1. A refused request counts as rejected (`throttled_user`,
    `throttled_app`).
    """

    def __init__(
        self,
        engine: EngineLike,
        limits: ThrottleLimits,
        saturation: Callable[[], float],
        *,
        saturated: float = SATURATED,
    ) -> None:
        self._engine = engine
        self._throttle = Throttle(limits)
        self._saturation = saturation
        self._saturated = saturated

    @property
    def now_s(self) -> float:
        return self._engine.now_s

    def submit(self, request: SimRequest, at_s: float) -> bool:
        arrival = request.arrival
        refused = self._throttle.decide(
            arrival.tenant,
            arrival.app or "",
            at_s,
            saturated=self._saturation() >= self._saturated,
            under_way=bool(arrival.stage),
        )
        if refused is not None:
            request.rejected = f"throttled_{refused.limit}"
            return False
        return self._engine.submit(request, at_s)

    def advance(self, until_s: float) -> list[SimRequest]:
        return self._engine.advance(until_s)


class SloObserver(Observer):
    """Passes an engine's events to an SLO monitor."""

    def __init__(self) -> None:
        self.monitor = SloMonitor()

    def on_prefilled(self, requests: Sequence[SimRequest], now_s: float) -> None:
        for request in requests:
            self.monitor.first_token(request.request_id, now_s)

    def on_finished(self, request: SimRequest, now_s: float) -> None:
        self.monitor.on_ended(request.request_id, now_s, request.arrival.output_tokens)


class SheddingEngine:
    """drive.EngineLike. A request that is refused counts as rejected (`shed`) and is not sent again."""

    def __init__(self, engine: EngineLike, monitor: SloMonitor, settings: ShedSettings) -> None:
        self._engine = engine
        self._monitor = monitor
        self._shedder = Shedder(monitor, settings)

    @property
    def now_s(self) -> float:
        return self._engine.now_s

    def submit(self, request: SimRequest, at_s: float) -> bool:
        self._shedder.observe(at_s)
        if self._shedder.sheds(request.tier):
            request.rejected = "shed"
            return False
        self._monitor.on_arrived(request.request_id, request.tier, at_s)
        accepted = self._engine.submit(request, at_s)
        if not accepted:
            self._monitor.on_abandoned(request.request_id, at_s)
        return accepted

    def advance(self, until_s: float) -> list[SimRequest]:
        ended = self._engine.advance(until_s)
        for request in ended:  # changes nothing for a request that was served to its end
            self._monitor.on_abandoned(request.request_id, self.now_s)
        return ended
