"""The workload of the demo: two tenants on one engine, sized to the machine.

The requests come from traces or from the built-in profiles, with lengths fitted to a small engine. The load is a
multiple of the engine's measured capacity, so that the flood overloads a laptop and a GPU alike. Arrival times and
lengths keep the pattern of their source (a profile or a trace); only their scale changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.service import WEIGHTED_TOKENS
from headgate.workloads.arrivals import Arrival
from headgate.workloads.profiles import CHAT, CODE, Fit, Profile, fitted, make_arrivals
from headgate.workloads.traces import read_trace

QUIET, FLOOD = "quiet", "flood"
QUIET_LOAD = 0.2
"""Part of the engine's capacity: well below one half, which is the quiet tenant's share."""
FLOOD_LOAD = 1.6
"""Part of the engine's capacity: more than three times the flooding tenant's share."""
REQUESTS_MIN = {QUIET: 24, FLOOD: 40}
"""The fewest requests of each tenant. With fewer quiet requests, one request would decide the P99. At most 4 of them go
through lambda.invoke, so that at least 20 have a first token."""
_INPUT_MIN, _OUTPUT_MIN = 8, 4
"""Tokens of the shortest prompt and answer."""


@dataclass(frozen=True, slots=True)
class Scene:
    arrivals: tuple[Arrival, ...]
    seconds: float


def compose(quiet: Sequence[Arrival], flood: Sequence[Arrival], capacity_per_s: float, seconds: float) -> Scene:
    """Make both tenants' arrivals for `seconds`. `capacity_per_s`: service units per second.

    On a slow engine, REQUESTS_MIN requests of each tenant would be more than its load: then they are shorter, and if
    the shortest are still too many, the scene is longer.
    """
    sources = {QUIET: quiet, FLOOD: flood}
    load_per_s = {QUIET: QUIET_LOAD * capacity_per_s, FLOOD: FLOOD_LOAD * capacity_per_s}
    least = {tenant: _service(_scale(source[: REQUESTS_MIN[tenant]], 0.0)) for tenant, source in sources.items()}
    seconds = max(seconds, *(least[tenant] / load_per_s[tenant] for tenant in sources))
    parts = [
        arrival
        for tenant, source in sources.items()
        for arrival in _at_load(source, tenant, load_per_s[tenant] * seconds, seconds)
    ]
    return Scene(tuple(sorted(parts, key=lambda arrival: (arrival.arrival_s, arrival.tenant))), seconds)


def _at_load(source: Sequence[Arrival], tenant: str, service: float, seconds: float) -> list[Arrival]:
    """Take the first requests of `source` with this service in sum, and stretch their arrivals to fill `seconds`.

    If these are fewer than REQUESTS_MIN, take so many, and make all of them shorter.
    """
    chosen = _up_to(source, service)
    if len(chosen) < REQUESTS_MIN[tenant]:
        chosen = _scale(source[: REQUESTS_MIN[tenant]], service)
    start, span = chosen[0].arrival_s, max(chosen[-1].arrival_s - chosen[0].arrival_s, 1e-9)
    return [replace(a, tenant=tenant, arrival_s=(a.arrival_s - start) / span * seconds) for a in chosen]


def _up_to(source: Sequence[Arrival], service: float) -> list[Arrival]:
    """Return the first requests that together have at least this service; all, if they have less."""
    chosen = []
    for arrival in source:
        if service <= 0:
            break
        service -= WEIGHTED_TOKENS(arrival.input_tokens, arrival.output_tokens)
        chosen.append(arrival)
    return chosen


def _scale(arrivals: Sequence[Arrival], service: float) -> list[Arrival]:
    """Scale all lengths so that the requests together have about this service.

    No length is made longer, and none shorter than _INPUT_MIN and _OUTPUT_MIN.
    """
    factor = min(1.0, service / max(_service(arrivals), 1e-9))

    def scaled(tokens: int, least: int) -> int:
        return min(tokens, max(least, round(tokens * factor)))

    return [
        replace(a, input_tokens=scaled(a.input_tokens, _INPUT_MIN), output_tokens=scaled(a.output_tokens, _OUTPUT_MIN))
        for a in arrivals
    ]


def _service(arrivals: Sequence[Arrival]) -> float:
    return sum(WEIGHTED_TOKENS(arrival.input_tokens, arrival.output_tokens) for arrival in arrivals)


_SOURCE_REQUESTS_MIN = 20
_SOURCE_REQUESTS = 2000
"""Requests made from the built-in profile: more than the engine can serve in the time of a demo."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Traces with arrivals and lengths; None: the built-in profile with this seed. `fit`: scales the lengths."""

    quiet: Path | None
    flood: Path | None
    seed: int
    fit: Fit


def load_sources(sources: Sources) -> tuple[list[Arrival], list[Arrival]]:
    """Read or make the requests of both tenants, with lengths scaled to what the engine can serve.

    Raises TraceError, with file, line and column, and ConfigurationError for a trace that is too short.
    """
    random = Random(sources.seed)
    quiet = read_trace(sources.quiet, tenant=QUIET) if sources.quiet else _make_requests(CHAT, QUIET, random)
    flood = read_trace(sources.flood, tenant=FLOOD) if sources.flood else _make_requests(CODE, FLOOD, random)
    for path, arrivals in ((sources.quiet, quiet), (sources.flood, flood)):
        if len(arrivals) < _SOURCE_REQUESTS_MIN:
            raise ConfigurationError(
                f"{path}: {len(arrivals)} requests; the demo needs at least {_SOURCE_REQUESTS_MIN}"
            )
    return fitted(quiet, sources.fit), fitted(flood, sources.fit)


def _make_requests(profile: Profile, tenant: str, random: Random) -> list[Arrival]:
    return make_arrivals(profile, tenant, _SOURCE_REQUESTS, random)
