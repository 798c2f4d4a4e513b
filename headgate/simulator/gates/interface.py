"""What a simulated gate is, and what it can do: the interface between a gate and the engine behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headgate.simulator.requests import SimRequest


@dataclass(frozen=True, slots=True)
class Door:
    """What a gate does to the world."""

    dispatch: Callable[[SimRequest, float], bool]
    """Into the engine, now. False: refused, `request.rejected` says why; it is gone then."""
    gone: Callable[[SimRequest], None]
    """It will not be served, `request.rejected` says why. Told once; `dispatch` tells by itself."""
    service_rate: Callable[[float], float]
    """Service units a second that the engine was measured to serve by now, while it was full; 0 while unknown."""


class SimulatedGate(Protocol):
    """Times in seconds of the run, never falling from call to call."""

    def arrive(self, request: SimRequest, now_s: float) -> None: ...

    def ended(self, request: SimRequest, now_s: float) -> None:
        """The engine served it to its end: settle it, and give its slot to the next."""
        ...

    def next_s(self) -> float:
        """When the gate has something to do by itself (a deadline, a heartbeat); infinity where it never has."""
        ...

    def advance(self, until_s: float) -> None:
        """Do what is due by then."""
        ...

    def close(self) -> None: ...
