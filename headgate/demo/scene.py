"""The workload of the demo: two tenants on one engine, sized to the machine.

The load is a multiple of the engine's measured capacity, so that the flood overloads a laptop and a GPU alike. Arrival
times and lengths keep the pattern of their source (a profile or a trace); only their scale changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.service import WEIGHTED_TOKENS
from headgate.workloads.arrivals import Arrival

QUIET, FLOOD = "quiet", "flood"
QUIET_LOAD = 0.2
"""Part of the engine's capacity: well below one half, which is the quiet tenant's share."""
FLOOD_LOAD = 1.6
"""Part of the engine's capacity: more than three times the flooding tenant's share."""


@dataclass(frozen=True, slots=True)
class Scene:
    arrivals: tuple[Arrival, ...]
    seconds: float


def compose(quiet: Sequence[Arrival], flood: Sequence[Arrival], capacity_per_s: float, seconds: float) -> Scene:
    """Make both tenants' arrivals for `seconds`. `capacity_per_s`: service units per second.

    Raises ConfigurationError if a source has too few requests for its load.
    """
    parts = [
        *_at_load(quiet, QUIET, QUIET_LOAD * capacity_per_s, seconds),
        *_at_load(flood, FLOOD, FLOOD_LOAD * capacity_per_s, seconds),
    ]
    return Scene(tuple(sorted(parts, key=lambda arrival: (arrival.arrival_s, arrival.tenant))), seconds)


def calibration(flood: Sequence[Arrival], requests: int, random: Random) -> list[Arrival]:
    """Make a burst of typical requests that all arrive at once, to measure the engine."""
    chosen = random.sample(list(flood), min(requests, len(flood)))
    return [replace(arrival, arrival_s=0.0, tenant=FLOOD) for arrival in chosen]


def _at_load(source: Sequence[Arrival], tenant: str, service_per_s: float, seconds: float) -> list[Arrival]:
    """Take the first requests of `source` that make up the load, and stretch their arrivals to fill `seconds`."""
    wanted, chosen = service_per_s * seconds, []
    for arrival in source:
        if wanted <= 0:
            break
        wanted -= WEIGHTED_TOKENS(arrival.input_tokens, arrival.output_tokens)
        chosen.append(arrival)
    if len(chosen) < 2:
        raise ConfigurationError(
            f"the workload of {tenant} has too few requests to load this engine for {seconds:g} s: "
            "give a longer trace or more --seconds"
        )
    start, span = chosen[0].arrival_s, max(chosen[-1].arrival_s - chosen[0].arrival_s, 1e-9)
    return [replace(a, tenant=tenant, arrival_s=(a.arrival_s - start) / span * seconds) for a in chosen]
