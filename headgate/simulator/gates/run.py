"""A run with a gate before the engine, or without: what the command line asks for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from random import Random

from dispatcher.policies.service import service_function
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import drive
from headgate.simulator.engines.interface import Jitter
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.gates.gated import GatedEngine
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.measures.collector import Collector
from headgate.simulator.run import Run, RunSpec, run_of, simulate, timing_of


@dataclass(frozen=True, slots=True)
class GatedSpec:
    """`gate` None: the engine alone. The gate's weights and the engine's are the same: see `weights_of`."""

    run: RunSpec
    gate: GateSpec | None = None


def simulate_gated(spec: GatedSpec) -> Run:
    """Picklable both ways: runs in another process. Raises ValueError as simulate() does."""
    if spec.gate is None:
        return simulate(spec.run)
    began_s = time.perf_counter()
    run = replace(spec.run, weights=weights_of(spec))
    service = service_function(run.service)
    engine = make_engine(
        run.profile,
        make_policy(run.policy, service, random=Random(f"{run.seed} policy")),
        jitter=Jitter(Random(f"{run.seed} steps"), run.jitter) if run.jitter else None,
        stopwatch=time.perf_counter if run.timing else None,
    )
    horizon_s = run.workload.last_arrival_s if run.horizon_s is None else run.horizon_s
    collector = Collector(service, horizon_s, timeline=run.timeline)
    with closing(GatedEngine(engine, spec.gate.weighted(run.weights), service)) as gated:
        drive(run.workload, gated, collector, weights=run.weights)
    timing = timing_of(time.perf_counter() - began_s, engine.decision_s) if run.timing else None
    return run_of(run, collector, engine.decisions, {}, timing)


def weights_of(spec: GatedSpec) -> Mapping[str, float]:
    """What the gate's file says over what the workload says, and what the command line says over both."""
    told = {} if spec.gate is None else {name: tenant.share.weight for name, tenant in spec.gate.tenants.items()}
    return {**spec.run.workload.weights, **told, **spec.run.weights}
