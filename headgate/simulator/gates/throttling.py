"""FairServe's throttling before a simulated engine without a gate (dispatcher/policies/throttling.py)."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.policies.throttling import Throttle, ThrottleLimits
from dispatcher.shard.settings import SATURATED
from headgate.simulator.drive import EngineLike
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
