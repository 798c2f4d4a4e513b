"""The interface between a simulated gate and the engine behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headgate.simulator.requests import SimRequest


@dataclass(frozen=True, slots=True)
class Downstream:
    """What a gate calls when it has decided."""

    dispatch: Callable[[SimRequest, float], bool]
    """Send the request to the engine, at this time. False: the engine refused it and set `request.rejected`."""
    reject: Callable[[SimRequest], None]
    """Report a request that the gate gave up; `request.rejected` gives the reason. Not called after a False dispatch:
    that request is reported already."""
    service_per_s: Callable[[float], float]
    """The engine's capacity as measured by this time, in service units a second; 0 while it is unknown."""


class SimulatedGate(Protocol):
    """Times are seconds of the run and never fall from call to call."""

    def arrive(self, request: SimRequest, now_s: float) -> None: ...

    def ended(self, request: SimRequest, now_s: float) -> None:
        """Settle a dispatched request, served or dropped by the engine, and give its slot to the next."""
        ...

    def next_s(self) -> float:
        """The next time at which the gate acts by itself (a deadline, a heartbeat); infinity if there is none."""
        ...

    def advance(self, until_s: float) -> None:
        """Do everything that is due by `until_s`."""
        ...

    def close(self) -> None: ...
