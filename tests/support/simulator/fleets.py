"""Fleets and workloads for tests: a small engine, models a, b and c, and requests at given times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.simulator.engines.profile import EngineProfile
from headgate.simulator.fleet.spec import DRAIN_S, FleetSpec, Loadable, WorkerSpec
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload

SMALL = EngineProfile(
    name="small",
    fitted=False,
    source="tests",
    pool_tokens=4000,
    prefill_base_s=0.1,
    prefill_per_token_s=0.0,
    decode_base_s=0.1,
    decode_per_request_s=0.0,
    decode_per_kv_token_s=0.0,
)
"""A prompt takes 0.1 s, and so does each token after the first, whatever runs beside it."""


def fleet_of(
    workers: int, models: Sequence[str] = ("a", "b"), *, swap_s: float = 2.0, slots: int = 4, drain_s: float = DRAIN_S
) -> FleetSpec:
    """Return a fleet of equal workers, each of which can load every model and has none at the start."""
    able = {model: Loadable(SMALL, swap_s, slots) for model in models}
    return FleetSpec([WorkerSpec(f"w{number}", "k", able) for number in range(workers)], drain_s=drain_s)


def requests_of(rows: Iterable[tuple[float, str, str, str, int]]) -> ListWorkload:
    """Make a workload of (seconds, tenant, model, SLO class, output tokens)."""
    arrivals = [
        Arrival(at_s, tenant, 10, output, model=model, slo_class=slo_class)
        for at_s, tenant, model, slo_class, output in rows
    ]
    return ListWorkload("made", arrivals)
