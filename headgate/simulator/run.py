"""One run: a policy over a workload on an engine. A run is a value in and a value out, so it can be any process's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from random import Random
from typing import Any, Literal

from dispatcher.policies.service import ServiceFunction, WeightedTokens, service_function
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.slo.shedding import ShedSettings
from gpu_worker.policies.tiers.settings import TierSettings
from headgate.simulator.drive import Front, drive
from headgate.simulator.engines.interface import Jitter
from headgate.simulator.engines.paged import PreemptiveEngine
from headgate.simulator.engines.profile import EngineProfile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.gates.shedding import SloFront
from headgate.simulator.measures.collector import Collector, TenantFigures
from headgate.simulator.measures.service_difference import Difference
from headgate.simulator.measures.theorems import TheoremMonitor
from headgate.simulator.measures.tiers import Scheduling, TierCollector, with_tiers
from headgate.simulator.measures.timeline import Timeline
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import Workload


@dataclass(frozen=True, slots=True)
class RunSpec:
    """`policy`, `service`: as on the command line. `weights`: of tenants, before what the workload says; else 1.

    `horizon_s`: T of the service difference, None: the last arrival. `jitter`: standard deviation of a step's time,
    relative. `monitor`: hold VTC's theorems against the run: `covered`, where the policy is one that they are about
    (vtc, with weights or without, charging weighted tokens), `any` policy, or `off`.

    `tiers`: on a paged engine (preemptive.py), a policy with tiers by these settings; None: on the engine that evicts
    nobody. `shedding`: of a paged engine with no other front, whom it refuses while a tier is at risk; None: nobody.
    """

    workload: Workload
    policy: str
    profile: EngineProfile
    service: str = "weighted"
    weights: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    jitter: float = 0.0
    horizon_s: float | None = None
    timeline: bool = False
    timing: bool = False
    monitor: Literal["covered", "any", "off"] = "covered"
    tiers: TierSettings | None = None
    shedding: ShedSettings | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Of this machine: the run, and the policy's picks."""

    wall_s: float
    decision_us_mean: float
    decision_us_p99: float


@dataclass(frozen=True, slots=True)
class Run:
    """`total_time_s` from 0 to the last token; `throughput_tokens_per_s` input and output tokens of served requests
    over it. `decisions`: requests that the policy picked and that fitted. `scheduling`: of a paged engine."""

    workload: str
    policy: str
    seed: int
    requests: int
    served: int
    rejected: int
    rejections: dict[str, int]
    total_time_s: float
    throughput_tokens_per_s: float
    difference: Difference | None
    tenants: dict[str, TenantFigures]
    decisions: int
    pool_tokens: int
    bounds: dict[str, Any] = field(default_factory=dict)
    timing: Timing | None = None
    timeline: Timeline | None = None
    scheduling: Scheduling | None = None


def simulate(spec: RunSpec, front: Front | None = None) -> Run:
    """Raises ValueError for a policy or service function that is not there."""
    if spec.tiers is not None:
        return _simulate_paged(spec, spec.tiers, front)
    began_s = time.perf_counter()
    service = service_function(spec.service)
    policy = make_policy(spec.policy, service, random=Random(f"{spec.seed} policy"))
    monitor = _monitor(spec, service)
    engine = make_engine(
        spec.profile,
        policy,
        observer=monitor,
        jitter=Jitter(Random(f"{spec.seed} steps"), spec.jitter) if spec.jitter else None,
        stopwatch=time.perf_counter if spec.timing else None,
    )
    horizon_s = spec.workload.last_arrival_s if spec.horizon_s is None else spec.horizon_s
    collector = Collector(service, horizon_s, timeline=spec.timeline)
    weights = {**spec.workload.weights, **spec.weights}
    drive(_arrivals(spec.workload), engine, collector, front=front, weights=weights)
    timing = timing_of(time.perf_counter() - began_s, engine.decision_s) if spec.timing else None
    bounds = monitor.bounds() if monitor is not None else {}
    return run_of(spec, collector, engine.decisions, bounds, timing)


def _simulate_paged(spec: RunSpec, tiers: TierSettings, front: Front | None) -> Run:
    began_s = time.perf_counter()
    service = service_function(spec.service)
    shedding = None if spec.shedding is None else SloFront(spec.shedding)
    engine = PreemptiveEngine(
        spec.profile,
        make_policy(spec.policy, service, random=Random(f"{spec.seed} policy"), tiers=tiers),
        observer=shedding,
        jitter=Jitter(Random(f"{spec.seed} steps"), spec.jitter) if spec.jitter else None,
        stopwatch=time.perf_counter if spec.timing else None,
    )
    horizon_s = spec.workload.last_arrival_s if spec.horizon_s is None else spec.horizon_s
    collector = TierCollector(service, horizon_s, timeline=spec.timeline)
    weights = {**spec.workload.weights, **spec.weights}
    drive(_arrivals(spec.workload), engine, collector, front=front or shedding, weights=weights)
    timing = timing_of(time.perf_counter() - began_s, engine.decision_s) if spec.timing else None
    run = run_of(spec, collector, engine.decisions, {}, timing)
    return replace(run, scheduling=collector.scheduling(engine.figures))


def _arrivals(workload: Workload) -> Iterable[Arrival]:
    return with_tiers(workload) if workload.tiers else workload


def _monitor(spec: RunSpec, service: ServiceFunction) -> TheoremMonitor | None:
    if spec.monitor == "off" or not isinstance(service, WeightedTokens) or spec.profile.chunk_tokens is not None:
        return None
    if spec.monitor == "covered" and spec.policy != "vtc":
        return None
    return TheoremMonitor(service)


def run_of(spec: RunSpec, collector: Collector, decisions: int, bounds: dict[str, Any], timing: Timing | None) -> Run:
    tenants = collector.tenants()
    total_s = collector.total_time_s
    return Run(
        workload=spec.workload.name,
        policy=spec.policy,
        seed=spec.seed,
        requests=sum(tenant.requests for tenant in tenants.values()),
        served=sum(tenant.served for tenant in tenants.values()),
        rejected=sum(tenant.rejected for tenant in tenants.values()),
        rejections=dict(sorted(collector.rejections.items())),
        total_time_s=total_s,
        throughput_tokens_per_s=collector.tokens / total_s if total_s else 0.0,
        difference=collector.difference(),
        tenants=tenants,
        decisions=decisions,
        pool_tokens=spec.profile.pool_tokens,
        bounds=bounds,
        timing=timing,
        timeline=collector.timeline(),
    )


def timing_of(wall_s: float, decision_s: list[float]) -> Timing:
    """`decision_s`: seconds of each pick."""
    if not decision_s:
        return Timing(wall_s, 0.0, 0.0)
    ordered = sorted(decision_s)
    return Timing(wall_s, 1e6 * sum(ordered) / len(ordered), 1e6 * ordered[ceil(0.99 * len(ordered)) - 1])
