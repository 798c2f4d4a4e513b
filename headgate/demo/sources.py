"""The requests of both tenants, from traces or from the built-in profiles, with lengths fitted to a small engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from dispatcher.model.errors import ConfigurationError
from headgate.demo.scene import FLOOD, QUIET
from headgate.workloads.arrivals import Arrival
from headgate.workloads.described.profiles import CHAT, CODE, Profile, make_arrivals
from headgate.workloads.shape import Fit, fitted
from headgate.workloads.traces.files import read_trace

SOURCE_REQUESTS_MIN = 20
SOURCE_REQUESTS = 2000
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
        if len(arrivals) < SOURCE_REQUESTS_MIN:
            raise ConfigurationError(f"{path}: {len(arrivals)} requests; the demo needs at least {SOURCE_REQUESTS_MIN}")
    return fitted(quiet, sources.fit), fitted(flood, sources.fit)


def _make_requests(profile: Profile, tenant: str, random: Random) -> list[Arrival]:
    return make_arrivals(profile, tenant, SOURCE_REQUESTS, random)
