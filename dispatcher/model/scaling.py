"""The values of scaling: what the gate's log shows of a fleet's load, and what the fleet's service is set to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class FleetLoad(NamedTuple):
    """The load of a pool at one moment. Service in service units."""

    ready: int
    """Workers that serve, or that rest for some seconds after failures."""
    leaving: int
    """Workers that drain, or that sent no heartbeat for some seconds."""
    holding: int
    """The smallest number of workers whose slots hold the calls that run now."""
    waiting: Mapping[str, int]
    """The waiting calls by tier; a tier without any has 0."""
    waiting_service: float
    """Expected service of the waiting calls that may not wait longer: all but those of deferred classes with slack."""
    arriving_per_s: float
    """Service that arrives in a second, without deferred classes."""
    service_per_s: float
    """The measured capacity of one worker in service units a second, a mean of the fleet; 0 if none is measured."""
