"""The simulation: a workload under a policy on an engine model, with or without a gate before it, or on a fleet.

The way of a request; what has a question mark is there only if the RunSpec names it:

    workload ──▶ drive ──▶ throttling? ──▶ gate? ──▶ shedding? ──▶ engine ──▶ Collector ──▶ Run
                       └─▶ SimulatedFleet (fleet/run.py) ───────────────┘
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random

from dispatcher.policies.percentiles import percentile
from dispatcher.policies.service import ServiceFunction, WeightedTokens, service_function
from gpu_worker.policies.fairness.interface import Applications, QueuePolicy
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import EngineLike, drive
from headgate.simulator.engines.fitted_range import RangeNotes, RangeWatch
from headgate.simulator.engines.interface import Jitter, SimulatedEngine
from headgate.simulator.engines.paged import PagedEngine
from headgate.simulator.engines.profile import EngineProfile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.fleet.run import simulate_fleet
from headgate.simulator.gates.stages import EngineCapacity, GatedEngine, SheddingEngine, SloObserver, ThrottledEngine
from headgate.simulator.measures.collector import Collector, Scheduling, TierCollector
from headgate.simulator.measures.theorems import TENANTS_MAX, TheoremMonitor
from headgate.simulator.run import Run, RunSpec, Timing, run_of
from headgate.workloads.arrivals import Arrival


def simulate(spec: RunSpec, collector: Collector | None = None) -> Run:
    """Run the workload until its last request has ended. `collector`: used instead of a new one.

    Raises ValueError for an unknown policy or service function.
    """
    if not isinstance(spec.engines, EngineProfile):
        return simulate_fleet(spec, collector)
    began_s = time.perf_counter()
    service = service_function(spec.service)
    theorems = _theorem_monitor(spec, service)
    slo = None if spec.shedding is None else SloObserver()
    engine = make_engine(
        spec.engines,
        _policy(spec, service),
        paged=spec.tiers is not None,
        observer=slo or theorems,
        jitter=Jitter(Random(f"{spec.seed} steps"), spec.jitter) if spec.jitter else None,
        stopwatch=time.perf_counter if spec.timing else None,
        loaded_first=spec.loaded_first,
    )
    collector = collector or _collector(spec, service)
    used = None if spec.engines.fitted_on is None else RangeNotes(spec.engines.fitted_on)
    front = _front(spec, engine if used is None else RangeWatch(engine, used), engine, slo, service)
    drive(_with_tiers(spec.workload, _tiers(spec)), front, collector, weights=_weights(spec))
    return run_of(
        spec,
        collector,
        decisions=engine.decisions,
        bounds={} if theorems is None else theorems.bounds(),
        timing=_timing(time.perf_counter() - began_s, engine.decision_s) if spec.timing else None,
        scheduling=_scheduling(collector, engine),
        outside_fit=() if used is None else used.sentences(),
    )


def _policy(spec: RunSpec, service: ServiceFunction) -> QueuePolicy:
    random, applications = Random(f"{spec.seed} policy"), Applications(as_labelled=True)
    policy = make_policy(spec.policy, service, random=random, tiers=spec.tiers, applications=applications)
    policy.locality = policy.locality or spec.locality
    if spec.tiers is not None:
        policy.cached_fraction = spec.tiers.cached_fraction
        policy.adapter_load_tokens = spec.tiers.adapter_load_tokens
    return policy


def _front(
    spec: RunSpec, front: EngineLike, engine: SimulatedEngine, slo: SloObserver | None, service: ServiceFunction
) -> EngineLike:
    """Put before the engine, or before `front` that stands before it, what the spec names."""
    if spec.shedding is not None and slo is not None:
        front = SheddingEngine(front, slo.monitor, spec.shedding)
    if spec.gate is not None:
        gate = spec.gate.completed(_weights(spec), _tiers(spec))
        measured = EngineCapacity(engine)
        front = GatedEngine(front, gate, service, measured.service_per_s, lambda: engine.saturation)
    if spec.throttling is not None:
        front = ThrottledEngine(front, spec.throttling, lambda: engine.saturation)
    return front


def _weights(spec: RunSpec) -> dict[str, float]:
    at_gate = {} if spec.gate is None else {name: tenant.share.weight for name, tenant in spec.gate.tenants.items()}
    return {**spec.workload.weights, **at_gate, **spec.weights}


def _tiers(spec: RunSpec) -> dict[str, str]:
    at_gate = {} if spec.gate is None else spec.gate.tenants
    return {**spec.workload.tiers, **{name: tenant.tier for name, tenant in at_gate.items() if tenant.tier is not None}}


def _theorem_monitor(spec: RunSpec, service: ServiceFunction) -> TheoremMonitor | None:
    applies = spec.monitor == "any" or (spec.monitor == "covered" and spec.policy_label == "vtc")
    alone = spec.gate is None and spec.shedding is None and spec.throttling is None
    few = len(spec.workload.tenants) <= TENANTS_MAX
    if not (applies and alone and few and isinstance(service, WeightedTokens)):
        return None
    engine = spec.engines
    chunked = isinstance(engine, EngineProfile) and engine.chunk_tokens is not None
    paged = spec.tiers is not None or (isinstance(engine, EngineProfile) and engine.max_loras is not None)
    return None if paged or chunked else TheoremMonitor(service)


def _collector(spec: RunSpec, service: ServiceFunction) -> Collector:
    horizon_s = spec.workload.last_arrival_s if spec.horizon_s is None else spec.horizon_s
    if spec.tiers is None:
        return Collector(service, horizon_s, timeline=spec.timeline)
    collector = TierCollector(service, horizon_s, timeline=spec.timeline)
    collector.cached_fraction = spec.tiers.cached_fraction
    return collector


def _scheduling(collector: Collector, engine: SimulatedEngine) -> Scheduling | None:
    if isinstance(collector, TierCollector) and isinstance(engine, PagedEngine):
        return collector.scheduling(engine.counts)
    return None


def _timing(wall_s: float, decision_s: list[float]) -> Timing:
    """`decision_s`: seconds of each pick."""
    mean_s = sum(decision_s) / len(decision_s) if decision_s else 0.0
    return Timing(wall_s, 1e6 * mean_s, 1e6 * (percentile(decision_s, 0.99) or 0.0))


def _with_tiers(arrivals: Iterable[Arrival], tiers: Mapping[str, str]) -> Iterable[Arrival]:
    """Give each arrival without a tier that of its tenant in `tiers`; if it has none there, it counts as standard."""
    return (_with_tier(arrival, tiers) for arrival in arrivals) if tiers else arrivals


def _with_tier(arrival: Arrival, tiers: Mapping[str, str]) -> Arrival:
    tier = tiers.get(arrival.tenant)
    return arrival if tier is None or arrival.tier is not None else replace(arrival, tier=tier)
