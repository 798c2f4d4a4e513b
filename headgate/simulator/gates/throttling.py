"""FairServe's throttling before a simulated engine (dispatcher/policies/throttling.py): drive.Front."""

from __future__ import annotations

from dispatcher.policies.throttling import Limits, Throttle
from headgate.simulator.drive import Engine
from headgate.simulator.engines.interface import Engine as SimulatedEngine
from headgate.simulator.requests import SimRequest

SATURATED = 0.9
"""The part of the KV pool from which on it counts as overloaded. The paper does not say."""


class ThrottledFront:
    """A request's tenant is the user. It is in the middle of an interaction where it is no first stage: the driver
    sends a later one only when the one before it was answered."""

    def __init__(self, limits: Limits, *, saturated: float = SATURATED) -> None:
        self._throttle = Throttle(limits)
        self._saturated = saturated

    def refuses(self, request: SimRequest, now_s: float, engine: Engine) -> str | None:
        """Raises TypeError where it does not stand right before a simulated engine."""
        if not isinstance(engine, SimulatedEngine):
            raise TypeError(f"the saturation of a {type(engine).__name__} is not known")
        arrival = request.arrival
        refused = self._throttle.decide(
            arrival.tenant,
            arrival.app or "",
            now_s,
            saturated=engine.saturation >= self._saturated,
            under_way=bool(arrival.stage),
        )
        return None if refused is None else f"throttled_{refused.limit}"

    def ended(self, request: SimRequest, now_s: float) -> None: ...
