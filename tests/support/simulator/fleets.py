"""What tests of the simulator share: a small engine with fleets and workloads, a collector that keeps the requests, and
the folder of the published workloads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from dispatcher.policies.service import WEIGHTED_TOKENS
from headgate.simulator.engines.profile import EngineProfile
from headgate.simulator.fleet.spec import DRAIN_S, FleetSpec, Loadable, WorkerSpec
from headgate.simulator.measures.collector import Collector
from headgate.simulator.requests import SimRequest
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


class EndedRequests(Collector):
    """`done`, `refused`: in the order in which they ended."""

    def __init__(self) -> None:
        super().__init__(WEIGHTED_TOKENS, 0.0)
        self.done: list[SimRequest] = []
        self.refused: list[SimRequest] = []

    def on_served(self, request: SimRequest) -> None:
        self.done.append(request)

    def on_rejected(self, request: SimRequest) -> None:
        self.refused.append(request)


TRACES = Path(os.environ.get("HEADGATE_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the published traces are not here (HEADGATE_TRACES)")
